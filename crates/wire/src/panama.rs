//! The PANAMA datagram: a 40-byte big-endian header and a payload of big-endian floats.
//!
//! It carries what PANAMA's packet carries (PANAMA Fig. 4: job and tree id, VID, FIN, ECN, `cwnd_cap`) without the IP header's
//! share, and adds what the fanin datagram adds: a version, a job token, a tag that tells two collectives apart, a CRC-32C;
//! and `awaited_vid`, so that switches know which results nobody will ask for again.

use crate::checksum::crc32c;
use crate::generated::{
    PANAMA_AWAITED_VID_OFFSET, PANAMA_CHECKSUM_OFFSET, PANAMA_COLLECTIVE_TAG_OFFSET, PANAMA_CWND_CAP_OFFSET,
    PANAMA_DETAIL_OFFSET, PANAMA_ECN_MASK, PANAMA_ELEMENT_COUNT_OFFSET, PANAMA_ELEMENT_FORMAT_OFFSET, PANAMA_FIN_MASK,
    PANAMA_FLAGS_OFFSET, PANAMA_HEADER_BYTES, PANAMA_JOB_ID_OFFSET, PANAMA_JOB_TOKEN_OFFSET, PANAMA_KIND_OFFSET,
    PANAMA_MAGIC, PANAMA_MAGIC_OFFSET, PANAMA_RESEND_MASK, PANAMA_TREE_OFFSET, PANAMA_VERSION_OFFSET,
    PANAMA_VID_OFFSET, PANAMA_WORKER_COUNT_OFFSET, PANAMA_WORKER_RANK_OFFSET, VERSION,
};
use crate::{ParseError, put, u16_at, u32_at};

pub use crate::generated::{PanamaElementFormat as ElementFormat, PanamaKind as Kind};

/// Directions to switches and answers from them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags {
    /// The sender's last packet in the tree (PANAMA §5).
    pub fin: bool,
    /// Congestion experienced (PANAMA §4.2).
    pub ecn: bool,
    /// Sent again.
    pub resend: bool,
}

/// Every field of the header except magic, version and checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// What the datagram is.
    pub kind: Kind,
    /// Job number on the switch in the low 8 bits, its generation above.
    pub job_id: u32,
    /// Random per job instance, so that a worker of an older run is recognised.
    pub job_token: u32,
    /// Place in the tree's stream; wraps.
    pub vid: u32,
    /// Contribution: the first VID whose Result may still be asked for by the sender or by anybody below it.
    pub awaited_vid: u32,
    /// Hash of the collective's shape; equal at all workers.
    pub collective_tag: u32,
    /// Which of the job's trees.
    pub tree: u8,
    /// Directions.
    pub flags: Flags,
    /// Packets that there is room for on the way, per port of the tree.
    pub cwnd_cap: u16,
    /// Workers whose contributions are in the payload.
    pub worker_count: u16,
    /// Contribution: the sender, or `RANK_ALL` for a sum.
    pub worker_rank: u16,
    /// Elements in the payload; 0 counts as a vector of zeros.
    pub element_count: u16,
    /// How one element is encoded.
    pub element_format: ElementFormat,
    /// Number of the attempt; Refusal: reason code.
    pub detail: u8,
}

impl ElementFormat {
    /// Bytes of one element on the wire.
    #[inline]
    pub const fn bytes(self) -> usize {
        match self {
            ElementFormat::Float32 => 4,
            ElementFormat::Float16 | ElementFormat::Bfloat16 => 2,
        }
    }
}

impl Header {
    /// Bytes of the whole datagram.
    #[inline]
    pub fn datagram_bytes(&self) -> usize {
        PANAMA_HEADER_BYTES + usize::from(self.element_count) * self.element_format.bytes()
    }

    /// Reads and checks a datagram; the payload borrows from it.
    ///
    /// # Errors
    /// [`ParseError`], for whatever can be checked without knowing the job.
    pub fn parse(datagram: &[u8]) -> Result<(Header, &[u8]), ParseError> {
        let Some((bytes, payload)) = datagram.split_first_chunk() else {
            return Err(ParseError::Truncated);
        };
        if u16_at(bytes, PANAMA_MAGIC_OFFSET) != PANAMA_MAGIC {
            return Err(ParseError::BadMagic);
        }
        if bytes[PANAMA_VERSION_OFFSET] != VERSION {
            return Err(ParseError::BadVersion);
        }
        let header = Header::decode(bytes)?;
        if datagram.len() != header.datagram_bytes() {
            return Err(ParseError::BadLength);
        }
        if u32_at(datagram, PANAMA_CHECKSUM_OFFSET) != checksum(datagram) {
            return Err(ParseError::BadChecksum);
        }
        Ok((header, payload))
    }

    /// Reads the header of what may be no whole or valid datagram, for tools that make one of it.
    pub fn parse_unchecked(datagram: &[u8]) -> Option<Header> {
        Header::decode(datagram.first_chunk()?).ok()
    }

