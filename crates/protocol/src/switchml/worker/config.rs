//! What a lane is told when its job is set up.

use fanin_wire::fanin;

use crate::switchml::WireFormat;
use crate::time::Span;

/// Parameters of one lane of one worker.
#[derive(Clone, Copy, Debug)]
pub struct WorkerConfig {
    /// Job number in the low eight bits, generation above.
    pub job_id: u32,
    /// Random per job instance.
    pub job_token: u32,
    /// This worker.
    pub rank: u16,
    /// What it calls itself in `worker_rank`: its number at its switch, which is its rank where the switch has all workers.
    pub number: u16,
    /// Workers of the job.
    pub worker_count: u16,
    /// This lane.
    pub lane: u16,
    /// Slots of this lane, a power of two; also the window (SwitchML §4.4).
    pub slots_per_lane: u32,
    /// Elements of a full block.
    pub element_count_max: u16,
    /// Layout of the datagrams.
    pub wire_format: WireFormat,
    /// Whether fanin datagrams carry a checksum.
    pub has_checksum: bool,
    /// Resend timeout before the first round trip was measured.
    pub resend_timeout_initial: Span,
    /// Lower bound of the resend timeout.
    pub resend_timeout_min: Span,
    /// Upper bound of the resend timeout, back-off included.
    pub resend_timeout_max: Span,
}

impl WorkerConfig {
    /// How this job's datagrams are written.
    pub(super) fn seal(&self, header: &fanin::Header, datagram: &mut [u8]) {
        if self.has_checksum { header.seal(datagram) } else { header.seal_unsummed(datagram) }
    }

    pub(super) fn slot_index(&self, slot_local: u32) -> u16 {
        (u32::from(self.lane) * self.slots_per_lane + slot_local) as u16
    }

    pub(super) fn chunk_index(&self, slot_local: u32, round: u32) -> u32 {
        round.wrapping_mul(self.slots_per_lane).wrapping_add(slot_local)
    }

    /// The lane's slot that a packet names, if it is one of this lane.
    pub(super) fn slot_local(&self, slot_index: u16) -> Option<u32> {
        let first = u32::from(self.lane) * self.slots_per_lane;
        let local = u32::from(slot_index).checked_sub(first)?;
        (local < self.slots_per_lane).then_some(local)
    }
}
