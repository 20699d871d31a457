//! The fanin v1 datagram: a 40-byte big-endian header and a payload of
//! big-endian elements.
//!
//! It carries what SwitchML's packet carries (worker, pool version, pool
//! index, offset, exponent; SwitchML §4.5–4.6) and adds a version, a job
//! token, the chunk index on which stale packets are recognised, a tag that
//! tells two collectives apart, and a CRC-32C.

use crate::checksum::crc32c;
use crate::generated::{
    BLOCK_EXPONENT_NEXT_OFFSET, CHECKSUM_OFFSET, CHUNK_INDEX_OFFSET, COLLECTIVE_TAG_OFFSET, DESTINATION_OFFSET,
    DETAIL_OFFSET, ECHO_OFFSET, ELEMENT_COUNT_OFFSET, ELEMENT_FORMAT_MASK, ElementFormat, FORMAT_AND_OPERATOR_OFFSET,
    HEADER_BYTES, JOB_ID_OFFSET, JOB_TOKEN_OFFSET, KIND_OFFSET, Kind, MAGIC, MAGIC_OFFSET, OPERATOR_SHIFT, Operator,
    SLOT_INDEX_MASK, SLOT_OFFSET, SLOT_PARITY_SHIFT, VERSION, VERSION_OFFSET, WORKER_RANK_OFFSET,
};
use crate::{ParseError, put, u16_at, u32_at};

/// Every field of the header except magic, version and checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the datagram is.
    pub kind: Kind,
    /// Job number on the switch in the low 8 bits, its generation above.
    pub job_id: u32,
    /// Random per job instance, so that a worker of an older run is recognised.
    pub job_token: u32,
    /// Contribution: the sender. Aggregate: the receiver, or `RANK_ALL`.
    pub worker_rank: u16,
    /// Slot within the job's pool, below 32,768.
    pub slot_index: u16,
    /// Which of the slot's two copies, 0 or 1 (SwitchML §4.5, pool version).
    pub slot_parity: u8,
    /// Position in the lane's stream of chunks; wraps.
    pub chunk_index: u32,
    /// Hash of the collective's shape; equal at all workers.
    pub collective_tag: u32,
    /// Exponent of the block that follows on the same slot (SwitchML §4.6).
    pub block_exponent_next: i16,
    /// Elements in the payload; 0 counts as a vector of zeros.
    pub element_count: u16,
    /// How one element is encoded.
    pub element_format: ElementFormat,
    /// How the switch combines elements.
    pub operator: Operator,
    /// Contribution: attempt number. Refusal: reason code.
    pub detail: u8,
    /// Rank that receives the payload of the Aggregate, or `RANK_ALL`.
    pub destination: u16,
    /// Opaque to the switch, which echoes it. Aggregate of Int8: the sum's shift.
    pub echo: u32,
}

impl Header {
    /// Bytes of the payload this header announces.
    #[inline]
    pub fn payload_bytes(&self) -> usize {
        usize::from(self.element_count) * self.element_format.bytes()
    }

    /// Bytes of the whole datagram.
    #[inline]
    pub fn datagram_bytes(&self) -> usize {
        HEADER_BYTES + self.payload_bytes()
    }

    /// Reads and checks a datagram; the payload borrows from it.
    #[inline(always)]
    pub fn parse(datagram: &[u8]) -> Result<(Header, &[u8]), ParseError> {
        let parsed = Header::parse_unsummed(datagram)?;
        check(datagram)?;
        Ok(parsed)
    }

    /// [`Header::parse`] without the checksum: for bytes that nothing can
    /// have damaged, and jobs whose datagrams carry none.
    #[inline(always)]
    pub fn parse_unsummed(datagram: &[u8]) -> Result<(Header, &[u8]), ParseError> {
        let Some((bytes, payload)) = datagram.split_first_chunk() else {
            return Err(ParseError::Truncated);
        };
        if u16_at(bytes, MAGIC_OFFSET) != MAGIC {
            return Err(ParseError::BadMagic);
        }
        if bytes[VERSION_OFFSET] != VERSION {
            return Err(ParseError::BadVersion);
        }
        let header = Header::decode(bytes)?;
        if datagram.len() != header.datagram_bytes() {
            return Err(ParseError::BadLength);
        }
        Ok((header, payload))
    }

    /// The header alone, without any check but that its codes are defined:
    /// for tools that repair or show damaged datagrams.
    pub fn parse_unchecked(datagram: &[u8]) -> Option<Header> {
        Header::decode(datagram.first_chunk()?).ok()
    }

