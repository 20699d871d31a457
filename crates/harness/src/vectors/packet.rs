//! From a step to the bytes of its packet, and to those of its answers.

use fanin_protocol::DropReason;
use fanin_protocol::switchml::{JobConfig, WireFormat};
use fanin_wire::generated::{BLOCK_EXPONENT_NOT_NEEDED, CHECKSUM_OFFSET, HEADER_BYTES, RANK_ALL};
use fanin_wire::{ElementFormat, Kind, fanin, p4app};

use super::format::{Expect, Send, VerdictName};

/// A packet's header, in either layout.
#[derive(Clone, Copy, Debug)]
pub(super) enum Header {
    Fanin(fanin::Header),
    P4app(p4app::Header),
}

/// Names and values of a header's fields, in order.
pub(super) type Fields = Vec<(&'static str, String)>;

impl Header {
    /// The header that a step asks for, before damage.
    pub fn of(send: &Send, config: &JobConfig, rank: u16, chunk_index: u32) -> Header {
        let slots = config.slots_per_lane;
        let derived_slot = u32::from(send.lane) * slots + (chunk_index & (slots - 1));
        let slot_index = send.slot_index.unwrap_or(derived_slot as u16);
        let derived_parity = (chunk_index >> slots.trailing_zeros()) & 1;
        let slot_parity = send.slot_parity.unwrap_or(derived_parity as u8);
        let job_id = send.job_id.unwrap_or(config.job_id);
        let element_count = element_count(&send.elements, send.element_count, config);
        let exponent = send.exponent_next.map(|exponent| exponent.0);
        if config.wire_format == WireFormat::P4app && send.kind == Kind::Contribution {
            let exponent = exponent.unwrap_or(0) as i8;
            let (job_number, packet_id) = (job_id as u8, send.echo);
            return Header::P4app(p4app::Header {
                job_number,
                packet_id,
                slot_index,
                slot_parity,
                exponent,
                element_count,
            });
        }
        Header::Fanin(fanin::Header {
            kind: send.kind,
            job_id,
            job_token: send.job_token.unwrap_or(config.job_token),
            worker_rank: send.worker_rank.unwrap_or(rank),
            slot_index,
            slot_parity,
            chunk_index,
            collective_tag: send.collective_tag,
            block_exponent_next: exponent.unwrap_or(BLOCK_EXPONENT_NOT_NEEDED),
            element_count,
            element_format: send.element_format,
            operator: send.operator,
            detail: send.detail,
            destination: send.destination,
            echo: send.echo,
        })
    }

    /// The header that must come back to one receiver.
    pub fn answer(&self, expect: &Expect, config: &JobConfig, has_payload: bool) -> Header {
        match self {
            Header::Fanin(sent) => Header::Fanin(fanin_answer(sent, expect, config, has_payload)),
            Header::P4app(sent) => Header::P4app(p4app::Header {
                exponent: expect.exponent_next.map_or(0, |exponent| exponent.0 as i8),
                ..*sent
            }),
        }
    }

    /// Names and values, for comparison.
    pub fn fields(&self) -> Fields {
        match self {
            Header::Fanin(header) => fanin_fields(header),
            Header::P4app(header) => p4app_fields(header),
        }
    }

    /// How the payload's elements are coded.
    pub fn element_format(&self) -> ElementFormat {
        match self {
            Header::Fanin(header) => header.element_format,
            Header::P4app(_) => ElementFormat::Int32,
        }
    }

    /// The datagram with these elements, zeros behind them.
    pub fn seal(&self, elements: &[i64], has_checksum: bool) -> Vec<u8> {
        let (header_bytes, datagram_bytes) = match self {
            Header::Fanin(header) => (fanin_wire::generated::HEADER_BYTES, header.datagram_bytes()),
            Header::P4app(header) => (p4app::HEADER_BYTES, header.datagram_bytes()),
        };
        let mut datagram = vec![0; datagram_bytes];
        let (format, element_bytes) = (self.element_format(), self.element_format().bytes());
        let is_raw = !format.is_block_scaled() && format != ElementFormat::Fixed32;
        for (place, element) in datagram[header_bytes..].chunks_exact_mut(element_bytes).zip(elements) {
            match is_raw {
                true => place.copy_from_slice(&element.to_le_bytes()[..element_bytes]),
                false => place.copy_from_slice(&element.to_be_bytes()[8 - element_bytes..]),
            }
        }
        match self {
            Header::Fanin(header) if has_checksum => header.seal(&mut datagram),
            Header::Fanin(header) => header.seal_unsummed(&mut datagram),
            Header::P4app(header) => header.seal(&mut datagram),
        }
        datagram
    }

    /// Reads an answer in the layout of the packet it answers.
    /// A job without checksums has zeros in their place.
    pub fn parse_like<'a>(&self, datagram: &'a [u8], has_checksum: bool) -> Result<(Header, &'a [u8]), String> {
        match self {
            Header::Fanin(_) if !has_checksum => {
                let (header, payload) = fanin::Header::parse_unsummed(datagram).map_err(|error| error.to_string())?;
                let field = &datagram[CHECKSUM_OFFSET..HEADER_BYTES];
                if field != [0; HEADER_BYTES - CHECKSUM_OFFSET] {
                    return Err(format!("a checksum {field:?} in a job without"));
                }
                Ok((Header::Fanin(header), payload))
            }
            Header::Fanin(_) => fanin::Header::parse(datagram)
                .map(|(header, payload)| (Header::Fanin(header), payload))
                .map_err(|error| error.to_string()),
            Header::P4app(_) => p4app::Header::parse(datagram)
                .map(|(header, payload)| (Header::P4app(header), payload))
                .map_err(|error| error.to_string()),
        }
    }
}

