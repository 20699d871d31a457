//! How a switch or a server adds raw elements: what the job's accumulator has beside the words, and what of a sum was too much
//! for it.

use core::ops::Range;

use fanin_numeric::Telemetry;
use fanin_wire::atp::ElementFormat;

use fanin_numeric::register_pair::FloatFormat;

use crate::float_pool::{FloatPool, Terms};

/// The sum of one chunk in the memory of its slot, or of its place at the server.
pub(super) struct Sum<'a> {
    pub pool: &'a mut FloatPool,
    pub terms: Terms,
    /// Where its elements lie in the pool.
    pub range: Range<usize>,
    /// The words at the same place.
    pub words: &'a mut [i32],
}

/// The format of raw elements.
pub(super) fn raw_format(format: ElementFormat) -> Option<FloatFormat> {
    match format {
        ElementFormat::RawFloat32 => Some(FloatFormat::Float32),
        ElementFormat::RawFloat16 => Some(FloatFormat::Float16),
        ElementFormat::RawBfloat16 => Some(FloatFormat::Bfloat16),
        _ => None,
    }
}

/// Elements that have left the accumulator's format.
pub(super) fn overflowed(telemetry: &Telemetry) -> u32 {
    u32::try_from(telemetry.overflow + telemetry.saturation).unwrap_or(u32::MAX)
}

/// A number of elements as headers have it, where 16 bits are many enough: more is no news.
pub(super) fn echo(element_count: u32) -> u16 {
    u16::try_from(element_count).unwrap_or(u16::MAX)
}

impl Sum<'_> {
    /// Brings a payload into the sum.
    pub fn add(self, overwrite: bool, payload: &[u8]) -> Telemetry {
        self.pool.add(self.terms, overwrite, payload, self.range, self.words)
    }

    /// Writes the sum, rounded to the elements' format. A sum that the format does not hold has left the accumulator's format as well:
    /// what is added to it later may bring it back. `overflow` counts the sum's elements that have: on entry those of its parts, as
    /// often as parts told of one, and on return each once.
    pub fn emit(self, out: &mut [u8], overflow: &mut u32) -> Telemetry {
        let beyond = self.pool.count_beyond(self.terms.format, self.range.clone());
        let mut telemetry = self.pool.emit(self.terms, self.range, self.words, out);
        telemetry.saturation += beyond;
        let own = overflowed(&telemetry);
        *overflow = match *overflow {
            0 => own,
            parts => {
                let at_end = u32::try_from(self.pool.count_at_end(self.terms.format, out)).unwrap_or(u32::MAX);
                once(own, parts, at_end, self.pool.stays_at_end())
            }
        };
        telemetry
    }
}

/// Elements that have left the format here (`own`) or in parts of the sum, of which several may have told of the same: those that
/// stay at the end are among the `at_end` that read as such. Some have in any case, or the sum would not be asked for as floats.
fn once(own: u32, parts: u32, at_end: u32, stays_at_end: bool) -> u32 {
    let least = if stays_at_end { own.max(1) } else { own.max(parts) };
    own.saturating_add(parts).min(at_end).max(least)
}
