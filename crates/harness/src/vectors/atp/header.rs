//! From a step to the bytes of its packet, and to those of what must leave.

use fanin_protocol::DropReason;
use fanin_protocol::atp::Tree;
use fanin_wire::atp::{ElementFormat, Flags, Header, Kind, LEVEL_COUNT_MAX};
use fanin_wire::generated::{ATP_HEADER_BYTES, RANK_ALL};

use super::Node;
use super::format::{Expect, JobSpec, Send, SwitchSpec, VerdictName};

/// A packet as the vector has it.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub header: Header,
    pub payload: Vec<u8>,
}

impl Packet {
    pub fn seal(&self) -> Vec<u8> {
        let mut datagram = vec![0; ATP_HEADER_BYTES];
        datagram.extend_from_slice(&self.payload);
        self.header.seal(&mut datagram);
        datagram
    }

    pub fn parse(datagram: &[u8]) -> Result<Packet, String> {
        let (header, payload) = Header::parse(datagram).map_err(|error| error.to_string())?;
        Ok(Packet { header, payload: payload.to_vec() })
    }

    /// Names and values, for comparison.
    pub fn fields(&self) -> Vec<(&'static str, String)> {
        let header = &self.header;
        vec![
            ("kind", header.kind.to_string()),
            ("job_id", format!("{:#x}", header.job_id)),
            ("job_token", format!("{:#x}", header.job_token)),
            ("chunk_index", header.chunk_index.to_string()),
            ("collective_tag", format!("{:#x}", header.collective_tag)),
            ("contributed", format!("{:?}", header.contributed)),
            ("fan_in", format!("{:?}", header.fan_in)),
            ("level", header.level.to_string()),
            ("flags", flag_names(header.flags)),
            ("lane", header.lane.to_string()),
            ("slot_index", header.slot_index.to_string()),
            ("slot_index_next", header.slot_index_next.to_string()),
            ("worker_rank", header.worker_rank.to_string()),
            ("element_count", header.element_count.to_string()),
            ("element_format", header.element_format.to_string()),
            ("operator", header.operator.to_string()),
            ("detail", header.detail.to_string()),
            ("destination", header.destination.to_string()),
            ("scale", header.scale.to_string()),
            ("scale_next", header.scale_next.to_string()),
            ("echo", format!("{:#x}", header.echo)),
            ("elements", format!("{:?}", elements_of(&self.payload, header.element_format))),
        ]
    }

    /// The packet that a step asks for, before damage.
    pub fn of(send: &Send, place: &Place, switch: &SwitchSpec, rank: Option<u16>, chunk_index: u32) -> Packet {
        let Place { node, job, tree } = *place;
        let node_level = level_of(node, tree);
        let is_parameter = send.kind == Kind::Parameter;
        let ranks = match (&send.ranks, rank) {
            (Some(ranks), _) => ranks.as_slice(),
            (None, Some(rank)) => &[rank],
            (None, None) if is_parameter && send.destination != RANK_ALL => &[send.destination],
            (None, None) => &[],
        };
        let fan_in = if is_parameter { [0; LEVEL_COUNT_MAX] } else { fan_in_of(ranks, tree) };
        let slot_index = send.slot_index.unwrap_or((chunk_index % u32::from(switch.slot_count)) as u16);
        let payload = payload_of(&elements_sent(send, rank), send.element_count);
        let header = Header {
            kind: send.kind,
            job_id: send.job_id.unwrap_or(job.job_id),
            job_token: send.job_token.unwrap_or(job.job_token),
            chunk_index,
            collective_tag: send.collective_tag,
            contributed: send.contributed.unwrap_or_else(|| contributed_of(ranks, tree)),
            fan_in: send.fan_in.unwrap_or(fan_in),
            level: send.level.unwrap_or(node_level),
            flags: send.flags,
            lane: send.lane,
            slot_index,
            slot_index_next: send.slot_index_next.unwrap_or(slot_index),
            worker_rank: send.worker_rank.or(rank).unwrap_or(RANK_ALL),
            element_count: (payload.len() / 4) as u16,
            element_format: send.element_format,
            operator: send.operator,
            detail: send.detail,
            destination: send.destination,
            scale: send.scale,
            scale_next: send.scale_next,
            echo: send.echo,
        };
        Packet { header, payload }
    }

