//! Accelerators of a rate beside their switches (PANAMA §5: packets to be aggregated wait in buffers of their own, by port, apart from all others). A
//! port's sender is paused before its buffer is full (§4.2).
//!
//! An accelerator is a link from its switch to itself: what waits for the link is the buffer, and what comes in at its other end is handled at once.

use super::buffers::{Buffers, Memory, Order};
use super::{Plan, WINDOW_PS_MAX};
use crate::fabric::{Cable, Port};
use crate::link::{Class, Link, LinkConfig};
use crate::packet::Packet;

/// What all accelerators are like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Accelerators {
    /// Bits per second that one takes in, of packets as long as on a link.
    pub rate_bps: u64,
    /// Its buffers, and when ports are paused.
    pub memory: Memory,
}

/// Gives each switch with a paced program its link to itself, after all other cables. A packet takes as long to
/// pass as a window is, the least that leaves windows as they are.
pub fn connect_accelerators(plan: &mut Plan) {
    let Some(accelerators) = plan.accelerators else { return };
    let delays = plan.fabric.cables.iter().flat_map(|cable| cable.links).map(|link| link.delay_ps);
    let link = LinkConfig {
        rate_bps: accelerators.rate_bps,
        delay_ps: delays.min().unwrap_or(0).min(WINDOW_PS_MAX),
        queue_bytes_max: accelerators.memory.bytes,
        mark_bytes: u64::MAX,
        corruption: 0.0,
    };
    for (node, programs) in (plan.fabric.host_count..).zip(&plan.programs) {
        if programs.has_paced() {
            plan.fabric.cables.push(Cable { ends: [node; 2], links: [link; 2] });
        }
    }
}

/// One accelerator, as its switch sees it.
#[derive(Debug)]
pub struct Accelerator {
    /// The port that sends to it; the next one is where packets come back.
    port: u16,
    /// Of one queue.
    buffers: Buffers,
}

impl Accelerator {
    /// That of a node with these ports, if it has one.
    pub fn at(node: u32, ports: &[Port], accelerators: Option<&Accelerators>) -> Option<Accelerator> {
        let port = ports.iter().position(|port| port.neighbour == node)? as u16;
        Some(Accelerator { port, buffers: Buffers::new(accelerators?.memory, ports.len()) })
    }

    /// The port that sends to it.
    pub fn way_in(&self) -> u16 {
        self.port
    }

    /// The port at which packets come back.
    pub fn way_out(&self) -> u16 {
        self.port + 1
    }

    /// The port at which a packet that comes back had come to the switch.
    pub fn came_from(packet: &Packet) -> u16 {
        packet.source
    }

    /// Takes a packet from a port: whether there was room, and whether that port's sender is to stop.
    pub fn offer(&mut self, class: &Class, link: &mut Link, from: u16, packet: &Packet) -> (bool, Option<Order>) {
        link.start_until(class, packet.at_ps);
        self.buffers.settle(0, link);
        // Datagrams have no other use for the source.
        let is_taken = link.offer_counted(class, packet.at_ps, &Packet { source: from, ..*packet });
        (is_taken, self.buffers.note(from, 0, packet.bytes, link))
    }

    /// A port whose sender may go on at `now_ps`; it counts as told.
    pub fn next_resumed(&mut self, class: &Class, link: &mut Link, now_ps: u64) -> Option<Order> {
        link.start_until(class, now_ps);
        self.buffers.settle(0, link);
        self.buffers.next_resumed()
    }
}
