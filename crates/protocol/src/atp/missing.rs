//! What a Parameter declares about the sum that it carries: whose contributions are not in it.

use fanin_wire::atp::Header;

use crate::switchml::Contributed;

/// Ranks that a header has bits for.
const RANKS_NAMED: u16 = 32;

/// Workers whose contributions a sum does not hold. None, unless the job goes on without some.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Missing {
    /// How many.
    pub count: u16,
    /// Who: a bit for each rank. `None` where a rank is above 31, which a header has no bit for.
    pub ranks: Option<u32>,
}

impl Missing {
    /// Those of `worker_count` that are not in `contributed`.
    pub(super) fn from(contributed: &Contributed, worker_count: u16) -> Missing {
        let bits = contributed.missing(worker_count.min(RANKS_NAMED)).fold(0, |bits, rank| bits | 1 << rank);
        let ranks = (worker_count <= RANKS_NAMED).then_some(bits);
        // A sum holds somebody's contribution, so that 255 is the most.
        Missing { count: contributed.missing(worker_count).count() as u16, ranks }
    }

    /// As a Parameter carries it.
    pub(super) fn write(&self, header: &mut Header) {
        header.detail = self.count.min(255) as u8;
        header.fan_in = self.ranks.unwrap_or(0).to_be_bytes();
    }

    /// What a Parameter declares.
    pub(super) fn read(header: &Header) -> Missing {
        let (count, bits) = (u16::from(header.detail), u32::from_be_bytes(header.fan_in));
        Missing { count, ranks: (bits.count_ones() == u32::from(count)).then_some(bits) }
    }
}
