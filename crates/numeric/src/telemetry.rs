//! What accumulators count, by cause: how often an element met each limit of its number format.

/// Counts of elements, one per addition or read-out in which the cause was met. Counting is optional (`Option<&mut
/// Telemetry>`) and costs a few instructions for each element; it never changes a result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Telemetry {
    /// Sums that left their register: the element is marked and read out as such (never a wrapped value).
    pub overflow: u64,
    /// Results larger than the format's largest number at read-out: they became infinite or the largest number.
    pub saturation: u64,
    /// Sums other than zero that were replaced by a larger contribution (FPISA-A, §4.3).
    pub overwrite: u64,
    /// Contributions shifted into the register's headroom (FPISA-A, §4.3).
    pub left_shift: u64,
    /// Operands other than zero of which an addition's alignment, or the read-out, left nothing.
    pub flushed_to_zero: u64,
    /// Additions whose alignment dropped bits other than zero, those flushed to zero included.
    pub lost_bits: u64,
}

impl Telemetry {
    /// Adds another's counts, as those of another slot or worker.
    pub fn merge(&mut self, other: &Telemetry) {
        self.overflow += other.overflow;
        self.saturation += other.saturation;
        self.overwrite += other.overwrite;
        self.left_shift += other.left_shift;
        self.flushed_to_zero += other.flushed_to_zero;
        self.lost_bits += other.lost_bits;
    }
}
