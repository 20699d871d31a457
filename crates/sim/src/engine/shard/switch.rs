//! What a switch does with one packet.

use super::{Shard, Switch, forget};
use crate::datagrams::DatagramId;
use crate::engine::accelerator::Accelerator;
use crate::engine::buffers::{Buffers, Order};
use crate::fabric::{Routes, SwitchRoutes, next_hop};
use crate::host::time;
use crate::job::aggregation::{Arrival, DATAGRAM_BYTES_MAX, Outbox, Queues};
use crate::link::{Class, Link};
use crate::packet::{Kind, MARKED, NO_HOST, PAUSE_BYTES, Packet};

/// The queues of the ports of one switch.
struct PortQueues<'a> {
    links: &'a mut [Link],
    outlets: &'a [u32],
    classes: &'a [Class],
    now_ps: u64,
    routes: &'a SwitchRoutes,
    directory: &'a Routes,
}

impl Queues for PortQueues<'_> {
    fn waiting_bytes(&mut self, port: u16) -> u64 {
        let link = &mut self.links[self.outlets[usize::from(port)] as usize];
        link.start_until(&self.classes[usize::from(link.class)], self.now_ps);
        link.queued_bytes()
    }

    fn port_of(&self, packet: &Packet) -> u16 {
        next_hop(self.routes, self.directory, packet) as u16
    }
}

impl Shard {
    /// Any packet that has come in at port `from`.
    pub(super) fn handle_packet(&mut self, index: usize, from: u16, packet: &Packet) {
        match packet.kind {
            Kind::Data | Kind::Ack => {
                let port = next_hop(&self.switches[index].routes, &self.directory, packet);
                self.send(index, from, port, packet.at_ps, *packet);
            }
            Kind::Aggregation => self.run_program(index, from, packet),
            Kind::Pause => self.take_pause(index, from, packet),
        }
    }

    /// Offers a packet that has come in at port `from` to the queue of another.
    #[inline]
    pub(super) fn send(&mut self, index: usize, from: u16, port: usize, now_ps: u64, packet: Packet) {
        let switch = &self.switches[index];
        let ports = switch.ports;
        let link = self.outlets[ports.first as usize + port];
        let is_taken = if switch.buffers.is_some() {
            self.send_within(index, from, port, now_ps, packet)
        } else {
            let link = &mut self.links[link as usize];
            link.offer(&self.classes[usize::from(link.class)], now_ps, &packet)
        };
        if !is_taken {
            forget(&packet, &mut self.datagrams);
        }
        self.note_sent(ports, port, link);
    }

    /// The same where queues share memory.
    fn send_within(&mut self, index: usize, from: u16, port: usize, now_ps: u64, packet: Packet) -> bool {
        self.settle(index, now_ps);
        let switch = &mut self.switches[index];
        let Some(buffers) = &mut switch.buffers else { return false };
        let link = &mut self.links[self.outlets[switch.ports.first as usize + port] as usize];
        let class = &self.classes[usize::from(link.class)];
        link.start_until(class, now_ps);
        let class = buffers.class(class, link);
        let is_taken = link.offer_counted(&class, now_ps, &packet);
        if let Some(order) = buffers.note(from, port, packet.bytes, link) {
            self.give_order(index, order, now_ps);
        }
        is_taken
    }

    /// Sees what has left the queues.
    fn settle(&mut self, index: usize, now_ps: u64) {
        let switch = &mut self.switches[index];
        let Some(buffers) = &mut switch.buffers else { return };
        for port in 0..switch.ports.count as usize {
            if buffers.has_waiting(port) {
                let link = &mut self.links[self.outlets[switch.ports.first as usize + port] as usize];
                link.start_until(&self.classes[usize::from(link.class)], now_ps);
                buffers.settle(port, link);
            }
        }
    }

    /// Sees what has left the queues by the end of a window, and whose senders may go on.
    pub(super) fn end_pauses(&mut self, index: usize, end_ps: u64) {
        self.settle(index, end_ps - 1);
        let Switch { ports, buffers, .. } = &self.switches[index];
        for port in 0..ports.count as usize {
            match buffers {
                Some(buffers) if buffers.has_waiting(port) => ports.set(&mut self.unfinished, port),
                _ if self.ends[self.outlets[ports.first as usize + port] as usize].is_none() => {
                    ports.clear(&mut self.unfinished, port);
                }
                _ => {}
            }
        }
        while let Some(order) = self.switches[index].buffers.as_mut().and_then(Buffers::next_resumed) {
            self.give_order(index, order, end_ps - 1);
        }
    }

