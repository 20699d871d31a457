//! A lane's protocol value, whichever algorithm the job has chosen.

use fanin_protocol::stream::Submission;
use fanin_protocol::switchml::{self, BlockId};
use fanin_protocol::time::{Span, Time};
use fanin_protocol::{DropReason, atp};
use fanin_wire::generated::ATP_HEADER_BYTES;

/// One lane of one worker.
pub(crate) enum Endpoint {
    SwitchMl(Box<switchml::Worker>),
    Atp { worker: Box<atp::Worker>, datagram_bytes_max: usize },
}

/// Something that the lane acts on.
pub(crate) enum Event {
    Completed {
        collective: u64,
    },
    NonFinite(BlockId),
    /// Elements left the accumulator's format; the block is sent again.
    Overflowed {
        id: BlockId,
        element_count: u32,
    },
    /// ATP: who had the words of a block is lost.
    SourceLost {
        collective: u64,
    },
    Refused {
        reason: DropReason,
        chunk_index: u32,
        slot_index: Option<u16>,
        collective: Option<u64>,
    },
}

/// Packets of one lane by outcome.
#[derive(Clone, Debug)]
pub(crate) struct EndpointCounters {
    pub contributions: u64,
    pub announces: u64,
    pub resends: u64,
    pub queries: u64,
    pub aggregates: u64,
    pub blocks_non_finite: u64,
    pub blocks_overflowed: u64,
    pub elements_overflowed: u64,
    pub float_resends: u64,
    pub blocks_scaled: u64,
    pub slots_remapped: u64,
    pub window_cuts: u64,
    pub sums_in_part: u64,
    pub drops: [u64; DropReason::ALL.len()],
}

impl Default for EndpointCounters {
    fn default() -> Self {
        EndpointCounters {
            contributions: 0,
            announces: 0,
            resends: 0,
            queries: 0,
            aggregates: 0,
            blocks_non_finite: 0,
            blocks_overflowed: 0,
            elements_overflowed: 0,
            float_resends: 0,
            blocks_scaled: 0,
            slots_remapped: 0,
            window_cuts: 0,
            sums_in_part: 0,
            drops: [0; DropReason::ALL.len()],
        }
    }
}

/// The chunk that has waited longest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Oldest {
    pub chunk_index: u32,
    pub attempt_count: u32,
    /// Chunks that are out, where the endpoint counts them.
    pub outstanding_count: Option<u32>,
    /// Slot and parity, where the chunk has a slot of its own.
    pub slot: Option<(u16, u8)>,
}

impl Endpoint {
    /// `resumed`: where the stream of a replacement begins, and how many others are still lost.
    pub fn atp(config: atp::WorkerConfig, resumed: Option<(u64, u16)>) -> Endpoint {
        let datagram_bytes_max = ATP_HEADER_BYTES + usize::from(config.element_count_max) * 4;
        let (position, lost_count) = resumed.unwrap_or_default();
        Endpoint::Atp { worker: Box::new(atp::Worker::starting_at(config, position, lost_count)), datagram_bytes_max }
    }

    pub fn datagram_bytes_max(&self) -> usize {
        match self {
            Endpoint::SwitchMl(worker) => worker.datagram_bytes_max(),
            Endpoint::Atp { datagram_bytes_max, .. } => *datagram_bytes_max,
        }
    }

    /// The job goes on in another tree. SwitchML's jobs do not.
    pub fn set_up_again(&mut self, now: Time, set_up: atp::SetUp) {
        if let Endpoint::Atp { worker, .. } = self {
            worker.set_up_again(now, set_up);
        }
    }

    pub fn submit(&mut self, submission: Submission) {
        match self {
            Endpoint::SwitchMl(worker) => worker.submit(submission),
            Endpoint::Atp { worker, .. } => worker.submit(submission),
        }
    }

    pub fn handle_packet<T>(&mut self, now: Time, datagram: &mut [u8], tensors: &mut T)
    where
        T: switchml::Tensors + atp::Tensors,
    {
        match self {
            Endpoint::SwitchMl(worker) => worker.handle_packet(now, datagram, tensors),
            Endpoint::Atp { worker, .. } => worker.handle_packet(now, datagram, tensors),
        }
    }

