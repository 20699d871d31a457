//! An ATP cluster in which somebody else chooses every step: a fuzzer, or a seeded generator. Whatever is chosen, the
//! checkers of [`Cluster`] hold, and when the choices end everything still completes.

use fanin_link::Random;
use fanin_protocol::time::Span;
use fanin_wire::atp::Header;

use super::cluster::{Cluster, Event, Sent};
use super::plan::Scenario;

/// Most packets under way; more are lost.
const NETWORK_MAX: usize = 2_048;
/// Rounds after the last operation in which all must complete.
const ROUNDS_MAX: usize = 5_000;

/// One step. Numbers are taken modulo what there is to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "arbitrary", derive(arbitrary::Arbitrary))]
pub enum Operation {
    /// A worker's lane begins with its collectives.
    Start(u8),
    /// A packet arrives.
    Deliver(u16),
    /// A packet is lost.
    Lose(u16),
    /// A packet is doubled.
    Duplicate(u16),
    /// A bit of a packet flips.
    Damage(u16, u16),
    /// A lane's timer runs out.
    Timeout(u8),
    /// Microseconds pass: slots grow old.
    Wait(u16),
    /// All switches lose their slots.
    RestartSwitches,
    /// A stranger sends a changed copy of a packet to where it was going.
    Forge(u16, Forgery),
}

/// What a stranger gets wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "arbitrary", derive(arbitrary::Arbitrary))]
pub enum Forgery {
    /// Another run's token.
    Token(u32),
    /// Another job.
    Job(u32),
    /// A lane that the job does not have.
    Lane(u16),
    /// A slot that switches do not have.
    Slot(u16),
    /// A level that is not the receiver's.
    Level(u8),
}

/// A cluster and what happens to it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "arbitrary", derive(arbitrary::Arbitrary))]
pub struct Script {
    /// Picks the jobs and the switches.
    pub seed: u16,
    /// In order.
    pub operations: Vec<Operation>,
}

impl Script {
    /// The script of a seed, for runs without a fuzzer.
    pub fn from_seed(seed: u64) -> Script {
        let mut random = Random::new(seed ^ 0xa7b_0de1);
        let count = random.within(20, 600);
        let operations = (0..count).map(|_| operation(&mut random)).collect();
        Script { seed: random.bits() as u16, operations }
    }
}

fn operation(random: &mut Random) -> Operation {
    let (packet, small) = (random.bits() as u16, random.bits() as u8);
    match random.below(100) {
        0..8 => Operation::Start(small),
        8..68 => Operation::Deliver(packet),
        68..76 => Operation::Lose(packet),
        76..85 => Operation::Duplicate(packet),
        85..87 => Operation::Damage(packet, random.bits() as u16),
        87..93 => Operation::Timeout(small),
        93..95 => Operation::Wait(packet),
        95 => Operation::RestartSwitches,
        _ => Operation::Forge(packet, forgery(random)),
    }
}

fn forgery(random: &mut Random) -> Forgery {
    let bits = random.bits();
    match random.below(5) {
        0 => Forgery::Token(bits as u32),
        1 => Forgery::Job(bits as u32),
        2 => Forgery::Lane(bits as u16),
        3 => Forgery::Slot(bits as u16),
        _ => Forgery::Level(bits as u8),
    }
}

/// Runs a script to its end and then until everything has completed.
///
/// # Errors
/// Which rule did not hold, and after which operations.
pub fn run(script: &Script) -> Result<(), String> {
    let mut world = World::new(script.seed);
    for (index, &operation) in script.operations.iter().enumerate() {
        world.apply(operation).map_err(|what| format!("operation {index}, {operation:?}: {what}"))?;
    }
    world.complete().map_err(|what| format!("after the last operation: {what}"))
}

struct World {
    cluster: Cluster,
    network: Vec<Sent>,
    /// By endpoint.
    has_started: Vec<bool>,
}

impl World {
    fn new(seed: u16) -> World {
        let cluster = Cluster::by_hand(Scenario::small(seed.into()));
        World { has_started: vec![false; cluster.endpoint_count()], cluster, network: Vec::new() }
    }

