//! Combining the tensors of several ranks that lie in one memory, in one pass: n inputs are read, any number of outputs
//! is written.
//!
//! Every element is combined in the order of `inputs`, and float16 and bfloat16 are added in float32 and rounded once. So
//! a result depends on the order of the inputs alone, not on who computes which part of it, on the alignment or on the
//! kernel level. A sum or maximum that is not a number is the canonical NaN.
//!
//! Maximum and minimum order floats as [`integer`](crate::integer) does: -0 below +0, NaN above all of them.

use crate::exponent::fold_divisor;
use crate::simd as kernel;

/// How the elements of the ranks are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Sum; integers wrap.
    Sum,
    /// Maximum.
    Max,
    /// Minimum; NaN wins as it does in a maximum.
    Min,
    /// Bitwise and.
    And,
    /// Bitwise or. With one input it copies, for every element.
    Or,
    /// Bitwise exclusive or.
    Xor,
}

/// The elements in memory, in the processor's byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// IEEE 754 binary32.
    Float32,
    /// IEEE 754 binary16.
    Float16,
    /// bfloat16.
    Bfloat16,
    /// Signed 32-bit integer.
    Int32,
    /// Signed 64-bit integer.
    Int64,
    /// Uninterpreted bytes: bitwise operations only.
    Byte,
}

impl Element {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Element::Byte => 1,
            Element::Float16 | Element::Bfloat16 => 2,
            Element::Float32 | Element::Int32 => 4,
            Element::Int64 => 8,
        }
    }

    /// True for the three float types.
    pub const fn is_float(self) -> bool {
        matches!(self, Element::Float32 | Element::Float16 | Element::Bfloat16)
    }
}

/// How outputs are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stores {
    /// Through the caches: for results that are read again soon.
    Cached,
    /// Past the caches (non-temporal), where the outputs are aligned alike: for results larger than the caches.
    Streaming,
}

/// One combination of tensors: what is done to which elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reduction {
    operation: Operation,
    element: Element,
    kernel: Kernel,
    divisor: f32,
}

impl Reduction {
    /// `operation` on tensors of `element`; `None` for what has no meaning: arithmetic on bytes, bits of floats with
    /// several inputs (an [`Operation::Or`] of one input, a copy, is had from [`Reduction::COPY`]).
    pub fn new(operation: Operation, element: Element) -> Option<Reduction> {
        let kernel = match (operation, element) {
            (Operation::Sum, Element::Float32) => Kernel::SumF32,
            (Operation::Sum, Element::Float16) => Kernel::SumF16,
            (Operation::Sum, Element::Bfloat16) => Kernel::SumBf16,
            (Operation::Sum, Element::Int32) => Kernel::SumI32,
            (Operation::Sum, Element::Int64) => Kernel::SumI64,
            (Operation::Max | Operation::Min, Element::Float32) => Kernel::MaxF32,
            (Operation::Max | Operation::Min, Element::Float16) => Kernel::MaxF16,
            (Operation::Max | Operation::Min, Element::Bfloat16) => Kernel::MaxBf16,
            (Operation::Max | Operation::Min, Element::Int32) => Kernel::MaxI32,
            (Operation::Max | Operation::Min, Element::Int64) => Kernel::MaxI64,
            (Operation::And | Operation::Or, Element::Int32 | Element::Int64 | Element::Byte) => Kernel::Or,
            (Operation::Xor, Element::Int32 | Element::Int64 | Element::Byte) => Kernel::Xor,
            (Operation::Sum | Operation::Max | Operation::Min, Element::Byte) => return None,
            (Operation::And | Operation::Or | Operation::Xor, _) => return None,
        };
        Some(Reduction { operation, element, kernel, divisor: 1.0 })
    }

    /// Copies its one input; several are or-ed.
    pub const COPY: Reduction =
        Reduction { operation: Operation::Or, element: Element::Byte, kernel: Kernel::Or, divisor: 1.0 };

    /// Divides a sum of floats by `divisor` before it is rounded to the element; integers are left alone.
    #[must_use]
    pub fn with_divisor(self, divisor: f32) -> Reduction {
        Reduction { divisor: if self.operation == Operation::Sum { divisor } else { 1.0 }, ..self }
    }

    /// What `operation` is applied to.
    pub fn element(&self) -> Element {
        self.element
    }

    /// Combines `bytes` bytes at each of `inputs`, in their order, and writes the result to each of `outputs`. Without an
    /// input the outputs become zero.
    ///
    /// # Panics
    /// When `bytes` is not a whole number of elements.
    ///
    /// # Safety
    /// `bytes` bytes are readable at every input and writable at every output, and nobody else writes the inputs or
    /// touches the outputs meanwhile. An output may be exactly an input (in place); otherwise they do not overlap.
    /// Addresses need no alignment.
    #[allow(unsafe_code, reason = "in place, and on memory of other processes, there are no slices to pass")]
    pub unsafe fn apply(&self, inputs: &[*const u8], outputs: &[*mut u8], bytes: usize, stores: Stores) {
        assert!(bytes.is_multiple_of(self.element.bytes()), "{bytes} bytes are no whole number of {:?}", self.element);
        if inputs.is_empty() {
            for output in outputs {
                // SAFETY: the caller vouches for `bytes` bytes at every output.
                unsafe { output.write_bytes(0, bytes) }
            }
            return;
        }
        let (factor, divisor) = fold_divisor(1.0, self.divisor);
        let flip = if matches!(self.operation, Operation::Min | Operation::And) { -1 } else { 0 };
        let task = Task { inputs, outputs, bytes, factor, divisor, flip, streams: stores == Stores::Streaming };
        // SAFETY: the caller's promise is the kernel's.
        unsafe { kernel::combine(self.kernel, &task) }
    }
}

/// The loops behind [`Reduction`]. A minimum is a maximum of complements, an and is an or of complements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    SumF32,
    SumF16,
    SumBf16,
    SumI32,
    SumI64,
    MaxF32,
    MaxF16,
    MaxBf16,
    MaxI32,
    MaxI64,
    Or,
    Xor,
}

/// The operands of one run of a kernel; there is at least one input.
#[derive(Clone, Copy)]
pub(crate) struct Task<'a> {
    pub(crate) inputs: &'a [*const u8],
    pub(crate) outputs: &'a [*mut u8],
    pub(crate) bytes: usize,
    /// Multiplied to sums of floats, then `divisor` divides them; one of the two is 1.
    pub(crate) factor: f32,
    pub(crate) divisor: f32,
    /// -1 to complement inputs and result, 0 to leave them.
    pub(crate) flip: i32,
    pub(crate) streams: bool,
}