    /// Puts a datagram into the buffer of the switch's accelerator; it comes back when its turn is over.
    fn enter_accelerator(&mut self, index: usize, from: u16, packet: &Packet) {
        let Switch { ports, accelerator, .. } = &mut self.switches[index];
        let (ports, Some(accelerator)) = (*ports, accelerator) else { return };
        let port = usize::from(accelerator.way_in());
        let outlet = self.outlets[ports.first as usize + port];
        let link = &mut self.links[outlet as usize];
        let class = &self.classes[usize::from(link.class)];
        let (is_taken, order) = accelerator.offer(class, link, from, packet);
        if !is_taken {
            forget(packet, &mut self.datagrams);
        }
        if let Some(order) = order {
            self.give_order(index, order, packet.at_ps);
        }
        self.note_sent(ports, port, outlet);
    }

    /// Sees what the accelerator has begun by the end of a window, and whose senders may go on.
    pub(super) fn end_accelerator_pauses(&mut self, index: usize, end_ps: u64) {
        while let Switch { ports, accelerator: Some(accelerator), .. } = &mut self.switches[index] {
            let link = self.outlets[ports.first as usize + usize::from(accelerator.way_in())];
            let link = &mut self.links[link as usize];
            let class = &self.classes[usize::from(link.class)];
            let Some(order) = accelerator.next_resumed(class, link, end_ps - 1) else { return };
            self.give_order(index, order, end_ps - 1);
        }
    }

    /// Tells the sender at a port's other end to stop or to go on.
    fn give_order(&mut self, index: usize, order: Order, now_ps: u64) {
        let switch = &mut self.switches[index];
        switch.outcome.emitted += 1;
        switch.outcome.pauses += u64::from(order.is_pause);
        let ports = switch.ports;
        let outlet = self.outlets[ports.first as usize + usize::from(order.port)];
        let frame = Packet {
            number: order.is_pause.into(),
            bytes: PAUSE_BYTES,
            destination: NO_HOST,
            kind: Kind::Pause,
            ..Packet::default()
        };
        let link = &mut self.links[outlet as usize];
        link.offer_first(&self.classes[usize::from(link.class)], now_ps, &frame);
        self.note_sent(ports, order.port.into(), outlet);
    }

    pub(super) fn take_pause(&mut self, index: usize, port: u16, frame: &Packet) {
        let switch = &mut self.switches[index];
        switch.outcome.taken += 1;
        let link = &mut self.links[self.outlets[switch.ports.first as usize + usize::from(port)] as usize];
        link.obey(&self.classes[usize::from(link.class)], frame);
    }

    /// Hands a datagram to the program of its group, or sends it on where there is none.
    pub(super) fn run_program(&mut self, index: usize, from: u16, packet: &Packet) {
        let switch = &mut self.switches[index];
        let ports = switch.ports;
        let Some(program) = switch.programs.get_mut(packet.peer) else {
            if packet.destination == NO_HOST {
                let group = packet.peer;
                switch.failure.get_or_insert_with(|| format!("a datagram of group {group} has no program here"));
                return;
            }
            let port = next_hop(&switch.routes, &self.directory, packet);
            return self.send(index, from, port, packet.at_ps, *packet);
        };
        let mut from = from;
        if let Some(accelerator) = switch.accelerator.as_ref().filter(|_| program.is_paced()) {
            if from != accelerator.way_out() {
                return self.enter_accelerator(index, from, packet);
            }
            from = Accelerator::came_from(packet);
        }
        let id = DatagramId::from_raw(packet.flow);
        let (mut bytes, length) = ([0; DATAGRAM_BYTES_MAX], self.datagrams.get(id).len());
        bytes[..length].copy_from_slice(self.datagrams.get(id));
        self.datagrams.release(id);
        let now = time(packet.at_ps);
        let arrival = Arrival {
            now,
            group: packet.peer,
            port: from,
            destination: packet.destination,
            is_marked: packet.flags & MARKED != 0,
            datagram: &bytes[..length],
        };
        let mut sends = std::mem::take(&mut self.sends);
        let outlets = ports.first as usize..(ports.first + ports.count) as usize;
        let mut queues = PortQueues {
            links: &mut self.links,
            outlets: &self.outlets[outlets],
            classes: &self.classes,
            now_ps: packet.at_ps,
            routes: &switch.routes,
            directory: &self.directory,
        };
        let mut outbox = Outbox::new(
            now,
            switch.index,
            self.paths,
            &mut self.datagrams,
            &mut queues,
            &mut sends,
            &mut switch.failure,
        );
        program.process(&arrival, &mut outbox);
        switch.outcome.taken += 1;
        for (port, sent) in sends.drain(..) {
            if sent.kind == Kind::Pause {
                self.give_order(index, Order { port, is_pause: sent.number > 0 }, packet.at_ps);
                continue;
            }
            self.switches[index].outcome.emitted += 1;
            self.send(index, from, usize::from(port), packet.at_ps, sent);
        }
        self.sends = sends;
    }
}
