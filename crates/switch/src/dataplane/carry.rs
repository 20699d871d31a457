//! Jobs of the XDP program, as far as a data-plane thread takes part: Aggregates that the program completes but cannot
//! send come up to the thread's socket, and the thread sends them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crossbeam_channel::Sender;
use fanin_net::Counters;
use fanin_wire::fanin;
use fanin_wire::generated::{MAGIC, VERSION};
use fanin_xdp::Carrier;

use super::publish::JobTraffic;
use crate::dataplane_api::{JobInstall, TrafficCounters};

/// How every datagram in fanin's layout begins.
const BEGIN: [u8; 3] = [(MAGIC >> 8) as u8, MAGIC as u8, VERSION];

/// A job's datagrams that should have been the program's came up all the same: a worker's frames arrive by an interface
/// without the program, or in a form that it does not read.
#[derive(Clone)]
pub(super) struct Strays {
    state: Arc<AtomicU8>,
    reports: Sender<u32>,
}

const UNSEEN: u8 = 0;
const REPORTED: u8 = 1;
const STAYS: u8 = 2;

impl Strays {
    /// Reports are job ids.
    pub fn new(reports: Sender<u32>) -> Strays {
        Strays { state: Arc::default(), reports }
    }

    /// The job cannot be moved: its strays are refused.
    pub fn give_up(&self) {
        self.state.store(STAYS, Ordering::Relaxed);
    }

    /// Reports the first one. Returns whether the job may be moved to the sockets soon, so that its workers had better try
    /// again than be refused.
    fn report(&self, job_id: u32) -> bool {
        let before = self.state.compare_exchange(UNSEEN, REPORTED, Ordering::Relaxed, Ordering::Relaxed);
        if before.is_ok() {
            // Without a receiver the switch is about to stop.
            let _ = self.reports.send(job_id);
        }
        before != Err(STAYS)
    }
}

/// A job of the program.
#[derive(Clone)]
pub(super) struct CarriedJob {
    pub install: JobInstall,
    pub carrier: Carrier,
    pub strays: Strays,
    /// The batch of datagrams in which its workers' addresses were read last, by lane.
    addresses_of_batch: Vec<u64>,
}

impl CarriedJob {
    pub fn new(install: JobInstall, carrier: Carrier, strays: Strays) -> CarriedJob {
        let addresses_of_batch = vec![0; usize::from(install.lane_count)];
        CarriedJob { install, carrier, strays, addresses_of_batch }
    }

    /// Whether the addresses of a lane have to be read again: once in each batch, so that they are as new as the sums.
    pub fn addresses_are_old(&mut self, lane: u16, batch: u64) -> bool {
        let of_batch = self.addresses_of_batch.get_mut(usize::from(lane));
        of_batch.is_some_and(|of_batch| std::mem::replace(of_batch, batch) != batch)
    }

    /// Whether a datagram is a worker's of this job, whole: a damaged or forged one must not move the job.
    pub fn is_workers(&self, datagram: &[u8]) -> bool {
        let parse = if self.install.has_checksum { fanin::Header::parse } else { fanin::Header::parse_unsummed };
        parse(datagram).is_ok_and(|(header, _)| header.job_token == self.install.job_token)
    }

    /// Whether a stray datagram is only dropped.
    pub fn report_stray(&self) -> bool {
        self.strays.report(self.install.job_id)
    }
}

/// The program's jobs, and what was carried for them.
#[derive(Default)]
pub(super) struct Carrying {
    jobs: Vec<CarriedJob>,
    /// Counted by the program as well, sent datagrams included.
    pub traffic: JobTraffic,
    /// Datagrams dropped while their job was about to be moved.
    pub stray_datagrams: u64,
}

impl Carrying {
    pub fn insert(&mut self, job: CarriedJob) {
        self.jobs.push(job);
    }

    pub fn remove(&mut self, job_id: u32) -> bool {
        let count = self.jobs.len();
        self.jobs.retain(|job| job.install.job_id != job_id);
        self.jobs.len() < count
    }

    /// The program's job that a datagram names.
    pub fn find(&mut self, datagram: &[u8]) -> Option<&mut CarriedJob> {
        // What the program takes for another layout or version is no stray.
        if self.jobs.is_empty() || !datagram.starts_with(&BEGIN) {
            return None;
        }
        let header = fanin::Header::parse_unchecked(datagram)?;
        self.jobs.iter_mut().find(|job| job.install.job_id == header.job_id)
    }

    /// A socket's counters without what the program has counted.
    pub fn without(&self, net: &Counters) -> TrafficCounters {
        TrafficCounters {
            received_datagrams: net.datagrams_received.saturating_sub(self.traffic.received_datagrams),
            received_bytes: net.bytes_received.saturating_sub(self.traffic.received_bytes),
            sent_datagrams: net.datagrams_sent.saturating_sub(self.traffic.sent_datagrams),
            sent_bytes: net.bytes_sent.saturating_sub(self.traffic.sent_bytes),
            ..TrafficCounters::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_stray_is_reported_and_the_others_wait() {
        let (sender, reports) = crossbeam_channel::unbounded();
        let strays = Strays::new(sender);
        assert!(strays.report(7) && strays.clone().report(7));
        assert_eq!(reports.try_iter().collect::<Vec<_>>(), [7]);
        strays.give_up();
        assert!(!strays.report(7), "refused from now on");
    }
}
