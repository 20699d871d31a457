//! Plays the steps and compares, field by field.

use fanin_protocol::switchml::JobConfig;

use super::format::{Expect, Send, SetByte, Step, Vector, VerdictName};
use super::packet::{Header, element_count, elements_of, normalised};
use super::{Exchange, Mismatch, Source, Target};

/// What differs: field, expected, got.
pub(super) type Difference = (String, String, String);

pub(super) fn replay(file: &str, vector: &Vector, target: &mut dyn Target) -> Result<usize, Mismatch> {
    let mut player = Player { file, jobs: Vec::new(), target, packets: 0 };
    player.install(&vector.job.config()).map_err(|difference| player.mismatch("0 (job)".into(), difference))?;
    for (index, step) in vector.steps.iter().enumerate() {
        player.step(index + 1, step)?;
    }
    Ok(player.packets)
}

struct Player<'a> {
    file: &'a str,
    jobs: Vec<JobConfig>,
    target: &'a mut dyn Target,
    packets: usize,
}

impl Player<'_> {
    fn step(&mut self, number: usize, step: &Step) -> Result<(), Mismatch> {
        let name = step.name.as_ref().map_or(String::new(), |name| format!(" ({name})"));
        let label = format!("{number}{name}");
        if let Some(job) = &step.install {
            self.install(&job.config()).map_err(|difference| self.mismatch(label.clone(), difference))?;
        }
        if let Some(job_id) = step.remove {
            let removed = self.target.remove(job_id).map_err(|got| difference("remove", "a job removed", got));
            removed.map_err(|difference| self.mismatch(label.clone(), difference))?;
        }
        let (Some(send), Some(expect)) = (&step.send, &step.expect) else { return Ok(()) };
        for chunk_index in send.chunk_index..=send.chunk_last.unwrap_or(send.chunk_index) {
            for rank in send.rank..=send.rank_last.unwrap_or(send.rank) {
                self.send(send, expect, rank, chunk_index).map_err(|difference| {
                    self.mismatch(format!("{label}, rank {rank}, chunk {chunk_index}"), difference)
                })?;
            }
        }
        Ok(())
    }

    fn install(&mut self, config: &JobConfig) -> Result<(), Difference> {
        self.target.install(config).map_err(|got| difference("install", "a job installed", got))?;
        self.jobs.push(*config);
        Ok(())
    }

    fn send(&mut self, send: &Send, expect: &Expect, rank: u16, chunk_index: u32) -> Result<(), Difference> {
        let job = send.job.unwrap_or(self.jobs.len() - 1);
        let config = *self.jobs.get(job).ok_or_else(|| difference("job", job, format!("{} jobs", self.jobs.len())))?;
        let header = Header::of(send, &config, rank, chunk_index);
        let mut packet = header.seal(&elements_sent(send, rank), config.has_checksum);
        damage(send.truncate, send.flip_bit, send.set_byte, &mut packet)?;
        let source = Source { job, lane: send.lane, rank, is_registered: send.is_registered };
        self.packets += 1;
        let exchange = self.target.exchange(source, &packet).map_err(|got| difference("target", "an exchange", got))?;
        let sent = Sent { header, packet: &packet, config: &config, rank };
        compare(&sent, expect, &exchange)
    }

    fn mismatch(&self, step: String, (field, expected, got): Difference) -> Mismatch {
        Mismatch { file: self.file.into(), step, field, expected, got }
    }
}

struct Sent<'a> {
    header: Header,
    packet: &'a [u8],
    config: &'a JobConfig,
    rank: u16,
}

fn elements_sent(send: &Send, rank: u16) -> Vec<i64> {
    let times = i64::from(rank - send.rank);
    let step = |index: usize| send.elements_step.get(index).map_or(0, |step| step * times);
    send.elements.iter().enumerate().map(|(index, element)| element + step(index)).collect()
}

/// Damages a sealed datagram as a step asks.
pub(super) fn damage(
    truncate: Option<usize>,
    flip_bit: Option<usize>,
    set_byte: Option<SetByte>,
    packet: &mut Vec<u8>,
) -> Result<(), Difference> {
    if let Some(bytes) = truncate {
        packet.truncate(bytes);
    }
    let length = packet.len();
    let outside = |field: &str| difference(field, format!("a place within {length} bytes"), "one behind them");
    if let Some(bit) = flip_bit {
        *packet.get_mut(bit / 8).ok_or_else(|| outside("flip_bit"))? ^= 1 << (bit % 8);
    }
    if let Some(set) = set_byte {
        *packet.get_mut(set.offset).ok_or_else(|| outside("set_byte"))? = set.value;
    }
    Ok(())
}

fn compare(sent: &Sent, expect: &Expect, exchange: &Exchange) -> Result<(), Difference> {
    let outcome = exchange.outcome;
    let reason = |reason: Option<fanin_protocol::DropReason>| reason.map_or("none", |reason| reason.name());
    same("verdict", expect.verdict, outcome.verdict())?;
    same("reason", reason(expect.reason), reason(outcome.reason()))?;
    let mut receivers: Vec<u16> = exchange.answers.iter().map(|(rank, _)| *rank).collect();
    receivers.sort_unstable();
    same("to", format!("{:?}", receivers_of(sent, expect)), format!("{receivers:?}"))?;
    for (rank, answer) in &exchange.answers {
        compare_answer(sent, expect, *rank, answer)
            .map_err(|(field, expected, got)| (format!("{field} of the answer to rank {rank}"), expected, got))?;
    }
    Ok(())
}

fn receivers_of(sent: &Sent, expect: &Expect) -> Vec<u16> {
    match (&expect.to, expect.verdict) {
        (Some(ranks), _) => ranks.clone(),
        (None, VerdictName::Absorb | VerdictName::Drop) => Vec::new(),
        (None, VerdictName::Multicast) => (0..sent.config.worker_count).collect(),
        (None, _) => vec![sent.rank],
    }
}

fn compare_answer(sent: &Sent, expect: &Expect, rank: u16, answer: &[u8]) -> Result<(), Difference> {
    let has_payload = expect.payload_to.is_none_or(|only| only == rank);
    let wanted = sent.header.answer(expect, sent.config, has_payload);
    let (header, payload) =
        sent.header.parse_like(answer, sent.config.has_checksum).map_err(|got| difference("datagram", "one", got))?;
    for ((field, expected), (_, got)) in wanted.fields().into_iter().zip(header.fields()) {
        same(field, expected, got)?;
    }
    if expect.verdict == VerdictName::ProbeReply {
        let sent_payload = &sent.packet[sent.packet.len() - payload.len()..];
        return same("payload", format!("{sent_payload:?}"), format!("{payload:?}"));
    }
    let format = header.element_format();
    let is_aggregate = matches!(expect.verdict, VerdictName::Multicast | VerdictName::Reply);
    let count = if is_aggregate && has_payload {
        element_count(&expect.elements, expect.element_count, sent.config)
    } else {
        0
    };
    let expected = normalised(if count == 0 { &[] } else { &expect.elements }, count, format);
    same("elements", format!("{expected:?}"), format!("{:?}", elements_of(payload, format)))
}

pub(super) fn same(field: &str, expected: impl ToString, got: impl ToString) -> Result<(), Difference> {
    let (expected, got) = (expected.to_string(), got.to_string());
    if expected == got { Ok(()) } else { Err((field.into(), expected, got)) }
}

pub(super) fn difference(field: &str, expected: impl ToString, got: impl ToString) -> Difference {
    (field.into(), expected.to_string(), got.to_string())
}
