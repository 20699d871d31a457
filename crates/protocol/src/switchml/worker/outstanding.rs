//! Slots whose packet is out, least recently sent first.
//!
//! An intrusive list over slot numbers: constant time to append, to remove
//! anywhere and to look at the oldest, and no allocation after set-up.

use alloc::vec;
use alloc::vec::Vec;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    previous: u32,
    next: u32,
    listed: bool,
}

#[derive(Clone, Debug)]
pub(super) struct OutstandingList {
    links: Vec<Link>,
    first: u32,
    last: u32,
    len: u32,
}

impl OutstandingList {
    pub fn new(slot_count: usize) -> OutstandingList {
        let link = Link { previous: NONE, next: NONE, listed: false };
        OutstandingList { links: vec![link; slot_count], first: NONE, last: NONE, len: 0 }
    }

    pub fn len(&self) -> u32 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn oldest(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    /// All of them, least recently sent first.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        core::iter::successors(self.oldest(), |&slot| {
            let next = self.links[slot as usize].next;
            (next != NONE).then_some(next)
        })
    }

    pub fn contains(&self, slot: u32) -> bool {
        self.links[slot as usize].listed
    }

    pub fn push(&mut self, slot: u32) {
        debug_assert!(!self.contains(slot));
        self.links[slot as usize] = Link { previous: self.last, next: NONE, listed: true };
        match self.last {
            NONE => self.first = slot,
            last => self.links[last as usize].next = slot,
        }
        self.last = slot;
        self.len += 1;
    }

    pub fn remove(&mut self, slot: u32) {
        let Link { previous, next, listed } = self.links[slot as usize];
        if !listed {
            return;
        }
        match previous {
            NONE => self.first = next,
            previous => self.links[previous as usize].next = next,
        }
        match next {
            NONE => self.last = previous,
            next => self.links[next as usize].previous = previous,
        }
        self.links[slot as usize].listed = false;
        self.len -= 1;
    }
}
