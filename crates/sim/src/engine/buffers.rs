//! The memory of one switch, shared by its queues: a limit that follows what is free (dynamic threshold, Choudhury and Hahne 1998), and pause frames
//! to whoever sends more than can be kept (IEEE 802.3 annex 31B).
//!
//! A packet counts for the port that it came in at for as long as it waits. Departures are seen when the switch looks: before it takes a packet, and at the end of
//! each window. So a pause is never late, and what ends one is late by a window at most.

use std::collections::VecDeque;

use crate::link::{Class, Link};

/// What a switch's queues share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Memory {
    /// All of it.
    pub bytes: u64,
    /// A queue may have so many times what is free.
    pub share: f64,
    /// When ports are paused, if they are at all.
    pub pause: Option<Pause>,
}

/// Bytes from one port, of packets that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Beyond this the port's sender is paused.
    pub above_bytes: u64,
    /// Below this it goes on.
    pub below_bytes: u64,
}

/// Whether a port's sender is to stop or to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    pub port: u16,
    pub is_pause: bool,
}

/// What waits in one switch.
#[derive(Debug)]
pub struct Buffers {
    memory: Memory,
    used_bytes: u64,
    /// By port, what waits there, oldest first: where it came in, and its length.
    queues: Vec<VecDeque<(u16, u16)>>,
    /// By port, what came in there and waits.
    from: Vec<u64>,
    is_paused: Vec<bool>,
}

impl Buffers {
    /// Empty.
    pub fn new(memory: Memory, port_count: usize) -> Buffers {
        Buffers {
            memory,
            used_bytes: 0,
            queues: vec![VecDeque::new(); port_count],
            from: vec![0; port_count],
            is_paused: vec![false; port_count],
        }
    }

    /// All that queues share.
    pub fn memory_bytes(&self) -> u64 {
        self.memory.bytes
    }

    /// Forgets what has left a port's queue since the last look.
    pub fn settle(&mut self, port: usize, link: &Link) {
        while self.queues[port].len() as u64 > link.waiting_count() {
            let Some((from, bytes)) = self.queues[port].pop_front() else { return };
            self.used_bytes -= u64::from(bytes);
            self.from[usize::from(from)] -= u64::from(bytes);
        }
    }

    /// The queue's class, with the limit of this moment.
    pub fn class(&self, class: &Class, link: &Link) -> Class {
        let free = self.memory.bytes - self.used_bytes;
        let all = link.queued_bytes() + free;
        let limit = match self.memory.pause {
            // Whoever may not lose has all that is there.
            Some(_) => all,
            None => all.min((self.memory.share * free as f64) as u64),
        };
        class.with_queue_bytes_max(limit)
    }

    /// A packet was offered at a port's queue; if it waits now, it counts. Says if its sender is to be paused.
    pub fn note(&mut self, from: u16, port: usize, bytes: u16, link: &Link) -> Option<Order> {
        if self.queues[port].len() as u64 >= link.waiting_count() {
            return None;
        }
        self.queues[port].push_back((from, bytes));
        self.used_bytes += u64::from(bytes);
        let kept = &mut self.from[usize::from(from)];
        *kept += u64::from(bytes);
        let above = self.memory.pause?.above_bytes;
        let is_new = *kept > above && !std::mem::replace(&mut self.is_paused[usize::from(from)], *kept > above);
        is_new.then_some(Order { port: from, is_pause: true })
    }

    /// Whether something waited at a port at the last look.
    pub fn has_waiting(&self, port: usize) -> bool {
        !self.queues[port].is_empty()
    }

    /// A port that may go on, if there is one; it counts as told.
    pub fn next_resumed(&mut self) -> Option<Order> {
        let below = self.memory.pause?.below_bytes;
        let port = (0..self.from.len()).find(|&port| self.is_paused[port] && self.from[port] < below)?;
        self.is_paused[port] = false;
        Some(Order { port: port as u16, is_pause: false })
    }
}
