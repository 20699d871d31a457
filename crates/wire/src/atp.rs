//! The ATP datagram: a 64-byte big-endian header and a payload of big-endian elements.
//!
//! It carries what ATP's packet carries (ATP §3.3, Fig. 5: job and sequence number, aggregator index, two bitmaps and
//! fan-in degrees, edge switch identifier, flags), for four levels of switches in place of two (ATP App. A.2), and adds
//! what the fanin datagram adds: a version, a job token, a tag that tells two collectives apart, and a CRC-32C.

use crate::checksum::crc32c;
use crate::generated::{
    ATP_CHECKSUM_OFFSET, ATP_CHUNK_INDEX_OFFSET, ATP_COLLECTIVE_TAG_OFFSET, ATP_COLLISION_MASK,
    ATP_CONTRIBUTED_0_OFFSET, ATP_DESTINATION_OFFSET, ATP_DETAIL_OFFSET, ATP_ECHO_OFFSET, ATP_ECN_MASK,
    ATP_ELEMENT_COUNT_OFFSET, ATP_ELEMENT_FORMAT_MASK, ATP_FAN_IN_0_OFFSET, ATP_FLAGS_OFFSET,
    ATP_FORMAT_AND_OPERATOR_OFFSET, ATP_HEADER_BYTES, ATP_IS_SATURATED_MASK, ATP_JOB_ID_OFFSET, ATP_JOB_TOKEN_OFFSET,
    ATP_KIND_OFFSET, ATP_LANE_OFFSET, ATP_LEVEL_COUNT_MAX, ATP_LEVEL_OFFSET, ATP_MAGIC, ATP_MAGIC_OFFSET,
    ATP_OPERATOR_SHIFT, ATP_RESEND_MASK, ATP_SCALE_NEXT_OFFSET, ATP_SCALE_OFFSET, ATP_SLOT_INDEX_NEXT_OFFSET,
    ATP_SLOT_INDEX_OFFSET, ATP_VERSION_OFFSET, ATP_WORKER_RANK_OFFSET, Accumulator, Operator, VERSION,
};
use crate::{ParseError, put, u16_at, u32_at};

pub use crate::generated::{AtpElementFormat as ElementFormat, AtpKind as Kind};

/// Levels of switches that a header has room for.
pub const LEVEL_COUNT_MAX: usize = ATP_LEVEL_COUNT_MAX as usize;

/// Directions to switches and answers from them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags {
    /// Not to be aggregated on the way; frees the slot of its chunk.
    pub resend: bool,
    /// A queue on the way was longer than its threshold.
    pub ecn: bool,
    /// A switch found the slot taken by another chunk.
    pub collision: bool,
    /// Parameter: some sum left 32 bits, send the chunk as Float32. Fragment: sent because of that.
    pub is_saturated: bool,
}

/// Every field of the header except magic, version and checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the datagram is.
    pub kind: Kind,
    /// Job number on the switch in the low 8 bits, its generation above.
    pub job_id: u32,
    /// Random per job instance, so that a worker of an older run is recognised.
    pub job_token: u32,
    /// Position in the lane's stream of chunks; wraps. The paper's sequence number.
    pub chunk_index: u32,
    /// Hash of the collective's shape; equal at all workers.
    pub collective_tag: u32,
    /// By level: the children of the switch there that are in the payload.
    pub contributed: [u32; LEVEL_COUNT_MAX],
    /// By level: how many children the switch there has. Parameter: a bit for each worker that `detail` counts.
    pub fan_in: [u8; LEVEL_COUNT_MAX],
    /// Of the switch that handles the packet next.
    pub level: u8,
    /// Directions.
    pub flags: Flags,
    /// Chunk indices count per lane.
    pub lane: u16,
    /// Where switches aggregate the chunk.
    pub slot_index: u16,
    /// Parameter: the slot of the chunk one window further on.
    pub slot_index_next: u16,
    /// Fragment: the sender, or `RANK_ALL` once aggregated. Parameter: the receiver, or `RANK_ALL`.
    pub worker_rank: u16,
    /// Elements in the payload; 0 counts as a vector of zeros.
    pub element_count: u16,
    /// How one element is encoded.
    pub element_format: ElementFormat,
    /// How elements are combined.
    pub operator: Operator,
    /// Number of the attempt; Refusal: reason code; Parameter: workers that are not in the sum.
    pub detail: u8,
    /// Rank that receives the payload of the Parameter, or `RANK_ALL`.
    pub destination: u16,
    /// Of Fixed32 elements: 0 for units of 10^-8, else the code of the exponent.
    pub scale: u8,
    /// Fragment: the code of the largest exponent one window further on, as far as the packet's workers know it. Parameter:
    /// `scale` there.
    pub scale_next: u8,
    /// Fragment of raw elements, and a Parameter that asks for floats: how many elements of the sum have left the accumulator's
    /// format, at most 65,535.
    pub echo: u16,
}

