//! The switch program: the accelerator's parser, control logic and adders (PANAMA §5, Fig. 6a).
//!
//! The stages are the files beside this one, in the order a packet meets them; they share the stem of SwitchML's. Every tree
//! has a buffer per port. Contributions wait there until every port has the expected VID, are summed in the order of the
//! ports, whatever order they came in, and the VID after it is expected.

mod accumulate;
mod admit;
mod count;
mod decide;
mod dedup;
mod job;
mod place;

use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use fanin_wire::panama::{Header, Kind};

use crate::DropReason;
use crate::panama::unwrap_vid;

pub use accumulate::{Buffers, Floats, HeadersOnly};
pub use decide::Verdict;
pub use job::{InstallError, TreeConfig};

use dedup::Novelty;
use job::{Job, Tree};
use place::State;

/// What a switch knows about a packet beside its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// The port that it came in by.
    pub port: u8,
    /// Its IP header says that congestion was experienced (ECN: CE).
    pub is_marked: bool,
}

/// How a switch is set up, once for all jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchConfig {
    /// Packets that all buffers together hold (the paper's packet memory, 64 MB).
    pub memory_packets: u32,
    /// With so many in use, ports that run ahead are paused.
    pub pause_packets: u32,
    /// Largest payload, in elements.
    pub element_count_max: u16,
}

/// Packets by outcome.
#[derive(Clone, Debug, Default)]
pub struct SwitchCounters {
    /// Contributions put into a buffer.
    pub contributions: u64,
    /// Sums made.
    pub aggregates: u64,
    /// Sums made without some port that the quorum did not need.
    pub aggregates_in_part: u64,
    /// Results passed down.
    pub results: u64,
    /// Sums and Results sent again because somebody asked.
    pub repeats: u64,
    /// Trees that ended with a FIN.
    pub finished: u64,
    /// Most packets in buffers at a time.
    pub packets_max: u32,
    /// Packets that went no further, by [`DropReason`] in declaration order.
    pub drops: [u64; DropReason::ALL.len()],
}

/// One accelerator.
#[derive(Clone)]
pub struct Switch<B> {
    config: SwitchConfig,
    /// By job number; as long as the largest number in use asks for.
    jobs: Vec<Option<Job<B>>>,
    /// Packets in buffers: Contributions that wait, and sums that are kept.
    packet_count: u32,
    /// Each tree's share of the memory, in packets for each port and for its sums.
    share: u16,
    /// The tree whose next sum [`Switch::proceed`] looks at.
    last: Option<(usize, usize)>,
    /// Where the payload of the last verdict lies.
    payload_at: Option<u64>,
    counters: SwitchCounters,
}

impl<B: Buffers> Switch<B> {
    /// A switch without jobs.
    pub fn new(config: SwitchConfig) -> Switch<B> {
        Switch {
            config,
            jobs: Vec::new(),
            packet_count: 0,
            share: u16::MAX,
            last: None,
            payload_at: None,
            counters: SwitchCounters::default(),
        }
    }

    /// Handles one packet, which came in by the context's port. What leaves is written to `output`, which must hold the largest
    /// datagram; its length is its header's [`Header::datagram_bytes`]. Then [`Switch::proceed`] has to be called.
    pub fn process(&mut self, context: &Context, packet: &[u8], output: &mut [u8]) -> Verdict {
        match Header::parse(packet) {
            Ok((header, payload)) => {
                let verdict = self.handle(context, &header, payload);
                self.write(&verdict, output);
                verdict
            }
            Err(error) => {
                self.last = None;
                self.drop(error.into())
            }
        }
    }

    /// What else leaves because of the packet that was processed last: sums that waited behind its own. To be called until
    /// there is nothing more.
    pub fn proceed(&mut self, output: &mut [u8]) -> Option<Verdict> {
        let verdict = self.proceed_header()?;
        self.write(&verdict, output);
        Some(verdict)
    }

