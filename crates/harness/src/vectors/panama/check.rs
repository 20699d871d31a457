//! Plays the steps and compares, field by field and then byte by byte.

use fanin_wire::generated::{PANAMA_HEADER_BYTES, RANK_ALL};
use fanin_wire::panama::{Flags, Header, Kind};

use super::format::{Expect, Send, Step, TreeSpec, Vector, VerdictName, bits};
use super::{Outcome, SwitchTarget};
use crate::vectors::Mismatch;
use crate::vectors::check::{Difference, damage, difference, same};

pub(super) fn replay(file: &str, vector: &Vector, target: &mut dyn SwitchTarget) -> Result<usize, Mismatch> {
    let mut player = Player { vector, trees: Vec::new(), target, packets: 0 };
    let mismatch =
        |step, (field, expected, got): Difference| Mismatch { file: file.into(), step, field, expected, got };
    player.begin().map_err(|difference| mismatch("0 (tree)".into(), difference))?;
    for (index, step) in vector.steps.iter().enumerate() {
        let name = step.name.as_ref().map_or(String::new(), |name| format!(" ({name})"));
        player.step(step).map_err(|(place, difference)| mismatch(format!("{}{name}{place}", index + 1), difference))?;
    }
    Ok(player.packets)
}

struct Player<'a> {
    vector: &'a Vector,
    trees: Vec<TreeSpec>,
    target: &'a mut dyn SwitchTarget,
    packets: usize,
}

impl Player<'_> {
    fn begin(&mut self) -> Result<(), Difference> {
        self.target.set_up(&self.vector.switch).map_err(|got| difference("switch", "an accelerator", got))?;
        self.install(&self.vector.tree)
    }

    fn install(&mut self, tree: &TreeSpec) -> Result<(), Difference> {
        self.target.install(&tree.config()).map_err(|got| difference("install", "a tree installed", got))?;
        self.trees.push(tree.clone());
        Ok(())
    }

    /// Plays a step; a difference comes with the VID, where there is one.
    fn step(&mut self, step: &Step) -> Result<(), (String, Difference)> {
        let plain = |difference| (String::new(), difference);
        if let Some(tree) = &step.install {
            self.install(tree).map_err(plain)?;
        }
        if let Some(job_id) = step.remove {
            self.target.remove(job_id).map_err(|got| plain(difference("remove", "a job removed", got)))?;
        }
        if let Some(send) = &step.send {
            for vid in send.vid..=send.vid_last.unwrap_or(send.vid) {
                self.send(step, send, vid)
                    .map_err(|difference| (format!(", port {}, VID {vid}", send.port), difference))?;
            }
        }
        match (&step.paused, self.target.paused_ports()) {
            (Some(ports), Some(got)) => same("paused", list(bits(ports)), list(got)).map_err(plain),
            _ => Ok(()),
        }
    }

    fn send(&mut self, step: &Step, send: &Send, vid: u32) -> Result<(), Difference> {
        let tree = self.tree_of(send);
        let ports = bits(&tree.ports);
        let packet = Packet::of(send, &tree, vid);
        let mut datagram = packet.seal();
        damage(send.truncate, send.flip_bit, send.set_byte, &mut datagram)?;
        let outcomes = self.target.exchange(send.port, send.is_marked, &datagram);
        let outcomes = outcomes.map_err(|got| difference("target", "an exchange", got))?;
        self.packets += 1;
        let expected: Vec<&Expect> = step.expect.iter().chain(&step.then).collect();
        let names = |names: Vec<VerdictName>| names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let got = names(outcomes.iter().map(|outcome| outcome.verdict).collect());
        same("verdict", names(expected.iter().map(|expect| expect.verdict).collect()), got)?;
        for (expect, outcome) in expected.into_iter().zip(&outcomes) {
            compare(&packet, expect, outcome, ports)?;
        }
        Ok(())
    }

    /// The tree that a packet names, or else the first one: a packet may name one that is not there.
    fn tree_of(&self, send: &Send) -> TreeSpec {
        let is_named = |tree: &&TreeSpec| {
            send.tree.is_none_or(|number| number == tree.tree) && send.job_id.is_none_or(|id| id == tree.job_id)
        };
        self.trees.iter().find(is_named).unwrap_or(&self.vector.tree).clone()
    }
}

/// A header and its elements.
#[derive(Clone, Debug, PartialEq)]
struct Packet {
    header: Header,
    elements: Vec<u32>,
}

impl Packet {
    fn of(send: &Send, tree: &TreeSpec, vid: u32) -> Packet {
        let rank = if send.kind == Kind::Contribution { send.port.into() } else { RANK_ALL };
        let header = Header {
            kind: send.kind,
            job_id: send.job_id.unwrap_or(tree.job_id),
            job_token: send.job_token.unwrap_or(tree.job_token),
            vid,
            awaited_vid: send.awaited_vid,
            collective_tag: send.collective_tag,
            tree: send.tree.unwrap_or(tree.tree),
            flags: send.flags,
            cwnd_cap: send.cwnd_cap,
            worker_count: send.worker_count,
            worker_rank: send.worker_rank.unwrap_or(rank),
            element_count: send.elements.len() as u16,
            element_format: send.element_format,
            detail: send.detail,
        };
        Packet { header, elements: send.elements.clone() }
    }