/// Elements of a payload: as many as are written unless more are asked for.
pub(super) fn element_count(elements: &[i64], asked: Option<u16>, config: &JobConfig) -> u16 {
    let least = if config.wire_format == WireFormat::P4app { config.element_count_max } else { elements.len() as u16 };
    asked.unwrap_or(least)
}

/// Elements as written in files: signed words and bytes, unsigned halves; raw floats as their bits.
pub(super) fn elements_of(payload: &[u8], format: ElementFormat) -> Vec<i64> {
    match format {
        ElementFormat::Int32 | ElementFormat::Fixed32 => payload
            .chunks_exact(4)
            .map(|word| i64::from(i32::from_be_bytes([word[0], word[1], word[2], word[3]])))
            .collect(),
        ElementFormat::Int8 => payload.iter().map(|byte| i64::from(*byte as i8)).collect(),
        ElementFormat::Float16 | ElementFormat::Bfloat16 => {
            payload.chunks_exact(2).map(|half| i64::from(u16::from_be_bytes([half[0], half[1]]))).collect()
        }
        ElementFormat::RawFloat32 => payload
            .chunks_exact(4)
            .map(|word| i64::from(u32::from_le_bytes([word[0], word[1], word[2], word[3]])))
            .collect(),
        ElementFormat::RawFloat16 | ElementFormat::RawBfloat16 => {
            payload.chunks_exact(2).map(|half| i64::from(u16::from_le_bytes([half[0], half[1]]))).collect()
        }
    }
}

/// Elements of a file in the same form: words may be written unsigned.
pub(super) fn normalised(elements: &[i64], count: u16, format: ElementFormat) -> Vec<i64> {
    let mut elements: Vec<i64> = elements
        .iter()
        .map(|&element| match format {
            ElementFormat::Int32 | ElementFormat::Fixed32 => i64::from(element as i32),
            ElementFormat::RawFloat32 => i64::from(element as u32),
            ElementFormat::Float16
            | ElementFormat::Bfloat16
            | ElementFormat::RawFloat16
            | ElementFormat::RawBfloat16 => i64::from(element as u16),
            ElementFormat::Int8 => i64::from(element as i8),
        })
        .collect();
    elements.resize(usize::from(count), 0);
    elements
}

fn fanin_answer(sent: &fanin::Header, expect: &Expect, config: &JobConfig, has_payload: bool) -> fanin::Header {
    let exponent = expect.exponent_next.map_or(BLOCK_EXPONENT_NOT_NEEDED, |exponent| exponent.0);
    let elements = if has_payload { element_count(&expect.elements, expect.element_count, config) } else { 0 };
    let aggregate =
        fanin::Header { kind: Kind::Aggregate, block_exponent_next: exponent, element_count: elements, ..*sent };
    let mut answer = match expect.verdict {
        VerdictName::Multicast => fanin::Header { worker_rank: RANK_ALL, ..aggregate },
        VerdictName::Reply => aggregate,
        VerdictName::Refuse => {
            let detail = expect.reason.map_or(0, DropReason::code);
            fanin::Header { kind: Kind::Refusal, detail, element_count: 0, ..*sent }
        }
        VerdictName::Missing => fanin::Header { kind: Kind::Missing, element_count: 0, ..*sent },
        VerdictName::ProbeReply => fanin::Header { kind: Kind::ProbeReply, ..*sent },
        VerdictName::Absorb | VerdictName::Drop => *sent,
    };
    answer.echo = expect.echo.unwrap_or(answer.echo);
    answer.detail = expect.detail.unwrap_or(answer.detail);
    answer.worker_rank = expect.worker_rank.unwrap_or(answer.worker_rank);
    answer
}

fn fanin_fields(header: &fanin::Header) -> Fields {
    vec![
        ("kind", header.kind.to_string()),
        ("job_id", format!("{:#x}", header.job_id)),
        ("job_token", format!("{:#x}", header.job_token)),
        ("worker_rank", header.worker_rank.to_string()),
        ("slot_index", header.slot_index.to_string()),
        ("slot_parity", header.slot_parity.to_string()),
        ("chunk_index", header.chunk_index.to_string()),
        ("collective_tag", format!("{:#x}", header.collective_tag)),
        ("exponent_next", header.block_exponent_next.to_string()),
        ("element_count", header.element_count.to_string()),
        ("element_format", header.element_format.to_string()),
        ("operator", header.operator.to_string()),
        ("detail", header.detail.to_string()),
        ("destination", header.destination.to_string()),
        ("echo", format!("{:#x}", header.echo)),
    ]
}

fn p4app_fields(header: &p4app::Header) -> Fields {
    vec![
        ("job_number", header.job_number.to_string()),
        ("packet_id", format!("{:#x}", header.packet_id)),
        ("slot_index", header.slot_index.to_string()),
        ("slot_parity", header.slot_parity.to_string()),
        ("exponent_next", header.exponent.to_string()),
        ("element_count", header.element_count.to_string()),
    ]
}
