//! The ranks of jobs at a host.

use fanin_protocol::time::Time;

use super::{Handle, Host, Sender, Turn, Uplink};
use crate::datagrams::DatagramId;
use crate::job::aggregation::{Arrival, DATAGRAM_BYTES_MAX, Event, packet_of};
use crate::job::{Rank, Work};
use crate::packet::{MARKED, Packet};
use crate::transport::Transport;
use crate::workload::Flow;

const PS_PER_NS: u64 = 1000;

/// Whole nanoseconds, as protocols count them.
pub fn time(now_ps: u64) -> Time {
    Time::from_ns(now_ps / PS_PER_NS)
}

fn due_ps(due: Option<Time>) -> u64 {
    due.map_or(u64::MAX, |due| due.as_ns().saturating_mul(PS_PER_NS))
}

impl Host {
    /// Ranks that have a bucket ready begin to sum it; those on a network of their own come to the end of it.
    pub(super) fn wake_ranks(&mut self, now_ps: u64, transport: &Transport) {
        for place in 0..self.ranks.len() {
            while self.ranks[place].wake_ps() <= now_ps {
                self.wake_rank(place, now_ps, transport);
            }
        }
        self.find_rank();
    }

    fn find_rank(&mut self) {
        self.rank_ps = self.ranks.iter().map(Rank::wake_ps).min().unwrap_or(u64::MAX);
    }

    fn wake_rank(&mut self, place: usize, now_ps: u64, transport: &Transport) {
        let rank = &mut self.ranks[place];
        if !rank.has_computed(now_ps) {
            rank.complete(now_ps);
            return;
        }
        rank.begin(now_ps);
        match &mut rank.work {
            Work::Ideal { .. } => {}
            Work::Ring(_) => self.go_on_in_ring(place, now_ps, transport),
            Work::Endpoint { endpoint, .. } => {
                endpoint.submit(time(now_ps));
                self.go_on_with_endpoint(place, now_ps);
            }
        }
    }

    /// Segments of a ring's connection have arrived without a gap.
    pub(super) fn take_ring_segments(&mut self, job: u16, segments: u32, now_ps: u64, transport: &Transport) {
        let Some(place) = self.ranks.iter().position(|rank| rank.job() == job) else { return };
        let Work::Ring(ring) = &mut self.ranks[place].work else { return };
        let each = ring.part_bytes.div_ceil(transport.segment_bytes.into()).max(1);
        let received = u64::from(segments) / each;
        if received > ring.received {
            ring.received = received;
            self.go_on_in_ring(place, now_ps, transport);
        }
    }

    /// Gives the connection the parts that may be sent by now, and goes on to the next bucket when all of one has come.
    fn go_on_in_ring(&mut self, place: usize, now_ps: u64, transport: &Transport) {
        while self.ranks[place].is_communicating() {
            let rank = &mut self.ranks[place];
            let (job, bucket) = (rank.job(), rank.summed_buckets());
            let Work::Ring(ring) = &mut rank.work else { return };
            let (sendable, is_complete) = (ring.sendable(bucket), ring.is_complete(bucket));
            let handle = match ring.connection {
                Some(handle) => handle,
                None => {
                    let flow = Flow { at_ps: now_ps, destination: ring.next, bytes: ring.part_bytes, hash: ring.hash };
                    let index = self.index;
                    let connect = |handle| {
                        let sender = Sender::new(index, handle, &flow, now_ps, transport).stream(job + 1);
                        if ring.uses_marks { sender } else { sender.unmarkable() }
                    };
                    *ring.connection.insert(self.senders.insert_with(connect))
                }
            };
            self.extend(handle, sendable);
            if !is_complete {
                return;
            }
            self.ranks[place].complete(now_ps);
            self.find_rank();
        }
    }

    fn extend(&mut self, handle: Handle, message_count: u64) {
        let Some(sender) = self.senders.get_mut(handle) else { return };
        sender.extend(message_count);
        if sender.may_send() && !std::mem::replace(&mut sender.is_in_line, true) {
            self.line.push_back(Turn::Flow(handle));
        }
    }

    /// A datagram has come for one of the ranks.
    pub(super) fn handle_datagram(&mut self, packet: &Packet, uplink: &mut Uplink) {
        let id = DatagramId::from_raw(packet.flow);
        let is_for = |rank: &Rank| matches!(&rank.work, Work::Endpoint { groups, .. } if (groups[0]..groups[1]).contains(&packet.peer));
        if let Some(place) = self.ranks.iter().position(is_for) {
            let arrival = Arrival {
                now: time(packet.at_ps),
                group: packet.peer,
                port: 0,
                destination: packet.destination,
                is_marked: packet.flags & MARKED != 0,
                datagram: uplink.datagrams.get(id),
            };
            if let Work::Endpoint { endpoint, .. } = &mut self.ranks[place].work {
                endpoint.handle_packet(&arrival);
            }
            self.go_on_with_endpoint(place, packet.at_ps);
        }
        uplink.datagrams.release(id);
    }

    /// An endpoint may have something to send or to tell.
    fn go_on_with_endpoint(&mut self, place: usize, now_ps: u64) {
        let mut has_completed = false;
        while let Work::Endpoint { endpoint, .. } = &mut self.ranks[place].work
            && let Some(event) = endpoint.poll_event()
        {
            match event {
                Event::Completed => self.ranks[place].complete(now_ps),
                Event::Failed(why) => self.ranks[place].fail(&why),
            }
            has_completed = true;
        }
        if has_completed {
            self.find_rank();
        }
        let Work::Endpoint { endpoint, is_in_line, .. } = &mut self.ranks[place].work else { return };
        self.expiry_ps = self.expiry_ps.min(due_ps(endpoint.poll_timeout()));
        if !std::mem::replace(is_in_line, true) {
            self.line.push_back(Turn::Rank(place as u32));
        }
    }

    /// Sends one datagram of a rank if it has one: whether it had, and whether it stays in line.
    pub(super) fn send_of_rank(&mut self, place: u32, now_ps: u64, uplink: &mut Uplink) -> (bool, bool) {
        let Work::Endpoint { endpoint, is_in_line, .. } = &mut self.ranks[place as usize].work else {
            return (false, false);
        };
        let mut buffer = [0; DATAGRAM_BYTES_MAX];
        let transmit = endpoint.poll_transmit(time(now_ps), &mut buffer);
        *is_in_line = transmit.is_some();
        let Some(transmit) = transmit else { return (false, false) };
        self.expiry_ps = self.expiry_ps.min(due_ps(endpoint.poll_timeout()));
        let id = uplink.datagrams.put(&buffer[..transmit.length], 1);
        if !uplink.link.offer(uplink.class, now_ps, &packet_of(id, &transmit.wire)) {
            uplink.datagrams.release(id);
        }
        (true, true)
    }

    /// Tells endpoints whose time has come; when the next one's does.
    pub(super) fn expire_ranks(&mut self, now_ps: u64) -> u64 {
        let mut next_ps = u64::MAX;
        for place in 0..self.ranks.len() {
            let Work::Endpoint { endpoint, .. } = &mut self.ranks[place].work else { continue };
            if due_ps(endpoint.poll_timeout()) <= now_ps {
                endpoint.handle_timeout(time(now_ps));
                self.go_on_with_endpoint(place, now_ps);
            }
            if let Work::Endpoint { endpoint, .. } = &self.ranks[place].work {
                // Whoever has not moved its time on is asked again soon, not for ever at once.
                next_ps = next_ps.min(due_ps(endpoint.poll_timeout()).max(now_ps + PS_PER_NS));
            }
        }
        next_ps
    }
}