impl ElementFormat {
    /// Bytes of one element on the wire.
    #[inline]
    pub const fn bytes(self) -> usize {
        match self {
            ElementFormat::RawFloat16 | ElementFormat::RawBfloat16 => 2,
            _ => 4,
        }
    }

    /// The format of raw elements that another layout has under this name; `None` for what is no raw element.
    pub const fn raw(format: crate::ElementFormat) -> Option<ElementFormat> {
        match format {
            crate::ElementFormat::RawFloat32 => Some(ElementFormat::RawFloat32),
            crate::ElementFormat::RawFloat16 => Some(ElementFormat::RawFloat16),
            crate::ElementFormat::RawBfloat16 => Some(ElementFormat::RawBfloat16),
            _ => None,
        }
    }

    /// Whether elements are floats as they lie in memory, which the job's accumulator adds.
    pub const fn is_raw(self) -> bool {
        matches!(self, ElementFormat::RawFloat32 | ElementFormat::RawFloat16 | ElementFormat::RawBfloat16)
    }
}

impl Accumulator {
    /// Whether an ATP job can have this accumulator: `block-fixed` needs an exponent that all workers have agreed on before.
    pub const fn suits_atp(self) -> bool {
        !matches!(self, Accumulator::BlockFixed)
    }

    /// Whether the switches of a job meet causes that they can count: not where fixed point always fits, nor in ATP's, whose servers
    /// find what does not and ask for floats.
    pub const fn is_counted(self, is_atp: bool) -> bool {
        match self {
            Accumulator::BlockFixed => false,
            Accumulator::StaticFixed => !is_atp,
            _ => true,
        }
    }

    /// Whether an ATP job with this accumulator has elements of this format. Int32 carries what is no sum of floats, Float32 sums
    /// that have left the accumulator's format.
    pub const fn takes_atp(self, format: ElementFormat) -> bool {
        match format {
            ElementFormat::Int32 | ElementFormat::Float32 => true,
            format => format.is_raw() == self.is_raw(),
        }
    }
}

impl Header {
    /// Bytes of the whole datagram.
    #[inline]
    pub fn datagram_bytes(&self) -> usize {
        ATP_HEADER_BYTES + usize::from(self.element_count) * self.element_format.bytes()
    }

    /// Reads and checks a datagram; the payload borrows from it.
    ///
    /// # Errors
    /// [`ParseError`], for whatever can be checked without knowing the job.
    pub fn parse(datagram: &[u8]) -> Result<(Header, &[u8]), ParseError> {
        let Some((bytes, payload)) = datagram.split_first_chunk() else {
            return Err(ParseError::Truncated);
        };
        if u16_at(bytes, ATP_MAGIC_OFFSET) != ATP_MAGIC {
            return Err(ParseError::BadMagic);
        }
        if bytes[ATP_VERSION_OFFSET] != VERSION {
            return Err(ParseError::BadVersion);
        }
        let header = Header::decode(bytes)?;
        if datagram.len() != header.datagram_bytes() {
            return Err(ParseError::BadLength);
        }
        if u32_at(datagram, ATP_CHECKSUM_OFFSET) != checksum(datagram) {
            return Err(ParseError::BadChecksum);
        }
        Ok((header, payload))
    }

    /// Reads the header of what may be no whole or valid datagram, for tools that make one of it.
    pub fn parse_unchecked(datagram: &[u8]) -> Option<Header> {
        Header::decode(datagram.first_chunk()?).ok()
    }

