//! Payloads between the two byte orders: raw floats travel little-endian, as they lie in memory, and the accumulators' kernels
//! read big-endian.

use crate::simd as kernel;

/// Which byte of a payload's elements comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ByteOrder {
    /// The highest, as network formats have it.
    #[default]
    Big,
    /// The lowest, as raw floats travel: as they lie in a little-endian machine's memory.
    Little,
}

/// Writes elements of `element_bytes` (2 or 4) with their bytes reversed.
///
/// # Panics
/// When the slices' lengths differ, or are no whole elements of 2 or 4 bytes.
#[inline]
pub fn reverse(payload: &[u8], element_bytes: usize, out: &mut [u8]) {
    assert_eq!(payload.len(), out.len(), "reversing bytes keeps their number");
    assert!(
        matches!(element_bytes, 2 | 4) && payload.len().is_multiple_of(element_bytes),
        "elements have 2 or 4 bytes"
    );
    if element_bytes == 4 { kernel::reverse_words(payload, out) } else { kernel::reverse_halves(payload, out) }
}

#[inline(always)]
pub(crate) fn words(payload: &[u8], out: &mut [u8]) {
    for (word, out) in payload.as_chunks::<4>().0.iter().zip(out.as_chunks_mut::<4>().0) {
        *out = u32::from_le_bytes(*word).to_be_bytes();
    }
}

#[inline(always)]
pub(crate) fn halves(payload: &[u8], out: &mut [u8]) {
    for (half, out) in payload.as_chunks::<2>().0.iter().zip(out.as_chunks_mut::<2>().0) {
        *out = u16::from_le_bytes(*half).to_be_bytes();
    }
}
