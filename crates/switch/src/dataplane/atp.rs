//! ATP's switch program on one data-plane thread: where packets go up, and what is known of a job.

use std::net::SocketAddr;

use fanin_protocol::atp::{Context, JobConfig, Switch, SwitchConfig, SwitchCounters, Verdict};
use fanin_protocol::switchml::Admitted;
use fanin_protocol::tensor_counts::TensorCounts;
use fanin_protocol::time::Time;
use fanin_wire::generated::{ATP_HEADER_BYTES, ATP_JOB_ID_OFFSET, ATP_KIND_OFFSET, ATP_LANE_OFFSET, AtpKind};

use super::peers::Peers;
use crate::dataplane_api::{AtpInstall, InstallError, JobInspection, JobInstall, LaneInspection, WorkerSeen};

/// What the program does not know of a job.
struct Way {
    job_id: u32,
    /// By lane.
    up: Vec<SocketAddr>,
    /// By child: when it was heard last.
    last_seen: Vec<Option<Time>>,
}

pub(super) struct AtpProgram {
    switch: Switch,
    config: SwitchConfig,
    /// By job number.
    ways: Vec<Option<Way>>,
    /// The queue as it was when a batch of datagrams had come, and which batch.
    queue: (u64, u32),
}

impl AtpProgram {
    pub fn new(config: SwitchConfig) -> AtpProgram {
        AtpProgram { switch: Switch::new(config), config, ways: Vec::new(), queue: (0, 0) }
    }

    pub fn install(&mut self, job: &JobInstall, part: &AtpInstall) -> Result<(), InstallError> {
        if job.element_count_max > self.config.element_count_max {
            let what = format!(
                "packets of {} elements for ATP; its slots here hold {}",
                job.element_count_max, self.config.element_count_max
            );
            return Err(InstallError::Unsupported { what });
        }
        if part.up.len() != usize::from(job.lane_count) || self.config.slot_count == 0 {
            let what = "ATP jobs: it has no slots for them, or was not told where their servers are".into();
            return Err(InstallError::Unsupported { what });
        }
        let config = JobConfig {
            job_id: job.job_id,
            job_token: job.job_token,
            lane_count: job.lane_count,
            level: part.level,
            accumulator: job.accumulator,
            worker_count: job.world_size,
        };
        let number = usize::from(job.job_id as u8);
        self.switch.install(config).map_err(|error| match error {
            fanin_protocol::atp::InstallError::JobNumberInUse => {
                InstallError::JobNumberInUse { job_number: number as u8 }
            }
            fanin_protocol::atp::InstallError::Accumulator => InstallError::Unsupported {
                what: format!("the accumulator {} for ATP at level {}", job.accumulator.label(), part.level),
            },
        })?;
        if self.ways.len() <= number {
            self.ways.resize_with(number + 1, || None);
        }
        let last_seen = vec![None; part.children.len()];
        self.ways[number] = Some(Way { job_id: job.job_id, up: part.up.clone(), last_seen });
        Ok(())
    }

    pub fn remove(&mut self, job_id: u32) -> bool {
        if let Some(way) = self.ways.get_mut(usize::from(job_id as u8))
            && way.as_ref().is_some_and(|way| way.job_id == job_id)
        {
            *way = None;
        }
        self.switch.remove(job_id)
    }

    /// Where a datagram goes if the program lets it pass, for those that go up. It has not been checked yet.
    pub fn up(&self, datagram: &[u8]) -> Option<SocketAddr> {
        let kind = *datagram.get(ATP_KIND_OFFSET)?;
        if kind != AtpKind::Fragment as u8 && kind != AtpKind::Probe as u8 {
            return None;
        }
        let lane = datagram.get(ATP_LANE_OFFSET..ATP_LANE_OFFSET + 2)?;
        let way = self.ways.get(usize::from(self.job_number(datagram)?))?.as_ref()?;
        way.up.get(usize::from(u16::from_be_bytes([lane[0], lane[1]]))).copied()
    }

