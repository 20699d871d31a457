//! SwitchML over several racks: leaves below a root, perhaps with a level between them, and the workers of one job.
//!
//! [`run`] lets a generator or a fuzzer choose each step; [`exhaustive`] tries every interleaving of small trees.

pub mod exhaustive;
mod operations;

use fanin_protocol::Verdict;
use fanin_protocol::switchml::{
    Context, JobConfig, Leaf, LeafConfig, LeafVerdict, Side, Switch, WireFormat, without_payload,
};
use fanin_protocol::time::Time;
use fanin_wire::generated::HEADER_BYTES;

pub use operations::run;

/// A worker or a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Node {
    Worker(u16),
    Switch(u8),
}

/// The program of one switch.
#[derive(Clone)]
enum Program {
    Root(Switch),
    Leaf(Leaf),
}

/// One switch's place. The root is the first of a layout.
#[derive(Clone, Debug)]
struct Place {
    /// None at the root.
    parent: Option<u8>,
    config: Option<LeafConfig>,
    /// By number.
    children: Vec<Node>,
}

/// Where the workers of a job are.
#[derive(Clone, Debug)]
struct Layout {
    /// As the root knows it.
    job: JobConfig,
    places: Vec<Place>,
}

/// A packet and where it goes.
type Sent = (Node, Vec<u8>);

impl Layout {
    /// Groups of racks of workers. A group of several racks has a switch of its own; one of one rack is that rack. A rack of
    /// no workers stands for one worker without a rack, beside its group's switch or beside the root.
    fn new(job: JobConfig, groups: &[Vec<u16>]) -> Layout {
        let root = Place { parent: None, config: None, children: Vec::new() };
        let mut layout = Layout { job: JobConfig { worker_count: groups.len() as u16, ..job }, places: vec![root] };
        let mut rank_next = 0;
        for racks in groups {
            let above = if racks.len() > 1 { layout.add(0) } else { 0 };
            for &workers in racks {
                let beside = if workers > 0 { layout.add(above) } else { above };
                let ranks = rank_next..rank_next + workers.max(1);
                rank_next = ranks.end;
                layout.places[usize::from(beside)].children.extend(ranks.map(Node::Worker));
            }
        }
        for number in 1..layout.places.len() {
            layout.places[number].config = Some(layout.leaf_config(number as u8, rank_next));
        }
        layout
    }

    fn add(&mut self, parent: u8) -> u8 {
        let number = self.places.len() as u8;
        self.places.push(Place { parent: Some(parent), config: None, children: Vec::new() });
        self.places[usize::from(parent)].children.push(Node::Switch(number));
        number
    }

    fn leaf_config(&self, place: u8, worker_count: u16) -> LeafConfig {
        let Place { parent, children, .. } = &self.places[usize::from(place)];
        let siblings = &self.places[usize::from(parent.expect("the root is no leaf"))].children;
        let number = siblings.iter().position(|node| *node == Node::Switch(place)).expect("a child of its parent");
        LeafConfig {
            job: JobConfig { worker_count: children.len() as u16, ..self.job },
            number: number as u16,
            receivers: (0..worker_count).map(|rank| self.child_towards(place, rank)).collect(),
        }
    }

    /// The child of a switch that a worker is, or is behind.
    fn child_towards(&self, place: u8, rank: u16) -> Option<u16> {
        let towards = |node: &Node| match *node {
            Node::Worker(worker) => worker == rank,
            Node::Switch(below) => self.child_towards(below, rank).is_some(),
        };
        self.places[usize::from(place)].children.iter().position(towards).map(|child| child as u16)
    }

    /// What a worker calls itself at its switch.
    fn number(&self, rank: u16) -> u16 {
        let Node::Switch(home) = self.home(rank) else { unreachable!("a worker is beside a switch") };
        self.child_towards(home, rank).expect("every rank is in a rack")
    }

    fn programs(&self) -> Result<Vec<Program>, String> {
        let program = |place: &Place| match &place.config {
            None => {
                let mut switch = Switch::new();
                let ranks = 0..self.worker_count();
                let child_of_rank =
                    ranks.map(|rank| self.child_towards(0, rank).expect("every rank is below the root"));
                switch.install_root(self.job, child_of_rank.collect()).map(|()| Program::Root(switch))
            }
            Some(config) => {
                let mut leaf = Leaf::new();
                leaf.install(config.clone()).map(|()| Program::Leaf(leaf))
            }
        };
        self.places.iter().map(|place| program(place).map_err(|error| format!("install: {error:?}"))).collect()
    }

    fn worker_count(&self) -> u16 {
        let is_worker = |node: &&Node| matches!(node, Node::Worker(_));
        self.places.iter().flat_map(|place| &place.children).filter(is_worker).count() as u16
    }