    /// What must leave because of this packet, for a receiver that gets the elements or one that does not.
    pub fn answer(&self, expect: &Expect, tree: &Tree, has_payload: bool) -> Packet {
        let sent = &self.header;
        let base = match expect.verdict {
            VerdictName::Up => Header { level: sent.level + 1, ..*sent },
            VerdictName::Refuse => {
                let detail = expect.reason.map_or(0, DropReason::code);
                Header { kind: Kind::Refusal, detail, level: sent.level.saturating_sub(1), ..*sent }
            }
            VerdictName::Reply if sent.kind == Kind::Probe => {
                Header { kind: Kind::ProbeReply, level: sent.level - 1, ..*sent }
            }
            VerdictName::Multicast => parameter(sent, RANK_ALL, tree),
            VerdictName::Reply => parameter(sent, sent.worker_rank, tree),
            VerdictName::Down | VerdictName::Absorb | VerdictName::Drop => {
                Header { level: sent.level.saturating_sub(1), ..*sent }
            }
        };
        let passes_on = matches!(expect.verdict, VerdictName::Up | VerdictName::Down);
        let payload = match &expect.elements {
            _ if !has_payload => Vec::new(),
            Some(elements) => payload_of(elements, expect.element_count),
            None if passes_on => self.payload.clone(),
            None => Vec::new(),
        };
        let header = Header {
            contributed: expect.contributed.unwrap_or(base.contributed),
            flags: expect.flags.unwrap_or(base.flags),
            worker_rank: expect.worker_rank.unwrap_or(base.worker_rank),
            slot_index: expect.slot_index.unwrap_or(base.slot_index),
            slot_index_next: expect.slot_index_next.unwrap_or(base.slot_index_next),
            element_format: expect.element_format.unwrap_or(base.element_format),
            detail: expect.detail.unwrap_or(base.detail),
            scale_next: expect.scale_next.unwrap_or(base.scale_next),
            element_count: (payload.len() / 4) as u16,
            ..base
        };
        Packet { header, payload }
    }
}

/// Where a packet arrives, and of which job it is.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub node: Node,
    pub job: &'a JobSpec,
    pub tree: &'a Tree,
}

/// What every Parameter of the server says.
fn parameter(sent: &Header, receiver: u16, tree: &Tree) -> Header {
    let reader = if receiver == RANK_ALL { sent.destination } else { receiver };
    let readers: &[u16] = if reader == RANK_ALL { &[] } else { &[reader] };
    Header {
        kind: Kind::Parameter,
        contributed: contributed_of(readers, tree),
        fan_in: [0; LEVEL_COUNT_MAX],
        level: tree.level_count() - 1,
        flags: Flags::default(),
        slot_index_next: sent.slot_index,
        worker_rank: receiver,
        detail: 0,
        scale_next: 0,
        echo: 0,
        ..*sent
    }
}

/// The level of what arrives at a node.
pub fn level_of(node: Node, tree: &Tree) -> u8 {
    match node {
        Node::Rack(_) => 0,
        Node::Root => tree.level_count() - 1,
        Node::Server => tree.level_count(),
    }
}

fn contributed_of(ranks: &[u16], tree: &Tree) -> [u32; LEVEL_COUNT_MAX] {
    let mut words = [0; LEVEL_COUNT_MAX];
    for &rank in ranks.iter().filter(|&&rank| rank < tree.worker_count()) {
        let way = tree.way(rank).contributed(tree.level_count());
        words = std::array::from_fn(|level| words[level] | way[level]);
    }
    words
}

fn fan_in_of(ranks: &[u16], tree: &Tree) -> [u8; LEVEL_COUNT_MAX] {
    let known = ranks.iter().find(|&&rank| rank < tree.worker_count());
    known.map_or([0; LEVEL_COUNT_MAX], |&rank| tree.way(rank).fan_in)
}

fn elements_sent(send: &Send, rank: Option<u16>) -> Vec<i64> {
    let times = i64::from(rank.unwrap_or(0)) - i64::from(send.rank.unwrap_or(0));
    let step = |index: usize| send.elements_step.get(index).map_or(0, |step| step * times);
    send.elements.iter().enumerate().map(|(index, element)| element + step(index)).collect()
}

fn payload_of(elements: &[i64], element_count: Option<u16>) -> Vec<u8> {
    let mut payload: Vec<u8> = elements.iter().flat_map(|&element| (element as i32).to_be_bytes()).collect();
    payload.resize(element_count.map_or(payload.len(), |count| usize::from(count) * 4), 0);
    payload
}

/// As written in files: signed words, and the bits of floats.
fn elements_of(payload: &[u8], format: ElementFormat) -> Vec<i64> {
    let words = payload.chunks_exact(4).map(|word| u32::from_be_bytes([word[0], word[1], word[2], word[3]]));
    words.map(|word| if format == ElementFormat::Float32 { word.into() } else { (word as i32).into() }).collect()
}

fn flag_names(flags: Flags) -> String {
    let Flags { resend, ecn, collision, is_saturated } = flags;
    let all = [("resend", resend), ("ecn", ecn), ("collision", collision), ("is_saturated", is_saturated)];
    let set: Vec<_> = all.iter().filter(|(_, is_set)| *is_set).map(|(name, _)| *name).collect();
    format!("{set:?}")
}