    /// As [`Switch::process`], for a driver that has parsed the header itself, or carries no payloads at all.
    pub fn handle(&mut self, context: &Context, header: &Header, payload: &[u8]) -> Verdict {
        (self.last, self.payload_at) = (None, None);
        let mut header = *header;
        header.flags.ecn |= context.is_marked;
        let outcome = match header.kind {
            Kind::Contribution => self.take_contribution(context.port, &header, payload),
            Kind::Result => self.take_result(context.port, &header, payload),
            Kind::Refusal => self.pass_refusal(context.port, &header),
        };
        match outcome {
            Ok(verdict) => verdict,
            Err(reason) => self.refuse(reason, &header),
        }
    }

    /// As [`Switch::proceed`], without bytes.
    pub fn proceed_header(&mut self) -> Option<Verdict> {
        self.payload_at = None;
        self.complete()
    }

    /// Packets by outcome since the start.
    pub fn counters(&self) -> &SwitchCounters {
        &self.counters
    }

    /// Packets in buffers.
    pub fn packet_count(&self) -> u32 {
        self.packet_count
    }

    /// What a Contribution is told of the room here, in packets for each port of its tree.
    pub fn cwnd_cap(&self) -> u16 {
        self.share
    }

    /// Ports to be paused (IEEE 802.3 PAUSE, PANAMA §4.2), a bit for each: those that are ahead while memory is scarce. No port
    /// on whose packet some tree waits is among them, so that no tree stands still for another one's sake.
    pub fn paused_ports(&self) -> u64 {
        if self.packet_count < self.config.pause_packets {
            return 0;
        }
        let trees = self.jobs.iter().flatten().flat_map(|job| job.trees.iter().flatten());
        let (ahead, awaited) = trees
            .filter(|tree| tree.finished.is_none())
            .fold((0, 0), |(ahead, awaited), tree| (ahead | tree.ports_ahead(), awaited | tree.ports_awaited()));
        ahead & !awaited
    }

    /// Hashes all that decides about later packets, for the exhaustive checker.
    pub fn hash_state(&self, hasher: &mut impl Hasher) {
        self.packet_count.hash(hasher);
        for tree in self.jobs.iter().flatten().flat_map(|job| job.trees.iter().flatten()) {
            tree.hash_state(hasher);
        }
    }

    fn take_contribution(&mut self, port: u8, header: &Header, payload: &[u8]) -> Result<Verdict, DropReason> {
        let (tree, at) = Self::find(&mut self.jobs, header)?;
        let child = tree.child(port).ok_or(DropReason::BadRank)?;
        if let Some(fin) = tree.finished {
            return dedup::after_fin(tree, fin, port, header);
        }
        let vid = admit::contribution(tree, header, self.config.element_count_max)?;
        self.packet_count -= tree.acknowledge(child, header);
        self.last = Some(at);
        match dedup::stage(tree, port, vid, header)? {
            Novelty::New => {}
            Novelty::Duplicate => {
                tree.place_mut(vid).ecn |= header.flags.ecn;
                self.packet_count += dedup::ignore(tree, vid);
                return Err(DropReason::DuplicateContribution);
            }
            Novelty::Wanted => {
                self.counters.repeats += 1;
                self.payload_at = Some(vid);
                return Ok(decide::repeat(tree, port, vid, self.share));
            }
        }
        if vid >= tree.expected + tree.depth {
            return Err(DropReason::BufferFull);
        }
        admit::same_collective(tree.place(vid), header)?;
        accumulate::store(tree, child, port, vid, header, payload);
        self.packet_count += 1;
        self.counters.packets_max = self.counters.packets_max.max(self.packet_count);
        self.counters.contributions += 1;
        self.complete().ok_or(DropReason::AwaitingOthers)
    }

    /// Sums the expected VID of the tree at hand, if all who are waited for are there.
    fn complete(&mut self) -> Option<Verdict> {
        let (job, number) = self.last?;
        let tree = self.jobs.get_mut(job)?.as_mut()?.trees.get_mut(number)?.as_mut()?;
        if !count::stage(tree) {
            self.last = None;
            return None;
        }
        let vid = tree.expected;
        accumulate::sum(tree, vid);
        self.packet_count -= tree.advance();
        self.counters.aggregates += 1;
        self.counters.aggregates_in_part += u64::from(tree.place(vid).ports != tree.config.ports);
        self.payload_at = Some(vid);
        let verdict = decide::sum(tree, vid, self.share);
        if tree.place(vid).fin && tree.config.parent.is_none() {
            self.finish(job, number, vid);
        }
        Some(verdict)
    }

