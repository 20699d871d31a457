//! When workers are told to use another scale than 10^8 (ATP App. B.3: "only when the overflow happens frequently").

use core::hash::{Hash, Hasher};

use crate::atp::scale;

/// Sums of floats of which is remembered whether they have left 32 bits, or might have at 10^8.
const REMEMBERED: u32 = u64::BITS;

/// One lane's account of its overflows.
#[derive(Clone, Debug)]
pub(super) struct Scaling {
    /// Of the last sums, the latest lowest: a bit for each that 10^8 did not, or might not have held.
    recent: u64,
    /// So many of them are often.
    often: u8,
    is_dynamic: bool,
}

impl Scaling {
    pub fn new(often: u8) -> Scaling {
        assert!(u32::from(often) <= REMEMBERED, "of {REMEMBERED} sums no more can overflow");
        Scaling { recent: 0, often, is_dynamic: often == 0 }
    }

    /// A sum of floats is there. `is_too_large`: for 10^8. Between often and never it stays as it is, so that a job on the border
    /// does not go back and forth.
    pub fn note(&mut self, is_too_large: bool) {
        self.recent = self.recent << 1 | u64::from(is_too_large);
        self.is_dynamic = match self.recent {
            recent if recent.count_ones() >= self.often.into() => true,
            0 => false,
            _ => self.is_dynamic,
        };
    }

    /// The scale of a chunk of which the Fragments a window earlier said `merged`.
    pub fn tell(&self, merged: u8) -> u8 {
        if self.is_dynamic { scale::usable(merged) } else { scale::STATIC }
    }

    pub fn hash_state(&self, hasher: &mut impl Hasher) {
        (self.recent, self.is_dynamic).hash(hasher);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_scales_are_told_from_often_until_never() {
        let mut scaling = Scaling::new(4);
        let told = |scaling: &Scaling| scaling.tell(100);
        for _ in 0..3 {
            scaling.note(true);
            assert_eq!(told(&scaling), 0);
            (0..20).for_each(|_| scaling.note(false));
        }
        scaling.note(true);
        assert_eq!(told(&scaling), 100, "4 of the last 64");
        for _ in 0..63 {
            scaling.note(false);
            assert_eq!(told(&scaling), 100);
        }
        scaling.note(false);
        assert_eq!(told(&scaling), 0, "none of the last 64");
    }

    #[test]
    fn what_is_no_exponent_is_not_told() {
        let scaling = Scaling::new(0);
        assert_eq!([0, 1, 2, 225, 226, 255].map(|merged| scaling.tell(merged)), [0, 0, 2, 225, 0, 0]);
    }
}
