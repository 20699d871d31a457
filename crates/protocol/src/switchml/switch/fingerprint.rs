//! What decides the switch's future, for checkers that must recognise a state.

use core::hash::{Hash, Hasher};

use super::Switch;
use super::job::Job;
use crate::float_pool::raw_format;

impl Switch {
    /// Hashes everything that later verdicts depend on: no counters, no
    /// times, and of the slots only the elements in use. Two switches with
    /// equal hashes (collisions aside) answer all packets alike.
    pub fn hash_state(&self, hasher: &mut impl Hasher) {
        for job in self.jobs.iter().flatten() {
            job.hash_state(hasher);
        }
    }

    /// [`Switch::hash_state`] of one job; whether there is such a job.
    pub fn hash_job_state(&self, job_id: u32, hasher: &mut impl Hasher) -> bool {
        self.job(job_id).map(|job| job.hash_state(hasher)).is_some()
    }
}

impl Job {
    pub(super) fn hash_state(&self, hasher: &mut impl Hasher) {
        (self.config.job_id, self.config.job_token).hash(hasher);
        for (copy, values) in self.slots.iter().flatten().zip(self.values_by_copy()) {
            copy.hash(hasher);
            values[..usize::from(copy.element_count)].hash(hasher);
        }
        let places = (0..self.slots.len()).flat_map(|slot| [(slot, 0), (slot, 1)]);
        for (slot, parity) in places {
            let copy = &self.slots[slot][parity];
            if let Some(format) = raw_format(copy.element_format).filter(|_| copy.element_count > 0) {
                let range = self.values_of(slot as u16, parity as u8, copy.element_count);
                self.floats.hash_state(format, range, hasher);
            }
        }
    }
}
