//! Stage 1: is this a valid contribution for a live job and slot?

use fanin_numeric::BlockExponent;
use fanin_wire::generated::RANK_ALL;
use fanin_wire::{ElementFormat, Kind, Operator, fanin, p4app};

use super::job::{Job, WireFormat};
use super::slot::SlotPair;
use crate::DropReason;

/// Which use of a slot copy a packet belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// The one the copy is adding up, or has completed.
    Current,
    /// The next one: the copy's result is no longer needed.
    Next,
    /// The layout carries no chunk index: Algorithm 3's bits decide alone.
    Unknown,
}

/// An admitted packet, whichever layout it came in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contribution {
    pub rank: u16,
    pub slot_index: u16,
    pub slot_parity: u8,
    pub slot_use: Use,
    pub chunk_index: u32,
    pub collective_tag: u32,
    pub block_exponent_next: BlockExponent,
    pub element_count: u16,
    pub element_format: ElementFormat,
    pub operator: Operator,
    pub destination: u16,
    pub detail: u8,
    pub echo: u32,
}

/// Admits a Contribution, or a Query about one, in fanin v1.
#[inline(always)]
pub(super) fn fanin(job: &Job, header: &fanin::Header) -> Result<Contribution, DropReason> {
    let config = &job.config;
    if !matches!(header.kind, Kind::Contribution | Kind::Query) {
        return Err(DropReason::NotAContribution);
    }
    if header.job_token != config.job_token || config.wire_format != WireFormat::Fanin {
        return Err(DropReason::StaleToken);
    }
    // A sum for a rank that does not exist would reach nobody.
    let has_receiver = header.destination == RANK_ALL || header.destination < job.destination_count;
    if header.worker_rank >= config.worker_count || !has_receiver {
        return Err(DropReason::BadRank);
    }
    if header.element_count > config.element_count_max {
        return Err(DropReason::ElementCountMismatch);
    }
    if !config.accumulator.takes(header.element_format) {
        return Err(DropReason::BadElementFormat);
    }
    // Narrow elements have sums only: their scales mean nothing to a maximum or to bits. So have floats.
    if header.element_format != ElementFormat::Int32 && header.operator != Operator::Add {
        return Err(DropReason::BadOperator);
    }
    if !slot_matches_chunk(job, header) {
        return Err(DropReason::BadSlot);
    }
    let pair = &job.slots[usize::from(header.slot_index)];
    let slot_use = use_of(pair, header, config.slots_per_lane)?;
    let contribution = contribution_of(header, slot_use);
    same_collective(pair, &contribution)?;
    Ok(contribution)
}

/// Admits a Probe: only a job's own workers get an answer. The layout of the
/// job does not matter, since p4app jobs probe in fanin v1 too.
pub(super) fn probe(job: &Job, header: &fanin::Header) -> Result<(), DropReason> {
    if header.job_token != job.config.job_token {
        return Err(DropReason::StaleToken);
    }
    if header.worker_rank >= job.config.worker_count {
        return Err(DropReason::BadRank);
    }
    if usize::from(header.slot_index) >= job.slots.len() {
        return Err(DropReason::BadSlot);
    }
    // The echo is as long as the Probe, and callers have room for the job's
    // largest datagram only.
    if header.element_count > job.config.element_count_max {
        return Err(DropReason::ElementCountMismatch);
    }
    Ok(())
}

/// Whether slot and parity follow from the chunk.
#[inline(always)]
pub(super) fn slot_matches_chunk(job: &Job, header: &fanin::Header) -> bool {
    let slots = job.config.slots_per_lane;
    let slot_index = u32::from(header.slot_index);
    (slot_index as usize) < job.slots.len()
        && slot_index & (slots - 1) == header.chunk_index & (slots - 1)
        && u32::from(header.slot_parity) == (header.chunk_index >> slots.trailing_zeros()) & 1
}

/// Places the packet's chunk relative to the slot's two copies.
///
/// Algorithm 3 tells uses apart by one bit and so takes a packet that the
/// network held back past two reuses for a new contribution; the chunk index
/// closes that hole.
#[inline(always)]
fn use_of(pair: &SlotPair, header: &fanin::Header, slots_per_lane: u32) -> Result<Use, DropReason> {
    let copy = &pair[usize::from(header.slot_parity)];
    let other = &pair[usize::from(header.slot_parity ^ 1)];
    let ahead = header.chunk_index.wrapping_sub(copy.chunk_index) as i32;
    if ahead == 0 {
        return Ok(Use::Current);
    }
    if ahead < 0 {
        return Err(DropReason::StaleChunk);
    }
    let other_is_predecessor = other.chunk_index == header.chunk_index.wrapping_sub(slots_per_lane);
    if ahead as u32 == 2 * slots_per_lane && copy.is_complete() && other.is_complete() && other_is_predecessor {
        return Ok(Use::Next);
    }
    Err(DropReason::ChunkTooFarAhead)
}

/// A slot adds up one collective: its tag and shape are the first packet's.
#[inline(always)]
fn same_collective(pair: &SlotPair, contribution: &Contribution) -> Result<(), DropReason> {
    let copy = &pair[usize::from(contribution.slot_parity)];
    if contribution.slot_use != Use::Current {
        return Ok(());
    }
    if copy.is_complete() {
        // A resend. The sum of another collective must not answer it.
        let same = copy.collective_tag == contribution.collective_tag;
        return if same { Ok(()) } else { Err(DropReason::CollectiveMismatch) };
    }
    if copy.collective_tag != contribution.collective_tag
        || copy.operator != contribution.operator
        || copy.element_format != contribution.element_format
        || copy.destination != contribution.destination
    {
        return Err(DropReason::CollectiveMismatch);
    }
    let either_empty = copy.element_count == 0 || contribution.element_count == 0;
    if !either_empty && copy.element_count != contribution.element_count {
        return Err(DropReason::ElementCountMismatch);
    }
    Ok(())
}

#[inline(always)]
fn contribution_of(header: &fanin::Header, slot_use: Use) -> Contribution {
    Contribution {
        rank: header.worker_rank,
        slot_index: header.slot_index,
        slot_parity: header.slot_parity,
        slot_use,
        chunk_index: header.chunk_index,
        collective_tag: header.collective_tag,
        block_exponent_next: BlockExponent(header.block_exponent_next),
        element_count: header.element_count,
        element_format: header.element_format,
        operator: header.operator,
        destination: header.destination,
        detail: header.detail,
        echo: header.echo,
    }
}

/// Admits a p4app-switchML packet from a registered worker.
pub(super) fn p4app(job: &Job, header: &p4app::Header, source_rank: Option<u16>) -> Result<Contribution, DropReason> {
    let config = &job.config;
    if config.wire_format != WireFormat::P4app {
        return Err(DropReason::UnknownJob);
    }
    let rank = source_rank.filter(|&rank| rank < config.worker_count).ok_or(DropReason::SourceUnknown)?;
    if usize::from(header.slot_index) >= job.slots.len() {
        return Err(DropReason::BadSlot);
    }
    if header.element_count != config.element_count_max {
        return Err(DropReason::ElementCountMismatch);
    }
    Ok(Contribution {
        rank,
        slot_index: header.slot_index,
        slot_parity: header.slot_parity,
        slot_use: Use::Unknown,
        chunk_index: 0,
        collective_tag: 0,
        block_exponent_next: BlockExponent(i16::from(header.exponent)),
        element_count: header.element_count,
        element_format: ElementFormat::Int32,
        operator: Operator::Add,
        destination: RANK_ALL,
        detail: 0,
        echo: header.packet_id,
    })
}
