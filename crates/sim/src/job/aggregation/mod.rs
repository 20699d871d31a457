//! The face of protocols that aggregate in the network. Another protocol needs these two traits and nothing else of the simulator:
//!
//! * An [`Endpoint`] is what one rank of a job runs, for all trees that the job has. The host asks it for a datagram whenever its
//!   link is free and it is its turn among the host's flows (`poll_transmit`), hands datagrams and timeouts to it, and is told when
//!   a collective is done. Nothing is called between these, so an endpoint is asked again only after one of them.
//! * A [`Program`] is what one switch runs for one or more *groups*. A group is one tree of one job; its number is given when trees are built.
//!   A datagram of a group that comes to a switch with a program for it is handed over; elsewhere it is forwarded to its destination.
//!
//! Both are called at exact times, in the order of arrivals (equal times: of ports), from one thread at a time. They must not depend on
//! anything else, or runs on several threads would differ. They may not send back in time: what they send leaves at `now` or when the port is free.
//!
//! Datagrams are whole but for the payload, of which a few bytes stand for all: what they take on a link is said beside them
//! ([`Wire`]). So the protocols' own values run unchanged, and sums can be checked.

mod outbox;

use fanin_protocol::time::Time;

pub(crate) use outbox::packet_of;
pub use outbox::{Outbox, Queues};

/// Most bytes of a datagram in the simulator: the longest header and a few elements.
pub const DATAGRAM_BYTES_MAX: usize = 128;

/// How a datagram travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wire {
    /// Bytes on a link, of headers of all layers, the payload that is meant, and what Ethernet adds.
    pub bytes: u16,
    /// One tree of one job.
    pub group: u32,
    /// Whom it is for, where no program takes it before; [`crate::packet::NO_HOST`] if it goes to the next node.
    pub destination: u16,
    /// Queues may mark it (ECN: ECT).
    pub is_markable: bool,
    /// It is marked already (ECN: CE).
    pub is_marked: bool,
}

/// A datagram that an endpoint sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Its length in the buffer.
    pub length: usize,
    /// How it travels.
    pub wire: Wire,
}

/// A datagram that has arrived.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// When, in whole nanoseconds from the start.
    pub now: Time,
    /// One tree of one job.
    pub group: u32,
    /// Port that it came in at.
    pub port: u16,
    /// Host that it is for, or [`crate::packet::NO_HOST`].
    pub destination: u16,
    /// A queue on the way has marked it.
    pub is_marked: bool,
    /// Header and elements.
    pub datagram: &'a [u8],
}

/// What an endpoint tells its rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The oldest collective that was not complete is.
    Completed,
    /// It cannot go on: a datagram was refused, or a sum was wrong.
    Failed(String),
}

/// What a rank's datagrams went through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointCounters {
    /// Datagrams with a payload that were sent more than once.
    pub resent: u64,
    /// Questions whether an answer was missed or a datagram lost.
    pub asked: u64,
    /// Sums taken and found to be right.
    pub sums: u64,
    /// Of these, sums that some rank is not in: found to be within bounds, the others to be exact.
    pub partial: u64,
}

/// What one rank of a job runs.
pub trait Endpoint: Send + std::fmt::Debug {
    /// All of the next collective is there to be sent.
    fn submit(&mut self, now: Time);
    /// Writes the next datagram to `output`, of [`DATAGRAM_BYTES_MAX`] bytes, if there is one.
    fn poll_transmit(&mut self, now: Time, output: &mut [u8]) -> Option<Transmit>;
    /// Takes a datagram.
    fn handle_packet(&mut self, arrival: &Arrival);
    /// When [`Endpoint::handle_timeout`] is due.
    fn poll_timeout(&self) -> Option<Time>;
    /// Its time has come.
    fn handle_timeout(&mut self, now: Time);
    /// What has happened since the last call.
    fn poll_event(&mut self) -> Option<Event>;
    /// What its datagrams went through.
    fn counters(&self) -> EndpointCounters;
}

/// What one switch runs.
pub trait Program: Send + std::fmt::Debug {
    /// Takes a datagram, and sends what follows from it.
    fn process(&mut self, arrival: &Arrival, outbox: &mut Outbox);
    /// Whether it takes datagrams at the rate of the switch's accelerator only, where that has one ([`crate::engine::Accelerators`]).
    fn is_paced(&self) -> bool {
        false
    }
    /// What must not be and is, if anything: looked at now and then during a run.
    fn check(&self) -> Option<String> {
        None
    }
}

/// A switch's programs.
#[derive(Debug, Default)]
pub struct Programs {
    /// By group: the program's place and one, or 0 where there is none.
    of_group: Vec<u32>,
    programs: Vec<Box<dyn Program>>,
}

impl Programs {
    /// True if nothing aggregates here.
    pub fn is_empty(&self) -> bool {
        self.programs.is_empty()
    }

    /// Adds a program for some groups.
    ///
    /// # Panics
    /// If another program has one of them.
    pub fn add(&mut self, program: Box<dyn Program>, groups: impl IntoIterator<Item = u32>) {
        self.programs.push(program);
        for group in groups {
            let group = group as usize;
            self.of_group.resize(self.of_group.len().max(group + 1), 0);
            assert_eq!(self.of_group[group], 0, "one program of a switch for a group");
            self.of_group[group] = self.programs.len() as u32;
        }
    }

    /// Whether any of them is paced.
    pub fn has_paced(&self) -> bool {
        self.programs.iter().any(|program| program.is_paced())
    }

    /// The first thing that must not be.
    pub fn check(&self) -> Option<String> {
        self.programs.iter().find_map(|program| program.check())
    }

    /// The program for a group.
    #[inline]
    pub fn get_mut(&mut self, group: u32) -> Option<&mut Box<dyn Program>> {
        let place = *self.of_group.get(group as usize)?;
        self.programs.get_mut((place as usize).wrapping_sub(1))
    }
}