    #[inline(always)]
    fn decode(bytes: &[u8; ATP_HEADER_BYTES]) -> Result<Header, ParseError> {
        let codes = bytes[ATP_FORMAT_AND_OPERATOR_OFFSET];
        Ok(Header {
            kind: Kind::try_from(bytes[ATP_KIND_OFFSET]).map_err(|_| ParseError::BadKind)?,
            job_id: u32_at(bytes, ATP_JOB_ID_OFFSET),
            job_token: u32_at(bytes, ATP_JOB_TOKEN_OFFSET),
            chunk_index: u32_at(bytes, ATP_CHUNK_INDEX_OFFSET),
            collective_tag: u32_at(bytes, ATP_COLLECTIVE_TAG_OFFSET),
            contributed: core::array::from_fn(|level| u32_at(bytes, ATP_CONTRIBUTED_0_OFFSET + 4 * level)),
            fan_in: core::array::from_fn(|level| bytes[ATP_FAN_IN_0_OFFSET + level]),
            level: bytes[ATP_LEVEL_OFFSET],
            flags: Flags::decode(bytes[ATP_FLAGS_OFFSET]),
            lane: u16_at(bytes, ATP_LANE_OFFSET),
            slot_index: u16_at(bytes, ATP_SLOT_INDEX_OFFSET),
            slot_index_next: u16_at(bytes, ATP_SLOT_INDEX_NEXT_OFFSET),
            worker_rank: u16_at(bytes, ATP_WORKER_RANK_OFFSET),
            element_count: u16_at(bytes, ATP_ELEMENT_COUNT_OFFSET),
            element_format: ElementFormat::try_from(codes & ATP_ELEMENT_FORMAT_MASK)
                .map_err(|_| ParseError::BadElementFormat)?,
            operator: Operator::try_from(codes >> ATP_OPERATOR_SHIFT).map_err(|_| ParseError::BadOperator)?,
            detail: bytes[ATP_DETAIL_OFFSET],
            destination: u16_at(bytes, ATP_DESTINATION_OFFSET),
            scale: bytes[ATP_SCALE_OFFSET],
            scale_next: bytes[ATP_SCALE_NEXT_OFFSET],
            echo: u16_at(bytes, ATP_ECHO_OFFSET),
        })
    }

    /// Writes the header; the payload must already lie behind it, because the checksum covers both.
    ///
    /// # Panics
    /// If `datagram` is not exactly [`Header::datagram_bytes`] long.
    pub fn seal(&self, datagram: &mut [u8]) {
        assert_eq!(datagram.len(), self.datagram_bytes(), "datagram buffer does not match the header");
        self.encode(datagram.first_chunk_mut().expect("a datagram is at least a header"));
        let sum = checksum(datagram);
        put(datagram, ATP_CHECKSUM_OFFSET, sum.to_be_bytes());
    }

    #[inline(always)]
    fn encode(&self, bytes: &mut [u8; ATP_HEADER_BYTES]) {
        put(bytes, ATP_MAGIC_OFFSET, ATP_MAGIC.to_be_bytes());
        bytes[ATP_VERSION_OFFSET] = VERSION;
        bytes[ATP_KIND_OFFSET] = self.kind as u8;
        put(bytes, ATP_JOB_ID_OFFSET, self.job_id.to_be_bytes());
        put(bytes, ATP_JOB_TOKEN_OFFSET, self.job_token.to_be_bytes());
        put(bytes, ATP_CHUNK_INDEX_OFFSET, self.chunk_index.to_be_bytes());
        put(bytes, ATP_COLLECTIVE_TAG_OFFSET, self.collective_tag.to_be_bytes());
        for (level, word) in self.contributed.into_iter().enumerate() {
            put(bytes, ATP_CONTRIBUTED_0_OFFSET + 4 * level, word.to_be_bytes());
        }
        put(bytes, ATP_FAN_IN_0_OFFSET, self.fan_in);
        bytes[ATP_LEVEL_OFFSET] = self.level;
        bytes[ATP_FLAGS_OFFSET] = self.flags.encode();
        put(bytes, ATP_LANE_OFFSET, self.lane.to_be_bytes());
        put(bytes, ATP_SLOT_INDEX_OFFSET, self.slot_index.to_be_bytes());
        put(bytes, ATP_SLOT_INDEX_NEXT_OFFSET, self.slot_index_next.to_be_bytes());
        put(bytes, ATP_WORKER_RANK_OFFSET, self.worker_rank.to_be_bytes());
        put(bytes, ATP_ELEMENT_COUNT_OFFSET, self.element_count.to_be_bytes());
        bytes[ATP_FORMAT_AND_OPERATOR_OFFSET] = self.element_format as u8 | (self.operator as u8) << ATP_OPERATOR_SHIFT;
        bytes[ATP_DETAIL_OFFSET] = self.detail;
        put(bytes, ATP_DESTINATION_OFFSET, self.destination.to_be_bytes());
        bytes[ATP_SCALE_OFFSET] = self.scale;
        bytes[ATP_SCALE_NEXT_OFFSET] = self.scale_next;
        put(bytes, ATP_ECHO_OFFSET, self.echo.to_be_bytes());
        put(bytes, ATP_CHECKSUM_OFFSET, [0; 4]);
    }
}

