//! What a job's accumulator of floats has met, tensor by tensor: a table of fixed size that packets write to.
//!
//! A packet tells which tensor it is of by the upper half of its collective's tag, the tensor's *key*, which workers of jobs with
//! such an accumulator make of what does not change from step to step; see [`tag`].

use alloc::vec::Vec;

use fanin_numeric::Telemetry;
use fanin_wire::Accumulator;

/// Tensors that a switch counts apart for a job on each of its threads. What others met is in the job's counts alone.
pub const TENSORS_MAX: usize = 32;

/// The tag of a collective on the tensor of `key`. `lower` tells its collectives apart.
pub const fn tag(key: u16, lower: u16) -> u32 {
    (key as u32) << 16 | lower as u32
}

/// The key of the tensor that a collective is on.
pub const fn key(collective_tag: u32) -> u16 {
    (collective_tag >> 16) as u16
}

/// What the sums of one tensor met, since it has had its row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TensorCounts {
    /// See [`key`]. Two tensors may have the same: 1 in 65,536 pairs.
    pub key: u16,
    /// In elements, by cause.
    pub telemetry: Telemetry,
}

impl TensorCounts {
    /// What has the worse causes, and then more of them, comes last: sums that had to be made again, then values that were thrown
    /// away, then bits.
    pub fn severity(&self) -> (u64, u64, u64, u64) {
        let Telemetry { overflow, saturation, overwrite, left_shift, flushed_to_zero, lost_bits } = self.telemetry;
        (overflow + saturation, overwrite, flushed_to_zero, lost_bits + left_shift)
    }
}

/// The table of one job. All its memory is taken when it is made.
#[derive(Clone, Debug, Default)]
pub struct TensorTable {
    rows: Vec<TensorCounts>,
    row_count_max: usize,
    /// The row that was written to last: a tensor's chunks come one after the other.
    last: usize,
}

impl TensorTable {
    /// An empty table, of no rows for a job whose accumulator meets nothing that switches count.
    pub fn new(accumulator: Accumulator, is_atp: bool) -> TensorTable {
        let row_count_max = if accumulator.is_counted(is_atp) { TENSORS_MAX } else { 0 };
        TensorTable { rows: Vec::with_capacity(row_count_max), row_count_max, last: 0 }
    }

    /// The tensors that have met something, in no order.
    pub fn rows(&self) -> &[TensorCounts] {
        &self.rows
    }

    /// Adds what a contribution or a read-out of this collective met. Where all rows are taken, the one of the least
    /// severity is given up, so that at most one place is contended for, and the others are whole.
    #[inline]
    pub fn note(&mut self, collective_tag: u32, met: &Telemetry) {
        if self.row_count_max == 0 || *met == Telemetry::default() {
            return;
        }
        let key = key(collective_tag);
        if self.rows.get(self.last).is_none_or(|row| row.key != key) {
            self.last = self.place(key);
        }
        self.rows[self.last].telemetry.merge(met);
    }

    fn place(&mut self, key: u16) -> usize {
        if let Some(found) = self.rows.iter().position(|row| row.key == key) {
            return found;
        }
        let fresh = TensorCounts { key, ..TensorCounts::default() };
        if self.rows.len() < self.row_count_max {
            self.rows.push(fresh);
            return self.rows.len() - 1;
        }
        let least = (0..self.rows.len()).min_by_key(|&row| self.rows[row].severity()).unwrap_or(0);
        self.rows[least] = fresh;
        least
    }
}