    fn parse(datagram: &[u8]) -> Result<Packet, String> {
        let (header, payload) = Header::parse(datagram).map_err(|error| format!("{error:?}"))?;
        let element = |bytes: &[u8]| bytes.iter().fold(0, |bits, &byte| bits << 8 | u32::from(byte));
        Ok(Packet { elements: payload.chunks_exact(header.element_format.bytes()).map(element).collect(), header })
    }

    fn seal(&self) -> Vec<u8> {
        let mut datagram = vec![0; self.header.datagram_bytes()];
        let width = self.header.element_format.bytes();
        for (place, bits) in datagram[PANAMA_HEADER_BYTES..].chunks_exact_mut(width).zip(&self.elements) {
            place.copy_from_slice(&bits.to_be_bytes()[4 - width..]);
        }
        self.header.seal(&mut datagram);
        datagram
    }

    /// What must leave because of this packet.
    fn answer(&self, expect: &Expect, port_count: u16) -> Packet {
        let own = self.header;
        let elements = match expect.verdict {
            VerdictName::Refuse => Vec::new(),
            _ => expect.elements.clone().unwrap_or_else(|| self.elements.clone()),
        };
        let passed_on = match (expect.verdict, own.kind) {
            (VerdictName::Refuse, _) => {
                Header { kind: Kind::Refusal, detail: expect.reason.map_or(0, |reason| reason.code()), ..own }
            }
            (verdict, Kind::Contribution) => Header {
                kind: if verdict == VerdictName::Up { Kind::Contribution } else { Kind::Result },
                flags: Flags { resend: false, ..own.flags },
                worker_count: port_count,
                worker_rank: RANK_ALL,
                detail: 0,
                ..own
            },
            _ => own,
        };
        let header = Header {
            vid: expect.vid.unwrap_or(own.vid),
            awaited_vid: expect.awaited_vid.unwrap_or(own.awaited_vid),
            flags: expect.flags.unwrap_or(passed_on.flags),
            cwnd_cap: expect.cwnd_cap.unwrap_or(own.cwnd_cap),
            worker_count: expect.worker_count.unwrap_or(passed_on.worker_count),
            element_count: elements.len() as u16,
            ..passed_on
        };
        Packet { header, elements }
    }

    /// All fields by name.
    fn fields(&self) -> Vec<(&'static str, String)> {
        let Header { kind, job_id, job_token, vid, awaited_vid, collective_tag, tree, flags, .. } = self.header;
        let Header { cwnd_cap, worker_count, worker_rank, element_count, element_format, detail, .. } = self.header;
        vec![
            ("kind", kind.name().into()),
            ("job_id", format!("{job_id:#x}")),
            ("job_token", format!("{job_token:#x}")),
            ("vid", vid.to_string()),
            ("awaited_vid", awaited_vid.to_string()),
            ("collective_tag", format!("{collective_tag:#x}")),
            ("tree", tree.to_string()),
            ("flags", format!("{flags:?}")),
            ("cwnd_cap", cwnd_cap.to_string()),
            ("worker_count", worker_count.to_string()),
            ("worker_rank", worker_rank.to_string()),
            ("element_count", element_count.to_string()),
            ("element_format", element_format.name().into()),
            ("detail", detail.to_string()),
            ("elements", format!("{:08x?}", self.elements)),
        ]
    }
}

fn compare(packet: &Packet, expect: &Expect, outcome: &Outcome, ports: u64) -> Result<(), Difference> {
    let name = |reason: Option<fanin_protocol::DropReason>| reason.map_or("none", |reason| reason.name());
    same("reason", name(expect.reason), name(outcome.reason))?;
    if matches!(expect.verdict, VerdictName::Absorb | VerdictName::Drop) {
        return Ok(());
    }
    if expect.verdict == VerdictName::Down {
        same("to", list(expect.to.as_ref().map_or(ports, |to| bits(to))), list(outcome.ports))?;
    }
    let wanted = packet.answer(expect, ports.count_ones() as u16);
    let got = Packet::parse(&outcome.datagram).map_err(|got| difference("datagram", "one", got))?;
    for ((field, expected), (_, got)) in wanted.fields().into_iter().zip(got.fields()) {
        same(&format!("{field} of what leaves"), expected, got)?;
    }
    same("bytes", format!("{:?}", wanted.seal()), format!("{:?}", outcome.datagram))
}

fn list(ports: u64) -> String {
    format!("{:?}", (0..64).filter(|port| ports >> port & 1 == 1).collect::<Vec<u8>>())
}
