//! The numbers of in-network aggregation: what a worker does to a block of values before it sends them, what the
//! switch does to a slot, and what the worker does to the answer.
//!
//! | module | who calls it | what it does |
//! | --- | --- | --- |
//! | [`exponent`] | worker and switch | the power of two all workers agree on for a block |
//! | [`block_fixed`] | worker | floats <-> 32-bit fixed point (SwitchML §4.6, Appendix E) |
//! | [`half_wire`] | worker | floats <-> scaled 16-bit floats, half the bytes on the wire (SwitchML §4.6, §6.3) |
//! | [`bfloat_wire`] | worker | floats <-> scaled bfloat16, half the bytes on the wire |
//! | [`byte_wire`] | worker | floats <-> scaled 8-bit integers, a quarter of the bytes on the wire |
//! | [`static_fixed`] | worker, switch and server | floats <-> counts of 10^-8 whose sums saturate (ATP §3.8) |
//! | [`float_wire`] | worker | floats <-> floats as they are, where fixed point does not hold the sum (ATP §3.8) |
//! | [`raw_wire`] | worker | floats <-> floats as they lie in memory, where the switch adds them itself |
//! | [`byte_order`] | switch | raw floats <-> what the accumulators read |
//! | [`integer`] | worker | integers, limbs, ordered floats and raw bytes <-> 32-bit words, all exact |
//! | [`accumulate`] | switch | a slot overwrites, adds, takes the maximum, ors, xors, and emits |
//! | [`fpisa`] | switch | floats added in integer registers (FPISA §3); [`register_pair`] is the slot |
//! | [`block_float`] | switch | values with a shared exponent in the same registers (FPISA §3.3) |
//! | [`fpisa_a`] | switch | FPISA for switches that cannot shift a register (§4.3) |
//! | [`ieee`] | switch | native float addition in order of arrival (PANAMA) |
//! | [`exact`] | switch | sums without any error but one rounding, whatever the order |
//! | [`log_table`] | switch | float addition by table look-ups (Libra §3.5) |
//! | [`sum`] | ranks that share memory | n tensors combined in one pass |
//! | [`table_math`] | anybody | products, logarithms, square roots by tables (FPISA A.2) |
//! | [`float16`] | anybody | binary16 and bfloat16 <-> f32, one value at a time |
//!
//! [`certificate`] says what an accumulator promises, [`telemetry`] counts what it met.
//!
//! Words on the wire are big-endian. Every kernel exists as a scalar reference that reads like the paper and as
//! AVX2 and AVX-512 twins; the fastest one that the processor has is chosen at run time and all of them write the same
//! bits for any length and any alignment. The kernels expect the default floating-point environment (round to nearest
//! even, subnormals not flushed).
//!
//! Slices whose lengths do not belong together are a bug of the caller and panic; no *value* ever does.
#![no_std]

extern crate alloc;

pub mod accumulate;
pub mod bfloat_wire;
pub mod block_fixed;
pub mod block_float;
mod blocks;
pub mod byte_order;
pub mod byte_wire;
pub mod certificate;
pub mod exact;
pub mod exponent;
mod fixed_log;
pub mod float16;
pub mod float_wire;
pub mod fpisa;
pub mod fpisa_a;
pub mod half_wire;
pub mod ieee;
pub mod integer;
pub mod log_table;
pub mod raw_wire;
pub mod register_pair;
mod scalar;
mod simd;
pub mod static_fixed;
pub mod sum;
pub mod table_math;
pub mod telemetry;

pub use exponent::BlockExponent;
pub use simd::{KernelLevel, kernel_level, limit_kernel_level};
pub use telemetry::Telemetry;

/// Lengths that do not match are the caller's bug: half a block converted in silence would be a wrong sum.
#[inline]
#[track_caller]
fn check_length(payload: &[u8], element_bytes: usize, element_count: usize) {
    if payload.len() != element_bytes * element_count {
        refuse_length(payload.len(), element_bytes, element_count);
    }
}

/// Apart, so that a right length costs one comparison.
#[cold]
#[inline(never)]
#[track_caller]
fn refuse_length(payload_bytes: usize, element_bytes: usize, element_count: usize) -> ! {
    panic!(
        "payload of {payload_bytes} bytes for {element_count} elements of {element_bytes} bytes: pass matching slices"
    )
}