    #[inline(always)]
    fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, ParseError> {
        let slot = u16_at(bytes, SLOT_OFFSET);
        let codes = bytes[FORMAT_AND_OPERATOR_OFFSET];
        Ok(Header {
            kind: Kind::try_from(bytes[KIND_OFFSET]).map_err(|_| ParseError::BadKind)?,
            job_id: u32_at(bytes, JOB_ID_OFFSET),
            job_token: u32_at(bytes, JOB_TOKEN_OFFSET),
            worker_rank: u16_at(bytes, WORKER_RANK_OFFSET),
            slot_index: slot & SLOT_INDEX_MASK,
            slot_parity: (slot >> SLOT_PARITY_SHIFT) as u8,
            chunk_index: u32_at(bytes, CHUNK_INDEX_OFFSET),
            collective_tag: u32_at(bytes, COLLECTIVE_TAG_OFFSET),
            block_exponent_next: u16_at(bytes, BLOCK_EXPONENT_NEXT_OFFSET) as i16,
            element_count: u16_at(bytes, ELEMENT_COUNT_OFFSET),
            element_format: ElementFormat::try_from(codes & ELEMENT_FORMAT_MASK)
                .map_err(|_| ParseError::BadElementFormat)?,
            operator: Operator::try_from(codes >> OPERATOR_SHIFT).map_err(|_| ParseError::BadOperator)?,
            detail: bytes[DETAIL_OFFSET],
            destination: u16_at(bytes, DESTINATION_OFFSET),
            echo: u32_at(bytes, ECHO_OFFSET),
        })
    }

    /// Writes the header; the payload must already lie behind it, because
    /// the checksum covers both. `datagram` must be exactly
    /// [`Header::datagram_bytes`] long.
    #[inline]
    pub fn seal(&self, datagram: &mut [u8]) {
        self.seal_unsummed(datagram);
        let sum = checksum(datagram);
        put(datagram, CHECKSUM_OFFSET, sum.to_be_bytes());
    }

    /// [`Header::seal`] without the checksum, whose field becomes 0: for
    /// readers that use [`Header::parse_unsummed`].
    #[inline]
    pub fn seal_unsummed(&self, datagram: &mut [u8]) {
        assert_eq!(datagram.len(), self.datagram_bytes(), "datagram buffer does not match the header");
        // One length for the compiler to check, instead of one per field.
        let bytes = datagram.first_chunk_mut().expect("a datagram is at least a header");
        self.encode(bytes);
    }

    #[inline(always)]
    fn encode(&self, bytes: &mut [u8; HEADER_BYTES]) {
        let slot = self.slot_index | u16::from(self.slot_parity) << SLOT_PARITY_SHIFT;
        put(bytes, MAGIC_OFFSET, MAGIC.to_be_bytes());
        bytes[VERSION_OFFSET] = VERSION;
        bytes[KIND_OFFSET] = self.kind as u8;
        put(bytes, JOB_ID_OFFSET, self.job_id.to_be_bytes());
        put(bytes, JOB_TOKEN_OFFSET, self.job_token.to_be_bytes());
        put(bytes, WORKER_RANK_OFFSET, self.worker_rank.to_be_bytes());
        put(bytes, SLOT_OFFSET, slot.to_be_bytes());
        put(bytes, CHUNK_INDEX_OFFSET, self.chunk_index.to_be_bytes());
        put(bytes, COLLECTIVE_TAG_OFFSET, self.collective_tag.to_be_bytes());
        put(bytes, BLOCK_EXPONENT_NEXT_OFFSET, self.block_exponent_next.to_be_bytes());
        put(bytes, ELEMENT_COUNT_OFFSET, self.element_count.to_be_bytes());
        bytes[FORMAT_AND_OPERATOR_OFFSET] = self.element_format as u8 | (self.operator as u8) << OPERATOR_SHIFT;
        bytes[DETAIL_OFFSET] = self.detail;
        put(bytes, DESTINATION_OFFSET, self.destination.to_be_bytes());
        put(bytes, ECHO_OFFSET, self.echo.to_be_bytes());
        put(bytes, CHECKSUM_OFFSET, [0; 4]);
    }
}

/// Compares the checksum of a datagram that [`Header::parse_unsummed`] has
/// read: for receivers that learn from the header whether there is one.
#[inline(always)]
pub fn check(datagram: &[u8]) -> Result<(), ParseError> {
    if u32_at(datagram, CHECKSUM_OFFSET) == checksum(datagram) { Ok(()) } else { Err(ParseError::BadChecksum) }
}

/// CRC-32C of the datagram with its checksum field left out.
fn checksum(datagram: &[u8]) -> u32 {
    crc32c([&datagram[..CHECKSUM_OFFSET], &datagram[HEADER_BYTES..]])
}
