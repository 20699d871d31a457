//! One simulated worker process: its lanes, its memory and its two links.

use std::rc::Rc;

use fanin_link::{Link, LinkConfig};
use fanin_protocol::DropReason;
use fanin_protocol::switchml::{BlockId, Event, Worker};
use fanin_protocol::time::Time;

use crate::job::{Disturbance, JobPlan};
use crate::memory::Memory;

/// A lane's socket: where Aggregates for it go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// Which host of the cluster.
    pub host: usize,
    /// Which of its lanes.
    pub lane: u16,
}

/// One lane with its timer.
pub struct Lane {
    pub worker: Worker,
    /// The earliest wake-up that is scheduled.
    pub wake_at: Option<Time>,
    /// Packets given to the worker.
    pub handled: u64,
}

/// One worker process.
pub struct Host {
    pub job: usize,
    pub rank: u16,
    pub plan: Rc<JobPlan>,
    pub memory: Memory,
    pub lanes: Vec<Lane>,
    pub up: Link,
    pub down: Link,
    /// Packets that came out of each link.
    pub up_arrived: u64,
    pub down_arrived: u64,
    pub alive: bool,
    /// Why the switch refused this worker's packets.
    pub refusals: Vec<DropReason>,
    /// Lanes that have still to finish each collective.
    pub lanes_left: Vec<usize>,
    /// When a collective last completed.
    pub completed_last: Time,
    /// Blocks received, so that none comes twice.
    pub blocks_received: std::collections::HashSet<(u64, u32)>,
}

impl Host {
    pub fn new(job: usize, plan: &Rc<JobPlan>, rank: u16, up: &LinkConfig, down: &LinkConfig, seed: u64) -> Host {
        let worker = |lane| Worker::new(plan.worker_config(rank, lane));
        let lanes = (0..plan.lane_count).map(|lane| Lane { worker: worker(lane), wake_at: None, handled: 0 }).collect();
        let seed = seed ^ (job as u64) << 40 ^ u64::from(rank) << 20;
        let [up, down] = cut(&plan.disturbance, rank, up, down);
        let (k, n) = (plan.element_count_max, plan.worker_count);
        let lanes_left =
            |collective: &Rc<crate::collective::Collective>| collective.submissions(n, plan.lane_count, k).len();
        Host {
            job,
            rank,
            memory: Memory::new(plan.clone(), rank),
            lanes,
            up: Link::new(up, seed ^ 1),
            down: Link::new(down, seed ^ 2),
            up_arrived: 0,
            down_arrived: 0,
            alive: true,
            refusals: Vec::new(),
            lanes_left: plan.collectives.iter().map(lanes_left).collect(),
            completed_last: Time::ZERO,
            blocks_received: Default::default(),
            plan: plan.clone(),
        }
    }

    /// Whether every collective has completed.
    pub fn is_done(&self) -> bool {
        self.lanes_left.iter().all(|&left| left == 0)
    }
}

/// Takes a lane's events: the blocks that were not finite, and the
/// collectives that it has completed.
pub fn events_of(host: &mut Host, lane: u16) -> (Vec<BlockId>, Vec<u64>) {
    let (mut non_finite, mut done) = (Vec::new(), Vec::new());
    while let Some(event) = host.lanes[usize::from(lane)].worker.poll_event() {
        match event {
            Event::Completed { collective } => done.push(collective),
            Event::NonFinite(id) => non_finite.push(id),
            // Seen in the block's exponent, when it comes again.
            Event::Overflowed { .. } => {}
            Event::Refused { reason, .. } => host.refusals.push(reason),
        }
    }
    (non_finite, done)
}

/// The links of a worker, one direction dead from some time on if its job is
/// disturbed that way.
fn cut(disturbance: &Disturbance, worker: u16, up: &LinkConfig, down: &LinkConfig) -> [LinkConfig; 2] {
    let mut links = [up.clone(), down.clone()];
    if let Disturbance::Cut { rank, at, upward } = *disturbance
        && rank == worker
    {
        links[usize::from(!upward)].dead.push((at, Time::from_ns(u64::MAX)));
    }
    links
}
