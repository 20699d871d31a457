use crate::DATAGRAM_BYTES_MAX;

/// Why a datagram got no room in a [`SendBatch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SlotError {
    /// The batch has no room left: send it, clear it, ask again.
    #[error("the batch is full: send and clear it first")]
    Full,
    /// No batch will ever take this length.
    #[error("no datagram may be {bytes} bytes long: this batch takes 1 to {bytes_max}")]
    Unsendable {
        /// Length asked for.
        bytes: usize,
        /// Longest this batch takes.
        bytes_max: usize,
    },
}

/// Neighbouring datagrams that may share super-packets: all `datagram_bytes` long, the last maybe shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// First byte in the batch's memory.
    pub(crate) start: usize,
    /// Bytes of all its datagrams.
    pub(crate) bytes: usize,
    pub(crate) datagram_bytes: usize,
}

impl Run {
    /// The kernel cuts a super-packet at equal distances, so nothing can follow a short tail.
    fn accepts(&self, bytes: usize) -> bool {
        self.bytes.is_multiple_of(self.datagram_bytes) && bytes <= self.datagram_bytes
    }
}

/// Datagrams ready to go, written once and sent to as many destinations as wanted.
///
/// Memory is fixed at construction and reused after [`SendBatch::clear`]. Datagrams leave in the order they were
/// added. Equal lengths next to each other cross the kernel together; a longer one, or one after a shorter one,
/// begins a new super-packet, so callers that mix lengths should put equal ones side by side.
#[derive(Debug)]
pub struct SendBatch {
    memory: Box<[u8]>,
    used_bytes: usize,
    runs: Vec<Run>,
    datagram_count: usize,
}

impl SendBatch {
    /// A batch of 256 KiB: four full super-packets, small enough to stay in L2 beside the slots.
    pub fn new() -> Self {
        Self::with_capacity(256 << 10)
    }

    /// A batch that holds `bytes` bytes of payload.
    pub fn with_capacity(bytes: usize) -> Self {
        Self { memory: vec![0; bytes].into(), used_bytes: 0, runs: Vec::with_capacity(256), datagram_count: 0 }
    }

    /// Adds a datagram of exactly `bytes` bytes and returns its space, which holds arbitrary old bytes.
    pub fn next_slot(&mut self, bytes: usize) -> Result<&mut [u8], SlotError> {
        self.spare(bytes)?;
        let start = self.used_bytes;
        self.commit(bytes);
        Ok(&mut self.memory[start..start + bytes])
    }

    /// Space for a datagram of up to `bytes_max` bytes whose length is not known yet. It joins the batch with
    /// [`SendBatch::commit`]; without that the batch is unchanged.
    pub fn spare(&mut self, bytes_max: usize) -> Result<&mut [u8], SlotError> {
        let longest = self.memory.len().min(DATAGRAM_BYTES_MAX);
        if bytes_max == 0 || bytes_max > longest {
            return Err(SlotError::Unsendable { bytes: bytes_max, bytes_max: longest });
        }
        self.memory[self.used_bytes..].get_mut(..bytes_max).ok_or(SlotError::Full)
    }

    /// Makes the first `bytes` bytes of the space from the last [`SendBatch::spare`] a datagram.
    ///
    /// # Panics
    /// If `bytes` is 0 or more than the space that is left: a bug in the caller, not an input.
    pub fn commit(&mut self, bytes: usize) {
        assert!(
            bytes > 0 && bytes <= self.memory.len() - self.used_bytes,
            "commit of {bytes} bytes without that space"
        );
        let start = self.used_bytes;
        match self.runs.last_mut() {
            Some(run) if run.accepts(bytes) => run.bytes += bytes,
            _ => self.runs.push(Run { start, bytes, datagram_bytes: bytes }),
        }
        self.used_bytes += bytes;
        self.datagram_count += 1;
    }

    /// Adds a copy of `datagram`.
    pub fn push(&mut self, datagram: &[u8]) -> Result<(), SlotError> {
        self.next_slot(datagram.len())?.copy_from_slice(datagram);
        Ok(())
    }

    /// Forgets all datagrams and keeps the memory.
    pub fn clear(&mut self) {
        self.used_bytes = 0;
        self.datagram_count = 0;
        self.runs.clear();
    }

    /// Number of datagrams in the batch.
    pub fn len(&self) -> usize {
        self.datagram_count
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.datagram_count == 0
    }

    /// Payload bytes in the batch.
    pub fn bytes(&self) -> usize {
        self.used_bytes
    }

    pub(crate) fn memory(&self) -> &[u8] {
        &self.memory
    }

    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs
    }
}

impl Default for SendBatch {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests;
