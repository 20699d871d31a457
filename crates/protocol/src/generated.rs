// Generated from spec/fields.toml by `cargo xtask generate`. Do not edit.

//! Why a packet was not used, declared once: counters, metrics, logs and refusals derive from it.

/// Why a switch or a worker did not use a packet. Nothing is dropped without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum DropReason {
    /// The packet is shorter than its header.
    ///
    /// Something cuts packets on the way: check the MTU of every link, or send fewer elements per packet.
    Truncated = 0,
    /// The packet does not start with fanin's magic number.
    ///
    /// Another program sends to this port: give the switch other ports, or close them to strangers.
    BadMagic = 1,
    /// The packet is of another version of the datagram layout.
    ///
    /// Install the same fanin version on the switch and on every worker.
    BadVersion = 2,
    /// The packet's kind is not one of this version's.
    ///
    /// Install the same fanin version on the switch and on every worker.
    BadKind = 3,
    /// The packet was damaged on the way: its CRC-32C does not match.
    ///
    /// A few are harmless, the worker resends. Many mean a failing cable, card or memory: look at the port's error counters.
    BadChecksum = 4,
    /// The packet's length does not match its element count and format.
    ///
    /// The sender built the packet wrongly: install the same fanin version everywhere and report the sender's version.
    BadLength = 5,
    /// The element format is unknown, or not the one that the job was joined with.
    ///
    /// Give every worker the same wire format setting, and the same fanin version.
    BadElementFormat = 6,
    /// The operator is unknown, or cannot be used with the element format.
    ///
    /// Install the same fanin version on the switch and on every worker.
    BadOperator = 7,
    /// No such job on this switch: it ended, its lease ran out, or the switch restarted.
    ///
    /// Restart the job; if it was still running, look in the switch's log for the lost lease or the restart.
    UnknownJob = 8,
    /// The packet belongs to an older run of the job.
    ///
    /// A worker of an earlier run is still alive: end it, or look for it at the address in the switch's log.
    StaleToken = 9,
    /// The worker's rank is not below the job's worker count, or the packet is for another rank.
    ///
    /// Start every worker with the same WORLD_SIZE and with its own RANK.
    BadRank = 10,
    /// The slot is outside the job's pool, or is not the one that the chunk index belongs to.
    ///
    /// The workers disagree on lanes or slots: install the same fanin version everywhere, and join again.
    BadSlot = 11,
    /// The chunk is older than what its slot remembers: a packet that the network delayed.
    ///
    /// Harmless: the chunk was finished long ago. Many mean a path with very uneven delays.
    StaleChunk = 12,
    /// The chunk is newer than its slot can hold: the one before it on this slot is not finished.
    ///
    /// The worker has lost step with the job: restart the job.
    ChunkTooFarAhead = 13,
    /// The worker is in another collective than the workers that contributed to this chunk before it.
    ///
    /// Ranks call collectives in different order, or with different sizes, element types or operators: compare the calls that the error lists.
    CollectiveMismatch = 14,
    /// The contribution has another number of elements than those that came before it.
    ///
    /// Ranks disagree on the size of the tensor: compare the calls that the error lists.
    ElementCountMismatch = 15,
    /// The worker has already contributed to this chunk, which is not complete yet.
    ///
    /// Normal after a resend. Many mean that resend timers fire too early, or that one worker is much slower than the others.
    DuplicateContribution = 16,
    /// The contribution was counted and added; nothing leaves the switch until the last worker's arrives.
    ///
    /// Normal: all but one of a chunk's contributions end so.
    AwaitingOthers = 17,
    /// A packet that only a switch sends arrived at a switch.
    ///
    /// A worker's data address is that of another switch, or a switch is in a loop: check the data addresses.
    NotAContribution = 18,
    /// p4app-switchML format: the sender's address is not one of the job's registered workers.
    ///
    /// Register the worker with the controller first; the sender's address and port must be the registered ones.
    SourceUnknown = 19,
    /// The switch is draining and takes no new collectives of this job.
    ///
    /// Let the job finish on another switch; the drain was asked for by the switch's operator.
    JobDraining = 20,
    /// XDP: another processor held the slot too long; the packet was not counted.
    ///
    /// The worker asks again. Many mean that the switch's virtual processors do not get their time: give the host fewer of them.
    SlotBusy = 21,
    /// ATP server: some of the workers in the packet are in the sum already, others are not, and they cannot be told apart any more.
    ///
    /// Harmless: the missing workers send again. Many mean heavy loss, or switches that restart.
    PartialOverlap = 22,
    /// PANAMA: the switch's buffers are full, and the packet is not the one that its tree waits for.
    ///
    /// Normal for a moment after a job has joined. Many mean workers that do not keep to `cwnd_cap`, or too little memory: give the switch more.
    BufferFull = 23,
    /// ATP: the packet's floats are scaled by another power of two than the chunk's others; they were not added.
    ///
    /// All workers of a job take the scale from the same answers: update fanin on the hosts that run an older version.
    ScaleMismatch = 24,
}