    fn take_result(&mut self, port: u8, header: &Header, payload: &[u8]) -> Result<Verdict, DropReason> {
        let (tree, at) = Self::find(&mut self.jobs, header)?;
        if tree.config.parent != Some(port) {
            return Err(DropReason::NotAContribution);
        }
        if tree.finished.is_some() {
            return Err(DropReason::StaleChunk);
        }
        let vid = admit::result(tree, header, self.config.element_count_max)?;
        let before = tree.packets_at(vid);
        accumulate::replace(tree, vid, header, payload);
        let after = tree.packets_at(vid);
        tree.skip_results();
        self.packet_count = self.packet_count + after - before;
        self.counters.results += 1;
        (self.last, self.payload_at) = (Some(at), Some(vid));
        let verdict = decide::pass_down(tree, header);
        if header.flags.fin {
            self.finish(at.0, at.1, vid);
        }
        Ok(verdict)
    }

    /// A child's worker, or this switch's parent, has refused a packet of this tree: everybody below learns it.
    fn pass_refusal(&mut self, port: u8, header: &Header) -> Result<Verdict, DropReason> {
        let (tree, _) = Self::find(&mut self.jobs, header)?;
        if tree.config.parent == Some(port) {
            Ok(decide::pass_down(tree, header))
        } else {
            Err(DropReason::NotAContribution)
        }
    }

    /// The tree ends, with all that its buffers hold; only its FIN is still answered.
    fn finish(&mut self, job: usize, number: usize, vid: u64) {
        let Some(tree) = self.jobs[job].as_mut().and_then(|job| job.trees[number].as_mut()) else { return };
        self.packet_count -= tree.clear();
        tree.finished = Some(vid);
        self.counters.finished += 1;
        (self.last, self.payload_at) = (None, None);
    }

    fn refuse(&mut self, reason: DropReason, header: &Header) -> Verdict {
        let verdict = self.drop(reason);
        if !reason.is_refused() || header.kind != Kind::Contribution {
            return verdict;
        }
        Verdict::Refuse { reason, header: decide::refusal(reason, header) }
    }

    fn drop(&mut self, reason: DropReason) -> Verdict {
        self.counters.drops[reason as usize] += 1;
        Verdict::Drop(reason)
    }

    /// Writes what a verdict sends to `output`.
    fn write(&self, verdict: &Verdict, output: &mut [u8]) {
        let Some(header) = verdict.header() else { return };
        let datagram = &mut output[..header.datagram_bytes()];
        if header.element_count > 0
            && let Some(vid) = self.payload_at
            && let Some(tree) = self.jobs.get((header.job_id & 0xff) as usize).and_then(Option::as_ref)
            && let Some(tree) = tree.trees.get(usize::from(header.tree)).and_then(Option::as_ref)
        {
            decide::write_payload(tree, vid, header, datagram);
        }
        header.seal(datagram);
    }

    fn find<'a>(
        jobs: &'a mut [Option<Job<B>>],
        header: &Header,
    ) -> Result<(&'a mut Tree<B>, (usize, usize)), DropReason> {
        let number = (header.job_id & 0xff) as usize;
        let job = jobs.get_mut(number).and_then(Option::as_mut).filter(|job| job.job_id == header.job_id);
        let job = job.ok_or(DropReason::UnknownJob)?;
        if header.job_token != job.job_token {
            return Err(DropReason::StaleToken);
        }
        let index = usize::from(header.tree);
        let tree = job.trees.get_mut(index).and_then(Option::as_mut).ok_or(DropReason::BadSlot)?;
        Ok((tree, (number, index)))
    }
}

/// The VID of a packet of a tree, near the one that is expected there.
fn vid_of<B>(tree: &Tree<B>, header: &Header) -> Result<u64, DropReason> {
    unwrap_vid(tree.expected, header.vid).ok_or(DropReason::StaleChunk)
}

/// Whether a place holds a sum.
fn is_summed(state: State) -> bool {
    matches!(state, State::Sent | State::Result)
}
