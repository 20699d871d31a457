//! Plays the steps and compares, field by field and then byte by byte.

use fanin_protocol::atp::Tree;
use fanin_wire::atp::Kind;

use super::format::{Expect, JobSpec, Send, Step, Vector, VerdictName};
use super::header::{Packet, Place};
use super::{Arrival, AtpTarget, Exchange, Node, Receiver};
use crate::vectors::Mismatch;
use crate::vectors::check::{Difference, damage, difference, same};

pub(super) fn replay(file: &str, vector: &Vector, target: &mut dyn AtpTarget) -> Result<usize, Mismatch> {
    let mut player = Player { file, vector, jobs: Vec::new(), target, packets: 0, now_ns: 0, left: None };
    player.begin().map_err(|difference| player.mismatch("0 (job)".into(), difference))?;
    for (index, step) in vector.steps.iter().enumerate() {
        player.step(index + 1, step)?;
    }
    Ok(player.packets)
}

struct Player<'a> {
    file: &'a str,
    vector: &'a Vector,
    jobs: Vec<(JobSpec, Tree)>,
    target: &'a mut dyn AtpTarget,
    packets: usize,
    now_ns: u64,
    /// The first datagram that left in the last step.
    left: Option<Vec<u8>>,
}

impl Player<'_> {
    fn begin(&mut self) -> Result<(), Difference> {
        self.target.set_up(&self.vector.switch).map_err(|got| difference("switch", "switches", got))?;
        self.install(&self.vector.job)
    }

    fn step(&mut self, number: usize, step: &Step) -> Result<(), Mismatch> {
        let name = step.name.as_ref().map_or(String::new(), |name| format!(" ({name})"));
        let label = format!("{number}{name}");
        if let Some(job) = &step.install {
            self.install(job).map_err(|difference| self.mismatch(label.clone(), difference))?;
        }
        if let Some(job_id) = step.remove {
            let removed = self.target.remove(job_id).map_err(|got| difference("remove", "a job removed", got));
            removed.map_err(|difference| self.mismatch(label.clone(), difference))?;
        }
        let (Some(send), Some(expect)) = (&step.send, &step.expect) else { return Ok(()) };
        let ranks: Vec<Option<u16>> = match send.rank {
            Some(first) => (first..=send.rank_last.unwrap_or(first)).map(Some).collect(),
            None => vec![None],
        };
        for chunk_index in send.chunk_index..=send.chunk_last.unwrap_or(send.chunk_index) {
            for &rank in &ranks {
                self.send(send, expect, rank, chunk_index).map_err(|difference| {
                    let sender = rank.map_or(String::new(), |rank| format!(", rank {rank}"));
                    self.mismatch(format!("{label}{sender}, chunk {chunk_index}"), difference)
                })?;
            }
        }
        Ok(())
    }

    fn install(&mut self, job: &JobSpec) -> Result<(), Difference> {
        let tree = job.tree().map_err(|got| difference("job", "a tree", got))?;
        self.target.install(job, &tree).map_err(|got| difference("install", "a job installed", got))?;
        self.jobs.push((job.clone(), tree));
        Ok(())
    }

    fn send(&mut self, send: &Send, expect: &Expect, rank: Option<u16>, chunk_index: u32) -> Result<(), Difference> {
        let number = send.job.unwrap_or(self.jobs.len() - 1);
        let (job, tree) =
            self.jobs.get(number).ok_or_else(|| difference("job", number, format!("{} jobs", self.jobs.len())))?;
        let place = Place { node: node_of(send, rank, tree), job, tree };
        let packet = if send.relay {
            let left = self.left.as_ref().ok_or_else(|| difference("relay", "a packet that left", "none"))?;
            Packet::parse(left).map_err(|got| difference("relay", "a packet", got))?
        } else {
            Packet::of(send, &place, &self.vector.switch, rank, chunk_index)
        };
        let mut datagram = packet.seal();
        damage(send.truncate, send.flip_bit, send.set_byte, &mut datagram)?;
        self.now_ns = send.now_ns.unwrap_or(self.now_ns + 1);
        let arrival = Arrival {
            node: place.node,
            job: number,
            lane: send.lane,
            now_ns: self.now_ns,
            queue_bytes: send.queue_bytes,
        };
        let exchange =
            self.target.exchange(&arrival, &datagram).map_err(|got| difference("target", "an exchange", got))?;
        self.packets += 1;
        self.left = exchange.answers.first().map(|(_, datagram)| datagram.clone());
        compare(&packet, expect, &place, &exchange)
    }

    fn mismatch(&self, step: String, (field, expected, got): Difference) -> Mismatch {
        Mismatch { file: self.file.into(), step, field, expected, got }
    }
}

/// By default a worker's packet arrives at its own switch, a sum at the server and a Parameter at the root.
fn node_of(send: &Send, rank: Option<u16>, tree: &Tree) -> Node {
    if let Some(node) = send.at {
        return node;
    }
    match rank.filter(|&rank| rank < tree.worker_count()) {
        _ if send.kind == Kind::Parameter => Node::Root,
        None if send.ranks.is_some() => Node::Server,
        Some(rank) if tree.way(rank).level + 1 < tree.level_count() => Node::Rack(tree.way(rank).children[1]),
        _ => Node::Root,
    }
}

fn compare(packet: &Packet, expect: &Expect, place: &Place, exchange: &Exchange) -> Result<(), Difference> {
    let reason = |reason: Option<fanin_protocol::DropReason>| reason.map_or("none", |reason| reason.name());
    same("verdict", expect.verdict, exchange.verdict)?;
    same("reason", reason(expect.reason), reason(exchange.reason))?;
    let mut receivers: Vec<Receiver> = exchange.answers.iter().map(|(receiver, _)| *receiver).collect();
    receivers.sort_unstable();
    same("to", format!("{:?}", receivers_of(expect, place)), format!("{receivers:?}"))?;
    for (receiver, answer) in &exchange.answers {
        let child = if let Receiver::Child(child) = receiver { Some(*child) } else { None };
        let has_payload = expect.payload_to.is_none_or(|only| child == Some(only));
        let wanted = packet.answer(expect, place.tree, has_payload);
        compare_answer(&wanted, answer)
            .map_err(|(field, expected, got)| (format!("{field} of what leaves to {receiver:?}"), expected, got))?;
    }
    Ok(())
}

fn compare_answer(wanted: &Packet, answer: &[u8]) -> Result<(), Difference> {
    let got = Packet::parse(answer).map_err(|got| difference("datagram", "one", got))?;
    for ((field, expected), (_, got)) in wanted.fields().into_iter().zip(got.fields()) {
        same(field, expected, got)?;
    }
    same("bytes", format!("{:?}", wanted.seal()), format!("{answer:?}"))
}

fn receivers_of(expect: &Expect, place: &Place) -> Vec<Receiver> {
    match (&expect.to, expect.verdict) {
        (Some(children), _) => children.iter().map(|&child| Receiver::Child(child)).collect(),
        (None, VerdictName::Absorb | VerdictName::Drop) => Vec::new(),
        (None, VerdictName::Up) => vec![Receiver::Up],
        (None, VerdictName::Down) => (0..place.job.children(place.node)).map(Receiver::Child).collect(),
        (None, VerdictName::Refuse) if place.node != Node::Server => vec![Receiver::Sender],
        (None, _) => vec![Receiver::Switch],
    }
}
