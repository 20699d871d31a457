//! By what floats are multiplied before they become fixed point: 10^8 for every chunk (ATP §3.8), or a power of two for
//! each, which workers agree on a window before it is used (App. B.3).

use fanin_numeric::{BlockExponent, block_fixed};
use fanin_wire::atp::{ElementFormat, Header};
use fanin_wire::generated::{ATP_SCALE, ATP_SCALE_CODE_MIN, ATP_SCALE_CODE_NONE};

/// `scale_next` of who does not know the chunk yet, and `scale` of what counts in units of 10^-8.
pub(super) const STATIC: u8 = 0;
/// `scale_next` of who has an infinity or a NaN there.
const NON_FINITE: u8 = u8::MAX;
/// `scale` of the largest exponent.
const CODE_MAX: u8 = (BlockExponent::MAX.0 - BlockExponent::MIN.0) as u8 + ATP_SCALE_CODE_MIN;

/// Whether a job's floats may be scaled by other powers than the paper's 10^8 (ATP App. B.3). Workers may differ: with one that
/// says [`Scale::Static`] the job stays at 10^8.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// 10^8, always.
    #[default]
    Static,
    /// 10^8 as long as sums seldom leave 32 bits; else what the next gradients ask for, told a window ahead.
    Dynamic,
}

/// What a header says of a block whose values are below `2^exponent`.
pub(super) fn code(exponent: BlockExponent) -> u8 {
    match exponent {
        BlockExponent::NOT_NEEDED => ATP_SCALE_CODE_NONE,
        BlockExponent::UNKNOWN => STATIC,
        _ if !exponent.is_finite() => NON_FINITE,
        _ => (exponent.max(BlockExponent::MIN).0 - BlockExponent::MIN.0) as u8 + ATP_SCALE_CODE_MIN,
    }
}

/// The exponent that a `scale` stands for; [`BlockExponent::NOT_NEEDED`] for units of 10^-8.
pub(super) fn exponent(scale: u8) -> BlockExponent {
    match usable(scale) {
        STATIC => BlockExponent::NOT_NEEDED,
        code => BlockExponent(i16::from(code - ATP_SCALE_CODE_MIN) + BlockExponent::MIN.0),
    }
}

/// The exponent of a packet's elements; [`BlockExponent::NOT_NEEDED`] also where they are no fixed point.
pub(super) fn exponent_in(header: &Header) -> BlockExponent {
    if header.element_format == ElementFormat::Fixed32 { exponent(header.scale) } else { BlockExponent::NOT_NEEDED }
}

/// Of two packets' `scale_next`, the one that covers both: the larger exponent, so the smaller scale. Nothing covers what
/// somebody does not know.
#[inline]
pub(super) fn merge(one: u8, other: u8) -> u8 {
    if one == STATIC || other == STATIC { STATIC } else { one.max(other) }
}

/// What floats are scaled by who were told `scale`: itself if it stands for an exponent, else 10^8.
pub(super) fn usable(scale: u8) -> u8 {
    if (ATP_SCALE_CODE_MIN..=CODE_MAX).contains(&scale) { scale } else { STATIC }
}

/// Whether sums of `worker_count` blocks of this exponent cannot leave 32 bits at 10^8 either: 10^8 is no more than the largest
/// power of two that surely holds them (SwitchML App. E, Theorem 2).
pub(super) fn fits_static(scale: u8, worker_count: u16) -> bool {
    block_fixed::scale(exponent(scale), worker_count) >= ATP_SCALE as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exponent_has_a_code_and_comes_back() {
        for number in BlockExponent::MIN.0..=BlockExponent::MAX.0 {
            let scale = code(BlockExponent(number));
            assert_eq!((usable(scale), exponent(scale)), (scale, BlockExponent(number)));
        }
        assert_eq!(code(BlockExponent(-200)), code(BlockExponent::MIN));
        for unusable in [0, 1, 226, 254, 255] {
            assert_eq!((usable(unusable), exponent(unusable)), (STATIC, BlockExponent::NOT_NEEDED));
        }
    }

    #[test]
    fn the_smallest_scale_wins_and_who_does_not_know_above_all() {
        let (small, large) = (code(BlockExponent(-3)), code(BlockExponent(4)));
        let (none, unknown) = (code(BlockExponent::NOT_NEEDED), code(BlockExponent::UNKNOWN));
        let not_finite = code(BlockExponent::NON_FINITE);
        assert_eq!(merge(none, small), small);
        assert_eq!(merge(large, small), large);
        assert_eq!(merge(large, not_finite), not_finite);
        for other in [none, small, large, not_finite, unknown] {
            assert_eq!((merge(unknown, other), merge(other, unknown)), (unknown, unknown));
        }
    }

    #[test]
    fn ten_to_the_eighth_holds_what_theorem_2_says() {
        // 4 * 4 * 10^8 < 2^31 <= 4 * 8 * 10^8.
        assert!(fits_static(code(BlockExponent(2)), 4));
        assert!(!fits_static(code(BlockExponent(3)), 4));
        assert!(!fits_static(code(BlockExponent::MAX), 1));
        assert!(fits_static(code(BlockExponent::MIN), 256));
    }
}