    /// The number of the job that a datagram names, if it is here. It has not been checked yet.
    pub fn job_number(&self, datagram: &[u8]) -> Option<u8> {
        let id = datagram.get(..ATP_HEADER_BYTES)?.get(ATP_JOB_ID_OFFSET..ATP_JOB_ID_OFFSET + 4)?;
        let id = u32::from_be_bytes([id[0], id[1], id[2], id[3]]);
        let way = self.ways.get(usize::from(id as u8))?.as_ref()?;
        (way.job_id == id).then_some(id as u8)
    }

    /// The length of the queue behind this thread's port, read once in each batch of datagrams.
    pub fn queue_bytes(&mut self, batch: u64, read: impl FnOnce() -> u32) -> u32 {
        if self.queue.0 != batch {
            self.queue = (batch, read());
        }
        self.queue.1
    }

    pub fn process(&mut self, context: &Context, datagram: &[u8], output: &mut [u8]) -> Verdict {
        self.switch.process(context, datagram, output)
    }

    /// Which child sent what was processed last, if it was admitted.
    pub fn sender(&self) -> Option<Admitted> {
        let sender = self.switch.admitted()?;
        Some(Admitted { job_number: sender.job_number, lane: sender.lane, rank: sender.child.into() })
    }

    pub fn saw(&mut self, sender: Admitted, now: Time) {
        let way = self.ways.get_mut(usize::from(sender.job_number)).and_then(Option::as_mut);
        if let Some(seen) = way.and_then(|way| way.last_seen.get_mut(usize::from(sender.rank))) {
            *seen = Some(now);
        }
    }

    pub fn counters(&self) -> &SwitchCounters {
        self.switch.counters()
    }

    pub fn job_counters(&self, job_id: u32) -> Option<&SwitchCounters> {
        self.switch.job_counters(job_id)
    }

    pub fn job_tensors(&self, job_id: u32) -> &[TensorCounts] {
        self.switch.job_tensors(job_id)
    }

    /// What this thread knows of a job: slots and the workers beside it. Whom a chunk waits for, its server knows.
    pub fn inspect(&self, job: &JobInstall, part: &AtpInstall, now: Time, peers: &Peers) -> JobInspection {
        let job_number = job.job_id as u8;
        let last_seen = self.ways.get(usize::from(job_number)).and_then(Option::as_ref).map(|way| &way.last_seen);
        let child_of = |rank| part.children.iter().position(|contributor| *contributor == Some(rank));
        let worker = |rank| {
            let child = child_of(rank);
            let seen = child.and_then(|child| *last_seen?.get(child)?);
            WorkerSeen {
                rank,
                address: child.and_then(|child| peers.address(job_number, child as u16)),
                last_seen_ms: seen.map(|at| now.since(at).as_ns() / 1_000_000),
            }
        };
        JobInspection {
            slots_in_use: self.switch.slots_in_use(Some(job.job_id)) as u32,
            lanes: (0..job.lane_count).map(|lane| LaneInspection { lane, ..LaneInspection::default() }).collect(),
            workers: (0..job.world_size).map(worker).collect(),
        }
    }
}

/// Datagrams that a verdict sends, and their bytes.
pub(super) fn copies(verdict: &Verdict, peers: &Peers) -> (u64, u64) {
    match *verdict {
        Verdict::Drop(_) => (0, 0),
        Verdict::Refuse { bytes, .. } | Verdict::Up { bytes } => (1, bytes as u64),
        Verdict::Down { job_number, lane, bytes, children, payload_child } => {
            let known = peers.group(job_number, lane).iter().enumerate();
            let is_meant = |child: usize| child < 32 && children >> child & 1 == 1;
            let copies = known.filter(|(child, address)| is_meant(*child) && address.is_some()).count() as u64;
            match payload_child {
                Some(_) => (copies, bytes as u64 + copies.saturating_sub(1) * ATP_HEADER_BYTES as u64),
                None => (copies, bytes as u64 * copies),
            }
        }
    }
}
