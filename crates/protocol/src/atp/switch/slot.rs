//! A slot of the pool that all jobs share (ATP §3.3, Fig. 6).

use fanin_wire::atp::{ElementFormat, Header};
use fanin_wire::generated::Operator;

use crate::time::Time;

/// What a slot is taken by: the paper's `<Job ID, Sequence Number>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Owner {
    pub job_id: u32,
    pub lane: u16,
    pub chunk_index: u32,
}

/// Soft state: it may be forgotten at any time, and the server makes the chunk whole.
#[derive(Clone, Debug, Hash)]
pub(super) struct Slot {
    pub owner: Option<Owner>,
    /// Children of this switch whose contributions are in the sum.
    pub contributed: u32,
    /// A packet in the sum had met a long queue.
    pub ecn: bool,
    /// When the last contribution was added.
    pub touched: Time,
    pub collective_tag: u32,
    /// 0 as long as only empty contributions came.
    pub element_count: u16,
    pub element_format: ElementFormat,
    pub operator: Operator,
    pub destination: u16,
    /// Of fixed point in the sum.
    pub scale: u8,
    /// The smallest that a contribution asks for one window further on, in the header's code.
    pub scale_next: u8,
}

impl Owner {
    pub fn of(header: &Header) -> Owner {
        Owner { job_id: header.job_id, lane: header.lane, chunk_index: header.chunk_index }
    }
}

impl Slot {
    pub const FREE: Slot = Slot {
        owner: None,
        contributed: 0,
        ecn: false,
        touched: Time::ZERO,
        collective_tag: 0,
        element_count: 0,
        element_format: ElementFormat::Int32,
        operator: Operator::Add,
        destination: 0,
        scale: 0,
        scale_next: 0,
    };

    pub fn is_owned_by(&self, header: &Header) -> bool {
        self.owner == Some(Owner::of(header))
    }
}
