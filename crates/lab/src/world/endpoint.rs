//! Workers of both systems behind one face.

use fanin_protocol::stream::Submission;
use fanin_protocol::time::Time;
use fanin_protocol::{DropReason, atp, switchml};

use super::contents::Memory;

/// A worker of one lane.
pub(super) enum Worker {
    Atp(Box<atp::Worker>),
    Static(Box<switchml::Worker>),
}

/// One lane of one rank.
pub(super) struct Endpoint {
    pub job: usize,
    pub rank: u16,
    pub lane: u16,
    pub host: usize,
    pub worker: Worker,
    pub memory: Memory,
    /// When the world looks at its timer next.
    pub wakes_at: Option<Time>,
}

/// What a worker tells the world.
pub(super) enum Outcome {
    Completed,
    Refused(DropReason),
}

impl Endpoint {
    pub fn submit(&mut self, submission: Submission) {
        match &mut self.worker {
            Worker::Atp(worker) => worker.submit(submission),
            Worker::Static(worker) => worker.submit(submission),
        }
    }

    pub fn handle_packet(&mut self, now: Time, datagram: &[u8]) {
        match &mut self.worker {
            Worker::Atp(worker) => worker.handle_packet(now, datagram, &mut self.memory),
            Worker::Static(worker) => worker.handle_packet(now, datagram, &mut self.memory),
        }
    }

    pub fn handle_timeout(&mut self, now: Time) {
        match &mut self.worker {
            Worker::Atp(worker) => worker.handle_timeout(now),
            Worker::Static(worker) => worker.handle_timeout(now),
        }
    }

    pub fn poll_transmit(&mut self, now: Time, output: &mut [u8]) -> Option<usize> {
        match &mut self.worker {
            Worker::Atp(worker) => worker.poll_transmit(now, &mut self.memory, output),
            Worker::Static(worker) => worker.poll_transmit(now, &mut self.memory, output),
        }
    }

    pub fn poll_timeout(&self) -> Option<Time> {
        match &self.worker {
            Worker::Atp(worker) => worker.poll_timeout(),
            Worker::Static(worker) => worker.poll_timeout(),
        }
    }

    pub fn poll_event(&mut self) -> Option<Outcome> {
        match &mut self.worker {
            Worker::Atp(worker) => std::iter::from_fn(|| worker.poll_event()).find_map(|event| match event {
                atp::Event::Completed { .. } => Some(Outcome::Completed),
                // Nobody is lost here.
                atp::Event::SourceLost { .. } | atp::Event::Overflowed { .. } => None,
                atp::Event::Refused { reason, .. } => Some(Outcome::Refused(reason)),
            }),
            Worker::Static(worker) => worker.poll_event().map(|event| match event {
                switchml::Event::Completed { .. }
                | switchml::Event::NonFinite(_)
                | switchml::Event::Overflowed { .. } => Outcome::Completed,
                switchml::Event::Refused { reason, .. } => Outcome::Refused(reason),
            }),
        }
    }
}
