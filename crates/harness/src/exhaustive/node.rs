//! A worker of the small cluster, and the tensors it sums.

use std::hash::Hash;

use fanin_numeric::BlockExponent;
use fanin_protocol::switchml::{
    BlockId, Event, JobConfig, Participants, Shape, Submission, Tensors, WireFormat, Worker, WorkerConfig,
};
use fanin_protocol::time::{Span, Time};
use fanin_wire::{ElementFormat, Operator};

use super::hash::Wide;
use super::{CHUNKS_MAX, Scope};

/// A worker with what the checkers know about it.
#[derive(Clone)]
pub struct Node {
    worker: Worker,
    ledger: Ledger,
    /// Times that it has sent each chunk.
    attempts: [u32; CHUNKS_MAX],
    /// Chunks whose Aggregate it has, as bits.
    pub answered: u32,
}

/// Tensors of a worker: block `b` of rank `r` is one word, different for
/// each, and no sum of some of them equals a sum of others.
#[derive(Clone, Hash)]
struct Ledger {
    rank: u16,
    workers: u16,
    scaled: bool,
    /// Blocks whose sum has come, as bits.
    received: u32,
    /// The first sum that was wrong or came twice.
    wrong: Option<(u32, i32)>,
}

impl Node {
    pub fn new(scope: &Scope, rank: u16) -> Node {
        Node::numbered(scope, rank, rank)
    }

    /// A worker that is not known to its switch by its rank.
    pub fn numbered(scope: &Scope, rank: u16, number: u16) -> Node {
        let mut worker = Worker::new(WorkerConfig { number, ..lane(scope, rank) });
        worker.submit(submission(scope));
        let ledger = Ledger { rank, workers: scope.workers, scaled: scope.scaled, received: 0, wrong: None };
        Node { worker, ledger, attempts: [0; CHUNKS_MAX], answered: 0 }
    }

    /// Equal for two nodes that behave alike from here on.
    pub fn fingerprint(&self) -> u128 {
        let mut hasher = Wide::new();
        self.worker.hash_state(&mut hasher);
        self.ledger.hash(&mut hasher);
        self.answered.hash(&mut hasher);
        hasher.wide()
    }

    pub fn is_done(&self) -> bool {
        self.worker.is_idle()
    }

    pub fn waits(&self) -> bool {
        self.worker.poll_timeout().is_some()
    }

    /// Number of the latest sending of a chunk, as its packet carries it.
    pub fn attempt_last(&self, chunk: u32) -> u8 {
        self.attempts[chunk as usize].saturating_sub(1).min(255) as u8
    }

    pub fn handle_packet(&mut self, chunk: u32, bytes: &[u8]) {
        let before = self.worker.counters().aggregates;
        self.worker.handle_packet(Time::ZERO, bytes, &mut self.ledger);
        if self.worker.counters().aggregates > before {
            self.answered |= 1 << chunk;
        }
    }

    pub fn handle_timeout(&mut self) {
        if let Some(due) = self.worker.poll_timeout() {
            self.worker.handle_timeout(due);
        }
    }

    /// Takes all that the worker sends, and checks what it says.
    pub fn drain(&mut self, chunk_of: impl Fn(&[u8]) -> u32) -> Result<Vec<Vec<u8>>, String> {
        let (mut packets, mut buffer) = (Vec::new(), [0; 256]);
        while let Some(bytes) = self.worker.poll_transmit(Time::ZERO, &mut self.ledger, &mut buffer) {
            self.attempts[chunk_of(&buffer) as usize] += 1;
            packets.push(buffer[..bytes].to_vec());
        }
        let rank = self.ledger.rank;
        while let Some(event) = self.worker.poll_event() {
            if let Event::Refused { reason, .. } = event {
                return Err(format!("rank {rank} was refused: {reason:?}"));
            }
        }
        match self.ledger.wrong {
            Some((block, sum)) => {
                Err(format!("WRONG SUM: rank {rank} has {sum:#x} for block {block}, or has it twice"))
            }
            None => Ok(packets),
        }
    }
}

impl Ledger {
    fn word(rank: u16, block: u32) -> i32 {
        (block as i32 + 1) << (8 * rank)
    }

    fn sum(&self, block: u32) -> i32 {
        (0..self.workers).map(|rank| Ledger::word(rank, block)).sum()
    }

    /// Whether all workers' exponents were merged, and only theirs.
    fn is_agreed(&self, block: u32, exponent: BlockExponent) -> bool {
        !self.scaled || exponent == Ledger::exponent(self.workers - 1, block)
    }

    /// Different for each worker and block, so that a wrong merge shows.
    fn exponent(rank: u16, block: u32) -> BlockExponent {
        BlockExponent((block as i16) * 3 + rank as i16)
    }

    fn mark_wrong(&mut self, block: u32, what: i32) {
        self.wrong.get_or_insert((block, what));
    }
}

impl Tensors for Ledger {
    fn block_exponent(&mut self, id: BlockId) -> BlockExponent {
        Ledger::exponent(self.rank, id.block)
    }

    fn write_block(&mut self, id: BlockId, exponent: BlockExponent, payload: &mut [u8]) {
        if !self.is_agreed(id.block, exponent) {
            self.mark_wrong(id.block, i32::from(exponent.0));
        }
        payload.copy_from_slice(&Ledger::word(self.rank, id.block).to_be_bytes());
    }

    fn read_block(&mut self, id: BlockId, exponent: BlockExponent, _: u8, payload: &[u8]) {
        let sum = payload.try_into().map(i32::from_be_bytes).unwrap_or(-1);
        let again = self.received & 1 << id.block != 0;
        if sum != self.sum(id.block) || again || !self.is_agreed(id.block, exponent) {
            self.mark_wrong(id.block, sum);
        }
        self.received |= 1 << id.block;
    }
}

/// The switch's side of the scope.
pub fn job(scope: &Scope) -> JobConfig {
    JobConfig {
        job_id: 0,
        job_token: 1,
        worker_count: scope.workers,
        lane_count: 1,
        slots_per_lane: scope.slots,
        element_count_max: element_count_max(scope),
        has_checksum: true,
        accumulator: fanin_wire::Accumulator::BlockFixed,
        wire_format: scope.wire_format,
    }
}

fn lane(scope: &Scope, rank: u16) -> WorkerConfig {
    WorkerConfig {
        job_id: 0,
        job_token: 1,
        rank,
        number: rank,
        worker_count: scope.workers,
        lane: 0,
        slots_per_lane: scope.slots,
        element_count_max: element_count_max(scope),
        has_checksum: true,
        wire_format: scope.wire_format,
        resend_timeout_initial: Span::from_ns(1),
        resend_timeout_min: Span::from_ns(1),
        resend_timeout_max: Span::from_ns(1),
    }
}

fn element_count_max(scope: &Scope) -> u16 {
    if scope.wire_format == WireFormat::P4app { 32 } else { 1 }
}

/// One element in each block, whatever the layout pads it to.
fn submission(scope: &Scope) -> Submission {
    let shape = Shape { shard_count: scope.blocks as u16, shard_elements: 1, block_elements: element_count_max(scope) };
    Submission {
        id: 0,
        collective_tag: 7,
        shape,
        block_first: 0,
        block_count: scope.blocks,
        contributors: Participants::Everyone,
        receivers: Participants::Everyone,
        operator: Operator::Add,
        element_format: ElementFormat::Int32,
        scaled: scope.scaled,
    }
}
