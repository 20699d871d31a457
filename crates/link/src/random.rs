//! The seeded generator of links and simulations.

use fanin_protocol::time::Span;
use rand_core::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::PARTS_PER_MILLION;

/// Deterministic random numbers: the same seed gives the same sequence on
/// every machine.
#[derive(Clone, Debug)]
pub struct Random(Xoshiro256PlusPlus);

impl Random {
    /// A generator at the start of the seed's sequence.
    pub fn new(seed: u64) -> Random {
        Random(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`, or 0 when `bound` is 0. The bias of the
    /// multiplication is below 2^-32 for the bounds in use.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// A number within `low..=high`.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True with a chance of `ppm` parts per million. Draws nothing when the
    /// chance is 0, so that a feature that is off changes no other draw.
    pub fn chance(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.below(u64::from(PARTS_PER_MILLION)) < u64::from(ppm)
    }

    /// True half the time.
    pub fn flip(&mut self) -> bool {
        self.bits() >> 63 == 1
    }

    /// A span from nothing to `max`, inclusive.
    pub fn span_up_to(&mut self, max: Span) -> Span {
        Span::from_ns(if max == Span::ZERO { 0 } else { self.below(max.as_ns() + 1) })
    }

    /// One of the choices.
    ///
    /// # Panics
    /// If there is none.
    pub fn choose<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len() as u64) as usize]
    }

    /// A generator for a part, independent of later draws from this one.
    pub fn split(&mut self) -> Random {
        Random::new(self.bits())
    }
}
