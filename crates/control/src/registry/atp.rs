//! What an ATP job is given beside its place: a tree of switches, slots to share, and a server for each lane.

use std::net::SocketAddr;

use fanin_protocol::atp::{Tree, Way};
use fanin_protocol::switchml::Contributed;
use fanin_wire::Accumulator;
use fanin_wire::atp::LEVEL_COUNT_MAX;

use super::Limits;
use crate::topology::{Topology, TreePart};
use crate::{ControlError, ErrorCode, proto};

/// Names one parameter server of its own, for as long as its stream lasts.
pub type ServerId = u64;

/// Who runs a lane's server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerOwner {
    /// The process of this rank.
    Rank(u16),
    /// A server of its own. Workers are not told which.
    Standing(ServerId),
}

/// The parameter server of one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneServer {
    /// Who runs it.
    pub owner: ServerOwner,
    /// Where it is reached from the root of the tree.
    pub address: SocketAddr,
}

/// The same for every rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AtpAssignment {
    /// The switches between contributors and servers.
    pub tree: Tree,
    /// What each switch has to know; the root first. Workers are not told.
    pub parts: Vec<TreePart>,
    /// By contributor: the place of its switch in the topology. Workers are not told.
    pub beside: Vec<usize>,
    /// Slots of each switch that jobs share.
    pub slot_count: u16,
    /// By lane.
    pub servers: Vec<LaneServer>,
}

/// The assignment of a job whose contributors stand beside these switches.
pub(super) fn assign(
    limits: &Limits,
    accumulator: Accumulator,
    beside: Vec<usize>,
    servers: Vec<LaneServer>,
) -> Result<AtpAssignment, ControlError> {
    let job = limits.topology.job_tree(&beside).map_err(|error| {
        ControlError::new(
            ErrorCode::InvalidRequest,
            error.to_string(),
            "Spread the workers over more switches, or use the algorithm switchml",
        )
    })?;
    if accumulator == Accumulator::Exact && job.tree.level_count() > 1 {
        return Err(ControlError::new(
            ErrorCode::InvalidRequest,
            "the accumulator exact with workers beside other switches than the root: each would round its part of the sum",
            "Put all workers beside the root (FANIN_SWITCH_NAME), or use another accumulator: fpisa, ieee",
        ));
    }
    let slot_count = limits.atp_slot_count;
    Ok(AtpAssignment { tree: job.tree, parts: job.parts, beside, slot_count, servers })
}

impl AtpAssignment {
    /// Lanes whose server this rank runs.
    pub fn lanes_of(&self, rank: u16) -> Vec<u16> {
        self.lanes_where(|owner| owner == ServerOwner::Rank(rank))
    }

    /// Lanes that a server of its own serves.
    pub fn lanes_of_standing(&self, server: ServerId) -> Vec<u16> {
        self.lanes_where(|owner| owner == ServerOwner::Standing(server))
    }

    /// Whether a server of its own serves the job.
    pub fn is_served_by(&self, server: ServerId) -> bool {
        self.servers.iter().any(|lane| lane.owner == ServerOwner::Standing(server))
    }

    fn lanes_where(&self, is_meant: impl Fn(ServerOwner) -> bool) -> Vec<u16> {
        (0u16..).zip(&self.servers).filter(|(_, server)| is_meant(server.owner)).map(|(lane, _)| lane).collect()
    }

    /// The job without a contributor that was lost (ATP App. A.3); `None` where it cannot go on, because nobody is left.
    pub(super) fn without(&self, contributor: u16, topology: &Topology) -> Option<AtpAssignment> {
        let tree = self.tree.without(contributor).ok()?;
        let mut atp = AtpAssignment { tree, ..self.clone() };
        let way = self.tree.way(contributor);
        let mut place = *self.beside.get(usize::from(contributor))?;
        for level in way.level..self.tree.level_count() {
            let at = atp.parts.iter().position(|part| part.switch == place)?;
            atp.parts[at].children.remove(way.children[usize::from(level)].into());
            if !atp.parts[at].children.is_empty() {
                break;
            }
            atp.parts.remove(at);
            place = topology.switches()[place].parent?;
        }
        Some(atp)
    }

    /// As it is sent to workers and servers.
    pub fn to_proto(&self) -> proto::AtpJob {
        let levels = |way: &Way, values: &[u8; LEVEL_COUNT_MAX]| {
            values[usize::from(way.level)..usize::from(self.tree.level_count())]
                .iter()
                .map(|&value| value.into())
                .collect()
        };
        let way = |rank| {
            let way = self.tree.way(rank);
            proto::AtpWay {
                level: way.level.into(),
                children: levels(way, &way.children),
                fan_in: levels(way, &way.fan_in),
            }
        };
        let server = |lane: &LaneServer| proto::AtpLaneServer {
            address: lane.address.to_string(),
            rank: match lane.owner {
                ServerOwner::Rank(rank) => Some(rank.into()),
                ServerOwner::Standing(_) => None,
            },
        };
        let lost = (0..self.tree.worker_count()).filter(|&rank| self.tree.lost().contains(rank));
        proto::AtpJob {
            lost: lost.map(u32::from).collect(),
            level_count: self.tree.level_count().into(),
            ways: (0..self.tree.worker_count()).map(way).collect(),
            slot_count: self.slot_count.into(),
            servers: self.servers.iter().map(server).collect(),
        }
    }

    /// As it was sent; `None` for what makes no sense.
    pub fn from_proto(job: &proto::AtpJob) -> Option<AtpAssignment> {
        let level_count = u8::try_from(job.level_count).ok()?;
        let way = |way: &proto::AtpWay| {
            let level = u8::try_from(way.level).ok()?;
            let values = |given: &[u32]| {
                let mut values = [0; LEVEL_COUNT_MAX];
                let wanted = values.get_mut(usize::from(level)..usize::from(level_count))?;
                if wanted.len() != given.len() {
                    return None;
                }
                for (value, &given) in wanted.iter_mut().zip(given) {
                    *value = u8::try_from(given).ok()?;
                }
                Some(values)
            };
            Some(Way { level, children: values(&way.children)?, fan_in: values(&way.fan_in)? })
        };
        let server = |server: &proto::AtpLaneServer| {
            let owner = match server.rank {
                Some(rank) => ServerOwner::Rank(u16::try_from(rank).ok()?),
                None => ServerOwner::Standing(0),
            };
            Some(LaneServer { owner, address: server.address.parse().ok()? })
        };
        let mut lost = Contributed::default();
        for &rank in &job.lost {
            lost.insert(u16::try_from(rank).ok().filter(|&rank| usize::from(rank) < job.ways.len().min(256))?);
        }
        Some(AtpAssignment {
            tree: Tree::with_lost(level_count, job.ways.iter().map(way).collect::<Option<_>>()?, lost).ok()?,
            parts: Vec::new(),
            beside: Vec::new(),
            slot_count: u16::try_from(job.slot_count).ok().filter(|&count| count > 0)?,
            servers: job.servers.iter().map(server).collect::<Option<_>>()?,
        })
    }
}
