//! What decides a lane's future, for checkers that must recognise a state.

use core::hash::{Hash, Hasher};

use super::Worker;

impl Worker {
    /// Hashes everything that later packets and events depend on, except
    /// times and counters: a checker that treats timeouts as events of their
    /// own recognises a state whenever it came about. Drain events first.
    pub fn hash_state(&self, hasher: &mut impl Hasher) {
        for slot in &self.slots {
            // An answer distinguishes a first attempt from all others only.
            let attempts = slot.attempt_count.min(2);
            (slot.phase, slot.round, slot.block, slot.exponent, attempts, slot.missing, slot.overflowed).hash(hasher);
        }
        self.ready.hash(hasher);
        self.asking.hash(hasher);
        self.outstanding.iter().for_each(|slot| slot.hash(hasher));
        self.stream.hash_state(hasher);
        self.recovery.hash_state(hasher);
    }
}
