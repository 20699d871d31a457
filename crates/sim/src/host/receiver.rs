//! The receiving end of a flow: one acknowledgement for each segment.

use super::Handle;
use crate::packet::{ECHO, Kind, LAST, MARKED, Packet, hash_of_answers};
use crate::transport::Transport;

/// What has arrived of a flow.
#[derive(Debug, Default)]
pub struct Receiver {
    /// Segments that have arrived without a gap.
    received: u32,
    /// All segments, once the last has been seen.
    segment_count: Option<u32>,
    /// Runs of segments beyond a gap, as first and one past the last, ordered and apart.
    beyond: Vec<(u32, u32)>,
}

impl Receiver {
    /// Some number that is known once the cache has it.
    #[inline]
    pub fn look(&self) -> u64 {
        self.received.into()
    }

    /// A segment has arrived; returns how many have without a gap.
    #[inline]
    pub fn take(&mut self, packet: &Packet) -> u32 {
        if packet.flags & LAST != 0 {
            self.segment_count = Some(packet.number + 1);
        }
        if packet.number == self.received && self.beyond.is_empty() {
            self.received += 1;
        } else if packet.number >= self.received {
            self.take_beyond(packet.number);
        }
        self.received
    }

    /// True once every segment has arrived.
    pub fn is_whole(&self) -> bool {
        self.segment_count == Some(self.received)
    }

    #[cold]
    fn take_beyond(&mut self, number: u32) {
        let place = self.beyond.partition_point(|&(_, end)| end < number);
        match self.beyond.get_mut(place) {
            Some(run) if run.0 <= number && number < run.1 => {}
            Some(run) if run.1 == number => run.1 += 1,
            Some(run) if run.0 == number + 1 => run.0 = number,
            _ => self.beyond.insert(place, (number, number + 1)),
        }
        if let (Some(&run), Some(&next)) = (self.beyond.get(place), self.beyond.get(place + 1))
            && run.1 == next.0
        {
            self.beyond[place].1 = next.1;
            self.beyond.remove(place + 1);
        }
        if self.beyond[0].0 == self.received {
            self.received = self.beyond.remove(0).1;
        }
    }
}

/// The acknowledgement of a segment.
pub fn answer(packet: &Packet, received: u32, handle: Handle, host: u16, transport: &Transport) -> Packet {
    Packet {
        at_ps: 0,
        tag: 0,
        number: received,
        flow: packet.flow,
        peer: handle.raw(),
        source: host,
        destination: packet.source,
        bytes: transport.ack_bytes(),
        hash: hash_of_answers(packet.hash),
        kind: Kind::Ack,
        flags: if packet.flags & MARKED == 0 { 0 } else { ECHO },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn segment(number: u32, count: u32) -> Packet {
        Packet { number, flags: if number + 1 == count { LAST } else { 0 }, ..Packet::default() }
    }

    proptest! {
        #[test]
        fn any_order_with_repeats_is_put_together(
            mut order in Just((0..40u32).collect::<Vec<_>>()).prop_shuffle(),
            repeats in proptest::collection::vec(0..40u32, 0..20),
        ) {
            order.extend(repeats);
            let mut receiver = Receiver::default();
            let mut seen = [false; 40];
            for number in order {
                let received = receiver.take(&segment(number, 40));
                seen[number as usize] = true;
                let expected = seen.iter().take_while(|&&is_there| is_there).count();
                prop_assert_eq!(received as usize, expected);
                prop_assert_eq!(receiver.is_whole(), expected == 40);
            }
        }
    }
}
