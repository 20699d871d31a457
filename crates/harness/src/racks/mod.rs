//! SwitchML over several racks: leaves below a root, perhaps with a level between them, and the workers of one job.
//!
//! [`run`] lets a generator or a fuzzer choose each step; [`exhaustive`] tries every interleaving of small trees.

pub mod exhaustive;
mod operations;

use fanin_protocol::Verdict;
use fanin_protocol::switchml::{
    Context, JobConfig, Leaf, LeafConfig, LeafVerdict, Receiver, Side, Switch, WireFormat, without_payload,
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
    /// Groups of racks of workers. A group of several racks has a switch of its own; one of one rack is that rack.
    fn new(job: JobConfig, groups: &[Vec<u16>]) -> Layout {
        let root = Place { parent: None, config: None, children: Vec::new() };
        let job = JobConfig { worker_count: groups.len() as u16, ..job };
        let mut layout = Layout { job, places: vec![root] };
        let group_of: Vec<u16> = (0u16..)
            .zip(groups)
            .flat_map(|(number, racks)| vec![number; racks.iter().map(|&workers| usize::from(workers)).sum()])
            .collect();
        let mut rank_first = 0;
        for (number, racks) in (0u16..).zip(groups) {
            let mut parent = 0;
            if racks.len() > 1 {
                let racks_of = racks.iter().enumerate().flat_map(|(rack, &workers)| vec![rack as u16; workers.into()]);
                let mut racks_of = racks_of.collect::<Vec<_>>().into_iter();
                let receiver = |&group: &u16| Receiver {
                    child: if group == number { racks_of.next() } else { None },
                    above: group,
                };
                let receivers = group_of.iter().map(receiver).collect();
                parent = layout.add(0, number, racks.len() as u16, 0, receivers);
            }
            for (rack, &workers) in (0u16..).zip(racks) {
                let ranks = rank_first..rank_first + workers;
                let receivers = (0u16..).zip(&group_of).map(|(rank, &group)| Receiver {
                    child: ranks.contains(&rank).then(|| rank - rank_first),
                    above: if parent == 0 { group } else { rank },
                });
                let above = if parent == 0 { number } else { rack };
                let leaf = layout.add(parent, above, workers, rank_first, receivers.collect());
                layout.places[usize::from(leaf)].children = ranks.map(Node::Worker).collect();
                rank_first += workers;
            }
        }
        layout
    }

    fn add(&mut self, parent: u8, rank_above: u16, children: u16, rank_first: u16, receivers: Vec<Receiver>) -> u8 {
        let number = self.places.len() as u8;
        let job = JobConfig { worker_count: children, ..self.job };
        let config = Some(LeafConfig { job, rank_first, rank_above, receivers });
        self.places.push(Place { parent: Some(parent), config, children: Vec::new() });
        self.places[usize::from(parent)].children.push(Node::Switch(number));
        number
    }

    fn programs(&self) -> Result<Vec<Program>, String> {
        let program = |place: &Place| match &place.config {
            None => {
                let mut switch = Switch::new();
                switch.install(self.job).map(|()| Program::Root(switch))
            }
            Some(config) => {
                let mut leaf = Leaf::new();
                leaf.install(config.clone()).map(|()| Program::Leaf(leaf))
            }
        };
        self.places.iter().map(|place| program(place).map_err(|error| format!("install: {error:?}"))).collect()
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
                let sent = counters.answers + counters.replies + counters.probes + counters.missing;
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
        };
        let layout = Layout::new(job, &[vec![2], vec![1], vec![3]]);
        for (rack, place) in (0u16..).zip(&layout.places[1..]) {
            assert_eq!(place.config, Some(LeafConfig::of_rack(job, &[2, 1, 3], rack)));
        }
        assert_eq!(layout.home(2), Node::Switch(2));
        assert_eq!(layout.home(5), Node::Switch(3));
    }
}
