//! What each accumulator promises, as data: whether the order matters, and how far a sum can be from the exact one.
//!
//! The accumulators' `certify` functions fill a [`Certificate`] from what is known of the contributions, so that the
//! cheapest accumulator within a tolerance can be chosen by comparing numbers.

/// What is known of the values that one element's sum is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Contributions {
    /// How many there are, at least 1.
    pub worker_count: u32,
    /// The largest magnitude among them.
    pub magnitude_max: f64,
    /// The sum of their magnitudes; at most `worker_count * magnitude_max`.
    pub magnitude_sum: f64,
}

impl Contributions {
    /// `worker_count` values of at most `magnitude_max` each.
    pub fn bounded(worker_count: u32, magnitude_max: f64) -> Self {
        Self { worker_count, magnitude_max, magnitude_sum: magnitude_max * f64::from(worker_count) }
    }
}

/// An accumulator's promise for one element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Certificate {
    /// The result is the same bits for every order of arrival.
    pub order_independent: bool,
    /// `|result - exact sum|` is at most this, read-out included; infinite where nothing is promised.
    pub absolute_error: f64,
    /// Where the bound is derived.
    pub source: &'static str,
}

/// `2^exponent` as f64, zero or infinite where f64 ends (subnormals excepted).
pub(crate) fn pow2(exponent: i32) -> f64 {
    match exponent {
        1024.. => f64::INFINITY,
        -1022..=1023 => f64::from_bits(((exponent + 1023) as u64) << 52),
        _ => 0.0,
    }
}

/// `floor(log2 value)` of a positive normal f64, else the least exponent.
pub(crate) fn floor_log2(value: f64) -> i32 {
    ((value.to_bits() >> 52) & 0x7ff) as i32 - 1023
}