impl Flags {
    fn decode(byte: u8) -> Flags {
        Flags {
            resend: byte & ATP_RESEND_MASK != 0,
            ecn: byte & ATP_ECN_MASK != 0,
            collision: byte & ATP_COLLISION_MASK != 0,
            is_saturated: byte & ATP_IS_SATURATED_MASK != 0,
        }
    }

    fn encode(self) -> u8 {
        let bit = |is_set: bool, mask: u8| if is_set { mask } else { 0 };
        bit(self.resend, ATP_RESEND_MASK)
            | bit(self.ecn, ATP_ECN_MASK)
            | bit(self.collision, ATP_COLLISION_MASK)
            | bit(self.is_saturated, ATP_IS_SATURATED_MASK)
    }
}

/// CRC-32C of the datagram with its checksum field left out.
fn checksum(datagram: &[u8]) -> u32 {
    crc32c([&datagram[..ATP_CHECKSUM_OFFSET], &datagram[ATP_HEADER_BYTES..]])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            kind: Kind::Fragment,
            job_id: 0x0102_0304,
            job_token: 0x0506_0708,
            chunk_index: 0x090a_0b0c,
            collective_tag: 0x0d0e_0f10,
            contributed: [1, 0x8000_0000, 3, 4],
            fan_in: [2, 32, 4, 5],
            level: 1,
            flags: Flags { resend: true, ecn: false, collision: true, is_saturated: false },
            lane: 7,
            slot_index: 0xfffe,
            slot_index_next: 0x1234,
            worker_rank: 255,
            element_count: 3,
            element_format: ElementFormat::Fixed32,
            operator: Operator::Add,
            detail: 9,
            destination: 0xffff,
            scale: 0x11,
            scale_next: 0x12,
            echo: 0x1314,
        }
    }

    fn datagram(header: &Header) -> [u8; ATP_HEADER_BYTES + 12] {
        let mut datagram = [0x5a; ATP_HEADER_BYTES + 12];
        header.seal(&mut datagram);
        datagram
    }

    #[test]
    fn what_is_sealed_is_parsed() {
        for bits in 0..16u8 {
            let header = Header { flags: Flags::decode(bits), ..header() };
            assert_eq!(header.flags.encode(), bits);
            let datagram = datagram(&header);
            assert_eq!(Header::parse(&datagram), Ok((header, &[0x5a; 12][..])));
        }
    }

    #[test]
    fn every_damaged_bit_is_noticed() {
        let whole = datagram(&header());
        for bit in 0..whole.len() * 8 {
            let mut damaged = whole;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::parse(&damaged).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn every_shorter_and_longer_datagram_is_refused() {
        let whole = datagram(&header());
        for bytes in 0..whole.len() {
            let error = Header::parse(&whole[..bytes]).unwrap_err();
            let expected = if bytes < ATP_HEADER_BYTES { ParseError::Truncated } else { ParseError::BadLength };
            assert_eq!(error, expected, "{bytes} bytes");
        }
        let longer: [u8; ATP_HEADER_BYTES + 13] = core::array::from_fn(|at| *whole.get(at).unwrap_or(&0));
        assert_eq!(Header::parse(&longer), Err(ParseError::BadLength));
    }

    #[test]
    fn the_two_datagrams_are_told_apart() {
        assert_eq!(crate::fanin::Header::parse(&datagram(&header())), Err(ParseError::BadMagic));
    }
}
