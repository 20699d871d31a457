//! What arrives at one node in one window, in the order of time.

use crate::packet::Packet;

/// A packet, and the port that it has come in at.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    pub packet: Packet,
    pub port: u16,
    /// The port that it goes to, if [`Arrival::outlet`] is known.
    pub to: u16,
    outlet: u32,
}

impl Arrival {
    const UNKNOWN: u32 = u32::MAX;

    /// The link that it goes to, if it only passes through.
    #[inline]
    pub fn outlet(&self) -> Option<u32> {
        (self.outlet != Self::UNKNOWN).then_some(self.outlet)
    }

    #[inline]
    pub fn send_to(&mut self, port: u16, outlet: u32) {
        (self.to, self.outlet) = (port, outlet);
    }
}

/// First as they were taken from the ports, one port after the other, then in the order of time.
#[derive(Debug, Default)]
pub struct Arrivals {
    taken: Vec<Arrival>,
    /// By place in the order of time, place in `taken`.
    order: Vec<u32>,
    keys: Vec<i32>,
}

impl Arrivals {
    /// Up to so many, counting who comes before whom is faster than a sort: it has no branch to be guessed.
    const COUNTING_MAX: usize = 1 << Self::PLACE_BITS;
    const PLACE_BITS: u32 = 7;
    /// Keys that are compared at once: two vectors of what every x86-64 has.
    const LANES: usize = 8;

    #[inline]
    pub fn push(&mut self, packet: &Packet, port: u16) {
        self.taken.push(Arrival { packet: *packet, port, to: 0, outlet: Arrival::UNKNOWN });
    }

    /// As they were taken.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Arrival> {
        self.taken.iter_mut()
    }

    /// Leaves out what does not stay.
    pub fn retain(&mut self, stays: impl FnMut(&Arrival) -> bool) {
        self.taken.retain(stays);
    }

    pub fn len(&self) -> usize {
        self.taken.len()
    }

    pub fn clear(&mut self) {
        self.taken.clear();
    }

    /// By place in the order of time.
    #[inline]
    pub fn get(&self, place: usize) -> Option<&Arrival> {
        let taken = *self.order.get(place)?;
        self.taken.get(taken as usize)
    }

    /// From this place on, in the order of time.
    #[inline]
    pub fn from(&self, first: usize) -> impl Iterator<Item = &Arrival> {
        self.order[first..].iter().map(|&taken| &self.taken[taken as usize])
    }

    /// Finds the order of time, ties in that of ports. The window begins at `start_ps`.
    #[inline]
    pub fn sort(&mut self, start_ps: u64) {
        self.order.clear();
        let count = self.taken.len();
        if count > Self::COUNTING_MAX {
            self.order.extend(0..count as u32);
            let taken = &self.taken;
            self.order.sort_unstable_by_key(|&place| (taken[place as usize].packet.at_ps, place));
            return;
        }
        // A window is short: its times fit beside a place into 31 bits.
        self.keys.clear();
        let key = |(place, arrival): (usize, &Arrival)| {
            ((arrival.packet.at_ps - start_ps) << Self::PLACE_BITS) as i32 | place as i32
        };
        self.keys.extend(self.taken.iter().enumerate().map(key));
        self.keys.resize(count.next_multiple_of(Self::LANES), i32::MAX);
        self.order.resize(count, 0);
        let (blocks, _) = self.keys.as_chunks::<{ Self::LANES }>();
        for (place, &key) in self.keys[..count].iter().enumerate() {
            let mut before = [0; Self::LANES];
            for block in blocks {
                for (before, &other) in before.iter_mut().zip(block) {
                    *before += i32::from(other < key);
                }
            }
            self.order[before.iter().sum::<i32>() as usize] = place as u32;
        }
    }
}

const _: () = assert!(crate::engine::WINDOW_PS_MAX < 1 << (i32::BITS - 1 - Arrivals::PLACE_BITS));

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_order_is_that_of_time_and_then_of_ports(times in proptest::collection::vec(0..40u64, 0..300)) {
            const START_PS: u64 = 77;
            let mut arrivals = Arrivals::default();
            let mut expected = Vec::new();
            for (place, &time) in times.iter().enumerate() {
                let at_ps = START_PS + time * (crate::engine::WINDOW_PS_MAX - 1) / 39;
                arrivals.push(&Packet { at_ps, ..Packet::default() }, place as u16);
                expected.push((at_ps, place as u16));
            }
            arrivals.sort(START_PS);
            expected.sort_unstable();
            let sorted: Vec<_> = arrivals.from(0).map(|arrival| (arrival.packet.at_ps, arrival.port)).collect();
            prop_assert_eq!(sorted, expected);
        }
    }
}