    /// The switch that a worker is at.
    fn home(&self, rank: u16) -> Node {
        let home = self.places.iter().position(|place| place.children.contains(&Node::Worker(rank)));
        Node::Switch(home.expect("every rank is in a rack") as u8)
    }

    /// Hands a packet to a switch; what leaves it. Nobody in good order is refused.
    fn process(&self, number: u8, program: &mut Program, from: Node, packet: &[u8]) -> Result<Vec<Sent>, String> {
        let place = &self.places[usize::from(number)];
        let mut output = vec![0; HEADER_BYTES + 4 * usize::from(self.job.element_count_max)];
        let verdict = match program {
            Program::Root(switch) => {
                let context = Context { now: Time::ZERO, wire_format: WireFormat::Fanin, source_rank: None };
                LeafVerdict::Below(switch.process(&context, packet, &mut output))
            }
            Program::Leaf(leaf) => {
                let is_above = place.parent.is_some_and(|parent| from == Node::Switch(parent));
                let side = if is_above { Side::Above } else { Side::Below };
                leaf.process(Time::ZERO, side, packet, &mut output)
            }
        };
        match verdict {
            LeafVerdict::Up { bytes } => {
                let parent = place.parent.ok_or("the root sends nothing up")?;
                Ok(vec![(Node::Switch(parent), output[..bytes].to_vec())])
            }
            LeafVerdict::ToChild { child, bytes, .. } => {
                let child = place.children.get(usize::from(child)).ok_or("an answer for nobody")?;
                Ok(vec![(*child, output[..bytes].to_vec())])
            }
            LeafVerdict::Below(Verdict::Drop(_)) => Ok(Vec::new()),
            LeafVerdict::Below(Verdict::Refuse { reason, .. }) => {
                Err(format!("switch {number} refuses what {from:?} sent: {reason:?}"))
            }
            LeafVerdict::Below(
                Verdict::Reply { bytes } | Verdict::Missing { bytes } | Verdict::ProbeReply { bytes },
            ) => Ok(vec![(from, output[..bytes].to_vec())]),
            LeafVerdict::Below(Verdict::Multicast { bytes, destination, .. }) => {
                let whole = &output[..bytes];
                let mut bare = [0; HEADER_BYTES];
                without_payload(whole, true, &mut bare);
                let copy = |(child, &node): (u16, &Node)| {
                    let is_whole = destination.is_none_or(|reader| reader == child);
                    (node, if is_whole { whole.to_vec() } else { bare.to_vec() })
                };
                Ok((0u16..).zip(&place.children).map(copy).collect())
            }
        }
    }
}

impl Program {
    fn hash_state(&self, hasher: &mut impl std::hash::Hasher) {
        match self {
            Program::Root(switch) => switch.hash_state(hasher),
            Program::Leaf(leaf) => leaf.hash_state(hasher),
        }
    }

    /// Packets that the program has counted.
    fn packets(&self) -> u64 {
        match self {
            Program::Root(switch) => {
                let counters = switch.counters();
                let used = counters.contributions + counters.replies + counters.probes + counters.missing;
                used + counters.drops.iter().sum::<u64>()
            }
            Program::Leaf(leaf) => {
                let counters = leaf.counters();
                let used = counters.contributions + counters.sums + counters.sums_again + counters.queries;
                let probes = counters.probes + counters.probes_returned;
                let sent = counters.answers + counters.replies + probes + counters.missing;
                used + sent + counters.drops.iter().sum::<u64>()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn racks_below_a_root_are_what_a_controller_would_configure() {
        let job = JobConfig {
            job_id: 1,
            job_token: 2,
            worker_count: 3,
            lane_count: 1,
            slots_per_lane: 4,
            element_count_max: 8,
            wire_format: WireFormat::Fanin,
            has_checksum: true,
            accumulator: fanin_wire::Accumulator::BlockFixed,
        };
        let layout = Layout::new(job, &[vec![2], vec![1], vec![3]]);
        for (rack, place) in (0u16..).zip(&layout.places[1..]) {
            assert_eq!(place.config, Some(LeafConfig::of_rack(job, &[2, 1, 3], rack)));
        }
        assert_eq!(layout.home(2), Node::Switch(2));
        assert_eq!(layout.home(5), Node::Switch(3));
        let mixed = Layout::new(job, &[vec![2, 0], vec![0], vec![1]]);
        assert_eq!(mixed.home(2), Node::Switch(1), "beside the switch of its group");
        assert_eq!(mixed.home(3), Node::Switch(0), "beside the root");
        assert_eq!([0, 1, 2, 3, 4].map(|rank| mixed.number(rank)), [0, 1, 1, 1, 0]);
    }
}
