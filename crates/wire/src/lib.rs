//! What travels between workers, switches and servers: the fanin v1 datagram,
//! ATP's, PANAMA's, and the public p4app-switchML UDP layout.
//!
//! Each format is a small value (`Header`) that is parsed from bytes and
//! emitted to bytes; parsing checks everything that can be checked without
//! knowing the job. Offsets, codes and limits are generated from
//! `spec/fields.toml`, which the P4, SystemVerilog and Python twins share.
#![cfg_attr(not(feature = "std"), no_std)]
#![deny(unsafe_code)]

pub mod atp;
mod checksum;
pub mod fanin;
pub mod generated;
pub mod p4app;
pub mod panama;

use core::net::Ipv4Addr;

pub use generated::{Accumulator, ElementFormat, Kind, Operator, ProbePath};

/// The multicast group to which a switch may send a lane's Aggregates, once
/// for all ranks; its port is the lane's data port.
pub fn multicast_group(job_token: u32, lane: u16) -> Ipv4Addr {
    let host = job_token.wrapping_add(u32::from(lane)) & generated::MULTICAST_GROUP_MASK;
    Ipv4Addr::from_bits(generated::MULTICAST_GROUP_BASE | host)
}

/// Why bytes are not a datagram of the format they were parsed as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Shorter than the header.
    #[error("datagram is shorter than its header")]
    Truncated,
    /// The first two bytes are not fanin's.
    #[error("magic number is not fanin's")]
    BadMagic,
    /// Another version of the format.
    #[error("format version is not supported")]
    BadVersion,
    /// A kind that this version does not define.
    #[error("kind of datagram is not defined")]
    BadKind,
    /// The payload is not `element_count` elements long.
    #[error("payload length does not match the element count")]
    BadLength,
    /// An element format that this version does not define.
    #[error("element format is not defined")]
    BadElementFormat,
    /// An operator that this version does not define.
    #[error("operator is not defined")]
    BadOperator,
    /// The CRC-32C of the datagram does not match: it was damaged on the way.
    #[error("checksum does not match: the datagram was damaged on the way")]
    BadChecksum,
}

impl ElementFormat {
    /// Bytes of one element on the wire.
    #[inline]
    pub const fn bytes(self) -> usize {
        match self {
            ElementFormat::Int32 | ElementFormat::RawFloat32 | ElementFormat::Fixed32 => 4,
            ElementFormat::Float16
            | ElementFormat::Bfloat16
            | ElementFormat::RawFloat16
            | ElementFormat::RawBfloat16 => 2,
            ElementFormat::Int8 => 1,
        }
    }

    /// Whether elements are scaled by an exponent that the workers agree on, or no sum of floats at all.
    #[inline]
    pub const fn is_block_scaled(self) -> bool {
        matches!(self, ElementFormat::Int32 | ElementFormat::Float16 | ElementFormat::Bfloat16 | ElementFormat::Int8)
    }
}

impl Accumulator {
    /// The one with this code, as control messages carry it.
    pub fn from_code(code: u32) -> Option<Accumulator> {
        Accumulator::try_from(u8::try_from(code).ok()?).ok()
    }

    /// Whether a job with this accumulator has elements of this format. Int32 carries what is no sum of floats, and sums that
    /// have left the accumulator's own format.
    pub const fn takes(self, format: ElementFormat) -> bool {
        match (self, format) {
            (_, ElementFormat::Int32) => true,
            (Accumulator::BlockFixed, format) => format.is_block_scaled(),
            (Accumulator::StaticFixed, format) => matches!(format, ElementFormat::Fixed32),
            (_, format) => !format.is_block_scaled() && !matches!(format, ElementFormat::Fixed32),
        }
    }

    /// Whether workers send floats as they lie in memory.
    pub const fn is_raw(self) -> bool {
        !matches!(self, Accumulator::BlockFixed | Accumulator::StaticFixed)
    }

    /// The name that people write: `block-fixed`, `fpisa-a`.
    pub const fn label(self) -> &'static str {
        match self {
            Accumulator::BlockFixed => "block-fixed",
            Accumulator::StaticFixed => "static-fixed",
            Accumulator::Fpisa => "fpisa",
            Accumulator::FpisaA => "fpisa-a",
            Accumulator::LogTable => "log-table",
            Accumulator::Ieee => "ieee",
            Accumulator::Exact => "exact",
        }
    }

    /// The accumulator of a [`Self::label`].
    pub fn from_label(label: &str) -> Option<Accumulator> {
        Accumulator::ALL.into_iter().find(|accumulator| accumulator.label() == label)
    }
}

#[inline]
pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u16::from_be_bytes([bytes[offset], bytes[offset + 1]])
}

#[inline]
pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_be_bytes([bytes[offset], bytes[offset + 1], bytes[offset + 2], bytes[offset + 3]])
}

#[inline]
pub(crate) fn put<const N: usize>(bytes: &mut [u8], offset: usize, field: [u8; N]) {
    bytes[offset..offset + N].copy_from_slice(&field);
}
