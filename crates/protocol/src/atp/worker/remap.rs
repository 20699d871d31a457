//! Slots that took the place of others where chunks collided (ATP §3.6).
//!
//! All workers must put a chunk into the same slot, or it is never complete there. A new slot is told by a Parameter,
//! which workers get at different times; but none sends chunk c before it has the Parameters of all chunks up to
//! c - `window_max`. So what chunk b tells counts from chunk b + `window_max` on, at every worker.

use alloc::collections::BTreeMap;

#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Remap {
    /// By the slot that the chunk index gives: the one in use.
    in_use: BTreeMap<u16, u16>,
    /// By stream position from where it counts: the slot that the chunk index gives, and the new one.
    waiting: BTreeMap<u64, (u16, u16)>,
}

impl Remap {
    /// From stream position `from` on, chunks whose index gives `given` go to `next`.
    pub fn tell(&mut self, from: u64, given: u16, next: u16) {
        self.waiting.insert(from, (given, next));
    }

    /// The slot of the chunk at a position, whose index gives `given`. Positions must not decrease.
    pub fn slot_index(&mut self, position: u64, given: u16) -> u16 {
        while let Some(entry) = self.waiting.first_entry().filter(|entry| *entry.key() <= position) {
            let (given, next) = entry.remove();
            self.in_use.insert(given, next);
        }
        self.in_use.get(&given).copied().unwrap_or(given)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_counts_from_its_position_in_whatever_order_it_comes() {
        let mut first = Remap::default();
        let mut second = Remap::default();
        let told = [(10, 3, 7), (12, 3, 9), (11, 4, 3)];
        told.into_iter().for_each(|(from, given, next)| first.tell(from, given, next));
        told.into_iter().rev().for_each(|(from, given, next)| second.tell(from, given, next));
        for remap in [&mut first, &mut second] {
            let slots: Vec<u16> = (9..14).map(|position| remap.slot_index(position, 3)).collect();
            assert_eq!(slots, [3, 7, 7, 9, 9]);
            assert_eq!(remap.slot_index(14, 4), 3, "not the slot that 3 was given");
        }
    }
}