impl DropReason {
    /// Number of reasons: the length of a table with one entry for each.
    pub const COUNT: usize = 25;

    /// Every reason, in the order of its code.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Truncated,
        Self::BadMagic,
        Self::BadVersion,
        Self::BadKind,
        Self::BadChecksum,
        Self::BadLength,
        Self::BadElementFormat,
        Self::BadOperator,
        Self::UnknownJob,
        Self::StaleToken,
        Self::BadRank,
        Self::BadSlot,
        Self::StaleChunk,
        Self::ChunkTooFarAhead,
        Self::CollectiveMismatch,
        Self::ElementCountMismatch,
        Self::DuplicateContribution,
        Self::AwaitingOthers,
        Self::NotAContribution,
        Self::SourceUnknown,
        Self::JobDraining,
        Self::SlotBusy,
        Self::PartialOverlap,
        Self::BufferFull,
        Self::ScaleMismatch,
    ];

    /// Code in a Refusal's `detail`; from 0, without gaps, so it is also the position in [`Self::ALL`].
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The reason with this code.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Truncated),
            1 => Some(Self::BadMagic),
            2 => Some(Self::BadVersion),
            3 => Some(Self::BadKind),
            4 => Some(Self::BadChecksum),
            5 => Some(Self::BadLength),
            6 => Some(Self::BadElementFormat),
            7 => Some(Self::BadOperator),
            8 => Some(Self::UnknownJob),
            9 => Some(Self::StaleToken),
            10 => Some(Self::BadRank),
            11 => Some(Self::BadSlot),
            12 => Some(Self::StaleChunk),
            13 => Some(Self::ChunkTooFarAhead),
            14 => Some(Self::CollectiveMismatch),
            15 => Some(Self::ElementCountMismatch),
            16 => Some(Self::DuplicateContribution),
            17 => Some(Self::AwaitingOthers),
            18 => Some(Self::NotAContribution),
            19 => Some(Self::SourceUnknown),
            20 => Some(Self::JobDraining),
            21 => Some(Self::SlotBusy),
            22 => Some(Self::PartialOverlap),
            23 => Some(Self::BufferFull),
            24 => Some(Self::ScaleMismatch),
            _ => None,
        }
    }

    /// True if the switch answers the packet with a Refusal that carries this reason.
    pub const fn is_refused(self) -> bool {
        matches!(
            self,
            Self::BadOperator
                | Self::UnknownJob
                | Self::StaleToken
                | Self::BadRank
                | Self::BadSlot
                | Self::ChunkTooFarAhead
                | Self::CollectiveMismatch
                | Self::ElementCountMismatch
                | Self::JobDraining
                | Self::ScaleMismatch
        )
    }

    /// Name in metrics and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Truncated => "truncated",
            Self::BadMagic => "bad_magic",
            Self::BadVersion => "bad_version",
            Self::BadKind => "bad_kind",
            Self::BadChecksum => "bad_checksum",
            Self::BadLength => "bad_length",
            Self::BadElementFormat => "bad_element_format",
            Self::BadOperator => "bad_operator",
            Self::UnknownJob => "unknown_job",
            Self::StaleToken => "stale_token",
            Self::BadRank => "bad_rank",
            Self::BadSlot => "bad_slot",
            Self::StaleChunk => "stale_chunk",
            Self::ChunkTooFarAhead => "chunk_too_far_ahead",
            Self::CollectiveMismatch => "collective_mismatch",
            Self::ElementCountMismatch => "element_count_mismatch",
            Self::DuplicateContribution => "duplicate_contribution",
            Self::AwaitingOthers => "awaiting_others",
            Self::NotAContribution => "not_a_contribution",
            Self::SourceUnknown => "source_unknown",
            Self::JobDraining => "job_draining",
            Self::SlotBusy => "slot_busy",
            Self::PartialOverlap => "partial_overlap",
            Self::BufferFull => "buffer_full",
            Self::ScaleMismatch => "scale_mismatch",
        }
    }

    /// What happened, as a sentence.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Truncated => "The packet is shorter than its header.",
            Self::BadMagic => "The packet does not start with fanin's magic number.",
            Self::BadVersion => "The packet is of another version of the datagram layout.",
            Self::BadKind => "The packet's kind is not one of this version's.",
            Self::BadChecksum => "The packet was damaged on the way: its CRC-32C does not match.",
            Self::BadLength => "The packet's length does not match its element count and format.",
            Self::BadElementFormat => "The element format is unknown, or not the one that the job was joined with.",
            Self::BadOperator => "The operator is unknown, or cannot be used with the element format.",
            Self::UnknownJob => "No such job on this switch: it ended, its lease ran out, or the switch restarted.",
            Self::StaleToken => "The packet belongs to an older run of the job.",
            Self::BadRank => {
                "The worker's rank is not below the job's worker count, or the packet is for another rank."
            }
            Self::BadSlot => "The slot is outside the job's pool, or is not the one that the chunk index belongs to.",
            Self::StaleChunk => "The chunk is older than what its slot remembers: a packet that the network delayed.",
            Self::ChunkTooFarAhead => {
                "The chunk is newer than its slot can hold: the one before it on this slot is not finished."
            }
            Self::CollectiveMismatch => {
                "The worker is in another collective than the workers that contributed to this chunk before it."
            }
            Self::ElementCountMismatch => {
                "The contribution has another number of elements than those that came before it."
            }
            Self::DuplicateContribution => {
                "The worker has already contributed to this chunk, which is not complete yet."
            }
            Self::AwaitingOthers => {
                "The contribution was counted and added; nothing leaves the switch until the last worker's arrives."
            }
            Self::NotAContribution => "A packet that only a switch sends arrived at a switch.",
            Self::SourceUnknown => {
                "p4app-switchML format: the sender's address is not one of the job's registered workers."
            }
            Self::JobDraining => "The switch is draining and takes no new collectives of this job.",
            Self::SlotBusy => "XDP: another processor held the slot too long; the packet was not counted.",
            Self::PartialOverlap => {
                "ATP server: some of the workers in the packet are in the sum already, others are not, and they cannot be told apart any more."
            }
            Self::BufferFull => {
                "PANAMA: the switch's buffers are full, and the packet is not the one that its tree waits for."
            }
            Self::ScaleMismatch => {
                "ATP: the packet's floats are scaled by another power of two than the chunk's others; they were not added."
            }
        }
    }

    /// What a person can do about it.
    pub const fn hint(self) -> &'static str {
        match self {
            Self::Truncated => {
                "Something cuts packets on the way: check the MTU of every link, or send fewer elements per packet."
            }
            Self::BadMagic => {
                "Another program sends to this port: give the switch other ports, or close them to strangers."
            }
            Self::BadVersion => "Install the same fanin version on the switch and on every worker.",
            Self::BadKind => "Install the same fanin version on the switch and on every worker.",
            Self::BadChecksum => {
                "A few are harmless, the worker resends. Many mean a failing cable, card or memory: look at the port's error counters."
            }
            Self::BadLength => {
                "The sender built the packet wrongly: install the same fanin version everywhere and report the sender's version."
            }
            Self::BadElementFormat => "Give every worker the same wire format setting, and the same fanin version.",
            Self::BadOperator => "Install the same fanin version on the switch and on every worker.",
            Self::UnknownJob => {
                "Restart the job; if it was still running, look in the switch's log for the lost lease or the restart."
            }
            Self::StaleToken => {
                "A worker of an earlier run is still alive: end it, or look for it at the address in the switch's log."
            }
            Self::BadRank => "Start every worker with the same WORLD_SIZE and with its own RANK.",
            Self::BadSlot => {
                "The workers disagree on lanes or slots: install the same fanin version everywhere, and join again."
            }
            Self::StaleChunk => "Harmless: the chunk was finished long ago. Many mean a path with very uneven delays.",
            Self::ChunkTooFarAhead => "The worker has lost step with the job: restart the job.",
            Self::CollectiveMismatch => {
                "Ranks call collectives in different order, or with different sizes, element types or operators: compare the calls that the error lists."
            }
            Self::ElementCountMismatch => {
                "Ranks disagree on the size of the tensor: compare the calls that the error lists."
            }
            Self::DuplicateContribution => {
                "Normal after a resend. Many mean that resend timers fire too early, or that one worker is much slower than the others."
            }
            Self::AwaitingOthers => "Normal: all but one of a chunk's contributions end so.",
            Self::NotAContribution => {
                "A worker's data address is that of another switch, or a switch is in a loop: check the data addresses."
            }
            Self::SourceUnknown => {
                "Register the worker with the controller first; the sender's address and port must be the registered ones."
            }
            Self::JobDraining => {
                "Let the job finish on another switch; the drain was asked for by the switch's operator."
            }
            Self::SlotBusy => {
                "The worker asks again. Many mean that the switch's virtual processors do not get their time: give the host fewer of them."
            }
            Self::PartialOverlap => {
                "Harmless: the missing workers send again. Many mean heavy loss, or switches that restart."
            }
            Self::BufferFull => {
                "Normal for a moment after a job has joined. Many mean workers that do not keep to `cwnd_cap`, or too little memory: give the switch more."
            }
            Self::ScaleMismatch => {
                "All workers of a job take the scale from the same answers: update fanin on the hosts that run an older version."
            }
        }
    }
}

impl core::fmt::Display for DropReason {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}