    #[inline(always)]
    fn decode(bytes: &[u8; PANAMA_HEADER_BYTES]) -> Result<Header, ParseError> {
        Ok(Header {
            kind: Kind::try_from(bytes[PANAMA_KIND_OFFSET]).map_err(|_| ParseError::BadKind)?,
            job_id: u32_at(bytes, PANAMA_JOB_ID_OFFSET),
            job_token: u32_at(bytes, PANAMA_JOB_TOKEN_OFFSET),
            vid: u32_at(bytes, PANAMA_VID_OFFSET),
            awaited_vid: u32_at(bytes, PANAMA_AWAITED_VID_OFFSET),
            collective_tag: u32_at(bytes, PANAMA_COLLECTIVE_TAG_OFFSET),
            tree: bytes[PANAMA_TREE_OFFSET],
            flags: Flags::decode(bytes[PANAMA_FLAGS_OFFSET]),
            cwnd_cap: u16_at(bytes, PANAMA_CWND_CAP_OFFSET),
            worker_count: u16_at(bytes, PANAMA_WORKER_COUNT_OFFSET),
            worker_rank: u16_at(bytes, PANAMA_WORKER_RANK_OFFSET),
            element_count: u16_at(bytes, PANAMA_ELEMENT_COUNT_OFFSET),
            element_format: ElementFormat::try_from(bytes[PANAMA_ELEMENT_FORMAT_OFFSET])
                .map_err(|_| ParseError::BadElementFormat)?,
            detail: bytes[PANAMA_DETAIL_OFFSET],
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
        put(datagram, PANAMA_CHECKSUM_OFFSET, sum.to_be_bytes());
    }

    #[inline(always)]
    fn encode(&self, bytes: &mut [u8; PANAMA_HEADER_BYTES]) {
        put(bytes, PANAMA_MAGIC_OFFSET, PANAMA_MAGIC.to_be_bytes());
        bytes[PANAMA_VERSION_OFFSET] = VERSION;
        bytes[PANAMA_KIND_OFFSET] = self.kind as u8;
        put(bytes, PANAMA_JOB_ID_OFFSET, self.job_id.to_be_bytes());
        put(bytes, PANAMA_JOB_TOKEN_OFFSET, self.job_token.to_be_bytes());
        put(bytes, PANAMA_VID_OFFSET, self.vid.to_be_bytes());
        put(bytes, PANAMA_AWAITED_VID_OFFSET, self.awaited_vid.to_be_bytes());
        put(bytes, PANAMA_COLLECTIVE_TAG_OFFSET, self.collective_tag.to_be_bytes());
        bytes[PANAMA_TREE_OFFSET] = self.tree;
        bytes[PANAMA_FLAGS_OFFSET] = self.flags.encode();
        put(bytes, PANAMA_CWND_CAP_OFFSET, self.cwnd_cap.to_be_bytes());
        put(bytes, PANAMA_WORKER_COUNT_OFFSET, self.worker_count.to_be_bytes());
        put(bytes, PANAMA_WORKER_RANK_OFFSET, self.worker_rank.to_be_bytes());
        put(bytes, PANAMA_ELEMENT_COUNT_OFFSET, self.element_count.to_be_bytes());
        bytes[PANAMA_ELEMENT_FORMAT_OFFSET] = self.element_format as u8;
        bytes[PANAMA_DETAIL_OFFSET] = self.detail;
        put(bytes, PANAMA_CHECKSUM_OFFSET, [0; 4]);
    }
}

impl Flags {
    fn decode(byte: u8) -> Flags {
        Flags {
            fin: byte & PANAMA_FIN_MASK != 0,
            ecn: byte & PANAMA_ECN_MASK != 0,
            resend: byte & PANAMA_RESEND_MASK != 0,
        }
    }

    fn encode(self) -> u8 {
        let bit = |is_set: bool, mask: u8| if is_set { mask } else { 0 };
        bit(self.fin, PANAMA_FIN_MASK) | bit(self.ecn, PANAMA_ECN_MASK) | bit(self.resend, PANAMA_RESEND_MASK)
    }
}

/// CRC-32C of the datagram with its checksum field left out.
fn checksum(datagram: &[u8]) -> u32 {
    crc32c([&datagram[..PANAMA_CHECKSUM_OFFSET], &datagram[PANAMA_HEADER_BYTES..]])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            kind: Kind::Contribution,
            job_id: 0x0102_0304,
            job_token: 0x0506_0708,
            vid: 0x090a_0b0c,
            awaited_vid: 0x0908_0706,
            collective_tag: 0x0d0e_0f10,
            tree: 3,
            flags: Flags { fin: false, ecn: true, resend: false },
            cwnd_cap: 0xffff,
            worker_count: 17,
            worker_rank: 255,
            element_count: 3,
            element_format: ElementFormat::Float32,
            detail: 9,
        }
    }

    fn datagram(header: &Header) -> [u8; PANAMA_HEADER_BYTES + 12] {
        let mut datagram = [0x5a; PANAMA_HEADER_BYTES + 12];
        header.seal(&mut datagram);
        datagram
    }

    #[test]
    fn what_is_sealed_is_parsed() {
        for bits in 0..8u8 {
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
            let expected = if bytes < PANAMA_HEADER_BYTES { ParseError::Truncated } else { ParseError::BadLength };
            assert_eq!(error, expected, "{bytes} bytes");
        }
        let longer: [u8; PANAMA_HEADER_BYTES + 13] = core::array::from_fn(|at| *whole.get(at).unwrap_or(&0));
        assert_eq!(Header::parse(&longer), Err(ParseError::BadLength));
    }

    #[test]
    fn it_is_told_from_the_other_datagrams() {
        let datagram = datagram(&header());
        assert_eq!(crate::fanin::Header::parse(&datagram), Err(ParseError::BadMagic));
        // ATP's header is longer than this datagram.
        let mut longer = [0; 80];
        longer[..datagram.len()].copy_from_slice(&datagram);
        assert_eq!(crate::atp::Header::parse(&longer), Err(ParseError::BadMagic));
    }
}