    pub fn handle_timeout(&mut self, now: Time) {
        match self {
            Endpoint::SwitchMl(worker) => worker.handle_timeout(now),
            Endpoint::Atp { worker, .. } => worker.handle_timeout(now),
        }
    }

    pub fn poll_transmit<T>(&mut self, now: Time, tensors: &mut T, output: &mut [u8]) -> Option<usize>
    where
        T: switchml::Tensors + atp::Tensors,
    {
        match self {
            Endpoint::SwitchMl(worker) => worker.poll_transmit(now, tensors, output),
            Endpoint::Atp { worker, .. } => worker.poll_transmit(now, tensors, output),
        }
    }

    pub fn poll_timeout(&self) -> Option<Time> {
        match self {
            Endpoint::SwitchMl(worker) => worker.poll_timeout(),
            Endpoint::Atp { worker, .. } => worker.poll_timeout(),
        }
    }

    pub fn poll_event(&mut self) -> Option<Event> {
        Some(match self {
            Endpoint::SwitchMl(worker) => match worker.poll_event()? {
                switchml::Event::Completed { collective } => Event::Completed { collective },
                switchml::Event::NonFinite(id) => Event::NonFinite(id),
                switchml::Event::Overflowed { id, element_count } => Event::Overflowed { id, element_count },
                switchml::Event::Refused { reason, chunk_index, slot_index, collective } => {
                    Event::Refused { reason, chunk_index, slot_index: Some(slot_index), collective }
                }
            },
            Endpoint::Atp { worker, .. } => match worker.poll_event()? {
                atp::Event::Completed { collective } => Event::Completed { collective },
                atp::Event::SourceLost { collective } => Event::SourceLost { collective },
                atp::Event::Refused { reason, chunk_index, collective } => {
                    Event::Refused { reason, chunk_index, slot_index: None, collective: Some(collective) }
                }
            },
        })
    }

    pub fn round_trip(&self) -> Option<Span> {
        match self {
            Endpoint::SwitchMl(worker) => worker.round_trip(),
            Endpoint::Atp { worker, .. } => worker.round_trip(),
        }
    }

    pub fn oldest_outstanding(&self) -> Option<Oldest> {
        match self {
            Endpoint::SwitchMl(worker) => worker.oldest_outstanding().map(|oldest| Oldest {
                chunk_index: oldest.chunk_index,
                attempt_count: oldest.attempt_count,
                outstanding_count: Some(oldest.outstanding_count),
                slot: Some((oldest.slot_index, oldest.slot_parity)),
            }),
            Endpoint::Atp { worker, .. } => worker.oldest_outstanding().map(|(chunk_index, attempt_count, _)| Oldest {
                chunk_index,
                attempt_count,
                outstanding_count: None,
                slot: None,
            }),
        }
    }

    pub fn counters(&self) -> EndpointCounters {
        match self {
            Endpoint::SwitchMl(worker) => {
                let counters = worker.counters();
                EndpointCounters {
                    contributions: counters.contributions,
                    announces: counters.announces,
                    resends: counters.resends,
                    queries: counters.queries,
                    aggregates: counters.aggregates,
                    blocks_non_finite: counters.blocks_non_finite,
                    blocks_overflowed: counters.blocks_overflowed,
                    elements_overflowed: counters.elements_overflowed,
                    drops: counters.drops,
                    ..EndpointCounters::default()
                }
            }
            Endpoint::Atp { worker, .. } => {
                let counters = worker.counters();
                EndpointCounters {
                    contributions: counters.fragments,
                    resends: counters.resends_overtaken
                        + counters.resends_timeout
                        + counters.resends_float
                        + counters.resends_around,
                    aggregates: counters.parameters,
                    float_resends: counters.resends_float,
                    blocks_scaled: counters.scaled,
                    slots_remapped: counters.remapped,
                    window_cuts: counters.cuts,
                    sums_in_part: counters.parameters_in_part,
                    drops: counters.drops,
                    ..EndpointCounters::default()
                }
            }
        }
    }
}
