//! Time as integer nanoseconds from an arbitrary zero.
//!
//! Nothing below the drivers can read a clock: callers pass `Time` in.

use core::ops::{Add, AddAssign, Sub};

/// An instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

/// A length of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(u64);

impl Time {
    /// The zero that every driver counts from.
    pub const ZERO: Time = Time(0);

    /// An instant `ns` nanoseconds after zero.
    pub const fn from_ns(ns: u64) -> Time {
        Time(ns)
    }

    /// Nanoseconds since zero.
    pub const fn as_ns(self) -> u64 {
        self.0
    }

    /// Time passed since `earlier`, or nothing if `earlier` is later.
    pub const fn since(self, earlier: Time) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Span {
    /// No time.
    pub const ZERO: Span = Span(0);

    /// `ns` nanoseconds.
    pub const fn from_ns(ns: u64) -> Span {
        Span(ns)
    }

    /// `us` microseconds.
    pub const fn from_us(us: u64) -> Span {
        Span(us * 1_000)
    }

    /// `ms` milliseconds.
    pub const fn from_ms(ms: u64) -> Span {
        Span(ms * 1_000_000)
    }

    /// Length in nanoseconds.
    pub const fn as_ns(self) -> u64 {
        self.0
    }

    /// This span `factor` times, without overflow.
    pub const fn saturating_mul(self, factor: u64) -> Span {
        Span(self.0.saturating_mul(factor))
    }
}

impl Add<Span> for Time {
    type Output = Time;
    fn add(self, span: Span) -> Time {
        Time(self.0.saturating_add(span.0))
    }
}

impl AddAssign<Span> for Time {
    fn add_assign(&mut self, span: Span) {
        *self = *self + span;
    }
}

impl Sub for Time {
    type Output = Span;
    fn sub(self, earlier: Time) -> Span {
        self.since(earlier)
    }
}