    fn apply(&mut self, operation: Operation) -> Result<(), String> {
        match operation {
            Operation::Start(worker) => self.start(usize::from(worker) % self.has_started.len())?,
            Operation::Timeout(worker) => self.cluster.time_out(usize::from(worker) % self.has_started.len())?,
            Operation::Wait(us) => self.cluster.wait(Span::from_us(us.into())),
            Operation::RestartSwitches => self.cluster.step(Event::RestartSwitches)?,
            Operation::Deliver(number) => {
                if let Some(index) = self.pick(number) {
                    let packet = self.network.swap_remove(index);
                    self.deliver(packet)?;
                }
            }
            Operation::Lose(number) => {
                self.pick(number).map(|index| self.network.swap_remove(index));
            }
            Operation::Duplicate(number) => {
                if let Some(index) = self.pick(number) {
                    self.network.push(self.network[index].clone());
                }
            }
            Operation::Damage(number, bit) => {
                if let Some(index) = self.pick(number).filter(|&index| !self.network[index].is_damaged) {
                    let Sent { packet, is_damaged, .. } = &mut self.network[index];
                    let bit = usize::from(bit) % (packet.len() * 8);
                    packet[bit / 8] ^= 1 << (bit % 8);
                    *is_damaged = true;
                }
            }
            Operation::Forge(number, forgery) => self.forge(number, forgery)?,
        }
        self.collect();
        Ok(())
    }

    fn collect(&mut self) {
        self.network.append(&mut self.cluster.take_sent());
        self.network.truncate(NETWORK_MAX);
    }

    fn pick(&self, number: u16) -> Option<usize> {
        (!self.network.is_empty()).then(|| usize::from(number) % self.network.len())
    }

    fn start(&mut self, worker: usize) -> Result<(), String> {
        if std::mem::replace(&mut self.has_started[worker], true) {
            return Ok(());
        }
        self.cluster.step(Event::Start { worker })
    }

    fn deliver(&mut self, sent: Sent) -> Result<(), String> {
        self.cluster.step(Event::Arrive { from: sent.from, to: sent.to, packet: sent.packet })
    }

    /// A stranger's packet must never change anything, nor be passed on.
    fn forge(&mut self, number: u16, forgery: Forgery) -> Result<(), String> {
        let Some(index) = self.pick(number) else { return Ok(()) };
        let Sent { to, ref packet, .. } = self.network[index];
        let Ok((header, _)) = Header::parse(packet) else { return Ok(()) };
        let mut bytes = packet.clone();
        self.falsify(header, forgery).seal(&mut bytes);
        self.cluster.take_forged(to, &bytes).map_err(|what| format!("{what}: {forgery:?}"))
    }

    fn falsify(&self, header: Header, forgery: Forgery) -> Header {
        let other = |right: u32, change: u32| right ^ change.max(1);
        match forgery {
            Forgery::Token(change) => Header { job_token: other(header.job_token, change), ..header },
            Forgery::Job(change) => Header { job_id: other(header.job_id, change), ..header },
            // No plan has more than two lanes.
            Forgery::Lane(more) => Header { lane: 2u16.saturating_add(more), ..header },
            Forgery::Slot(more) => {
                Header { slot_index: self.cluster.scenario().slot_count.saturating_add(more), ..header }
            }
            Forgery::Level(change) => Header { level: header.level ^ change.max(1), ..header },
        }
    }

    /// No more faults: everybody starts, all is delivered and, where it was lost, sent again.
    fn complete(&mut self) -> Result<(), String> {
        for worker in 0..self.has_started.len() {
            self.start(worker)?;
        }
        for _ in 0..ROUNDS_MAX {
            self.collect();
            if self.network.is_empty() {
                if self.cluster.is_done() {
                    return self.cluster.at_the_end();
                }
                (0..self.has_started.len()).try_for_each(|worker| self.cluster.time_out(worker))?;
            }
            for sent in std::mem::take(&mut self.network) {
                self.deliver(sent)?;
            }
        }
        // The end says who has not finished.
        self.cluster.at_the_end().and(Err("no progress".into()))
    }
}
