//! The UDP layout of the public p4app-switchML program, byte for byte.
//!
//! Eight header bytes, two signed exponents (only the first is used by the
//! public client), then 32-bit big-endian words. There is no worker rank in
//! the packet: the switch knows a worker by its source address. There is no
//! version, token or checksum either; see `spec/PROTOCOL.md` for what follows.

use crate::generated::{
    P4APP_BLOCK_EXPONENT_OFFSET, P4APP_BLOCK_EXPONENT_SECOND_OFFSET, P4APP_JOB_NUMBER_OFFSET,
    P4APP_JOB_TYPE_ALL_REDUCE, P4APP_JOB_TYPE_SHIFT, P4APP_PACKET_ID_OFFSET, P4APP_SIZE_CODE_MASK,
    P4APP_SLOT_INDEX_MASK, P4APP_SLOT_OFFSET, P4APP_SLOT_PARITY_SHIFT, P4APP_TYPE_AND_SIZE_OFFSET,
};
use crate::{ParseError, put, u16_at, u32_at};

pub use crate::generated::P4APP_HEADER_BYTES as HEADER_BYTES;

/// Elements of size code 0; each further code doubles them.
const ELEMENTS_SMALLEST: u16 = 32;
/// Largest size code.
const SIZE_CODE_MAX: u8 = 3;

/// One p4app-switchML header with its exponent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Job number; the client checks the low eight bits of its job id.
    pub job_number: u8,
    /// Opaque to the switch, which echoes it.
    pub packet_id: u32,
    /// Slot, below 32,768.
    pub slot_index: u16,
    /// Which of the slot's two copies, 0 or 1.
    pub slot_parity: u8,
    /// Exponent of the block that follows on the same slot.
    pub exponent: i8,
    /// Elements: 32, 64, 128 or 256.
    pub element_count: u16,
}

impl Header {
    /// Bytes of the whole UDP payload.
    pub fn datagram_bytes(&self) -> usize {
        HEADER_BYTES + usize::from(self.element_count) * 4
    }

    /// Reads and checks a UDP payload; the words borrow from it.
    pub fn parse(datagram: &[u8]) -> Result<(Header, &[u8]), ParseError> {
        if datagram.len() < HEADER_BYTES {
            return Err(ParseError::Truncated);
        }
        let type_and_size = datagram[P4APP_TYPE_AND_SIZE_OFFSET];
        if type_and_size >> P4APP_JOB_TYPE_SHIFT != P4APP_JOB_TYPE_ALL_REDUCE {
            return Err(ParseError::BadKind);
        }
        let size_code = type_and_size & P4APP_SIZE_CODE_MASK;
        if size_code > SIZE_CODE_MAX {
            return Err(ParseError::BadLength);
        }
        let slot = u16_at(datagram, P4APP_SLOT_OFFSET);
        let header = Header {
            job_number: datagram[P4APP_JOB_NUMBER_OFFSET],
            packet_id: u32_at(datagram, P4APP_PACKET_ID_OFFSET),
            slot_index: slot & P4APP_SLOT_INDEX_MASK,
            slot_parity: (slot >> P4APP_SLOT_PARITY_SHIFT) as u8,
            exponent: datagram[P4APP_BLOCK_EXPONENT_OFFSET] as i8,
            element_count: ELEMENTS_SMALLEST << size_code,
        };
        if datagram.len() != header.datagram_bytes() {
            return Err(ParseError::BadLength);
        }
        Ok((header, &datagram[HEADER_BYTES..]))
    }

    /// Writes the header in front of words that already lie in place.
    pub fn seal(&self, datagram: &mut [u8]) {
        assert_eq!(datagram.len(), self.datagram_bytes(), "datagram buffer does not match the header");
        let size_code = (self.element_count / ELEMENTS_SMALLEST).trailing_zeros() as u8;
        let carried = size_code <= SIZE_CODE_MAX && self.element_count == ELEMENTS_SMALLEST << size_code;
        assert!(carried, "p4app carries 32, 64, 128 or 256 elements");
        let slot = self.slot_index | u16::from(self.slot_parity) << P4APP_SLOT_PARITY_SHIFT;
        datagram[P4APP_TYPE_AND_SIZE_OFFSET] = P4APP_JOB_TYPE_ALL_REDUCE << P4APP_JOB_TYPE_SHIFT | size_code;
        datagram[P4APP_JOB_NUMBER_OFFSET] = self.job_number;
        put(datagram, P4APP_PACKET_ID_OFFSET, self.packet_id.to_be_bytes());
        put(datagram, P4APP_SLOT_OFFSET, slot.to_be_bytes());
        datagram[P4APP_BLOCK_EXPONENT_OFFSET] = self.exponent as u8;
        datagram[P4APP_BLOCK_EXPONENT_SECOND_OFFSET] = 0;
    }
}
