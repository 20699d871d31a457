//! Cuts a [`SendBatch`] into the messages of one `sendmmsg` call.

use crate::SendBatch;
use crate::batch::Run;
use crate::loss::Gate;

/// Messages per system call; 32 keep the argument arrays within a few KiB of stack.
pub(crate) const FRAMES_MAX: usize = 32;
/// Memory pieces per system call, over all its messages.
pub(crate) const PIECES_MAX: usize = 128;

/// A stretch of the batch's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) start: usize,
    pub(crate) bytes: usize,
}

/// One message for the kernel: one datagram, or a super-packet of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) piece_first: usize,
    pub(crate) piece_count: usize,
    pub(crate) datagram_count: usize,
    pub(crate) bytes: usize,
    /// Length of every datagram but maybe the last.
    pub(crate) datagram_bytes: usize,
}

impl Frame {
    /// The segment size to tell the kernel, or `None` for a plain datagram.
    pub(crate) fn segment_bytes(&self) -> Option<u16> {
        // A datagram never exceeds DATAGRAM_BYTES_MAX, which fits u16.
        (self.datagram_count > 1).then_some(self.datagram_bytes as u16)
    }

    /// Length of the longest datagram in the frame.
    pub(crate) fn longest(&self) -> usize {
        self.datagram_bytes.min(self.bytes)
    }
}

/// How large a frame may get.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) datagrams: usize,
    pub(crate) bytes: usize,
}

impl Limits {
    /// How many more datagrams of `datagram_bytes` fit beside those in `frame`; one always fits an empty frame.
    fn room(&self, frame: &Frame, datagram_bytes: usize) -> usize {
        let by_bytes = self.bytes.saturating_sub(frame.bytes) / datagram_bytes;
        let room = by_bytes.min(self.datagrams.saturating_sub(frame.datagram_count));
        if frame.datagram_count == 0 { room.max(1) } else { room }
    }
}

/// Where in a batch the next plan begins.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    run_index: usize,
    /// Bytes of that run already planned or lost.
    offset: usize,
}

/// The messages of one system call, in fixed arrays so that planning never allocates.
#[derive(Debug)]
pub(crate) struct Plan {
    frames: [Frame; FRAMES_MAX],
    frame_count: usize,
    pieces: [Piece; PIECES_MAX],
    piece_count: usize,
}

impl Plan {
    pub(crate) fn new() -> Self {
        Self {
            frames: [Frame::default(); FRAMES_MAX],
            frame_count: 0,
            pieces: [Piece::default(); PIECES_MAX],
            piece_count: 0,
        }
    }

    pub(crate) fn frames(&self) -> &[Frame] {
        &self.frames[..self.frame_count]
    }

    pub(crate) fn pieces(&self) -> &[Piece] {
        &self.pieces[..self.piece_count]
    }

    /// Replaces the plan by the messages from `cursor` on, without the datagrams `gate` loses, and moves `cursor`
    /// behind them. Returns how many datagrams were lost. An empty plan means that the batch is done.
    pub(crate) fn fill(&mut self, batch: &SendBatch, cursor: &mut Cursor, gate: &mut Gate, limits: Limits) -> u64 {
        self.frame_count = 0;
        self.piece_count = 0;
        let mut lost_count = 0;
        while let Some(run) = batch.runs().get(cursor.run_index) {
            let (planned, lost) = self.fill_from_run(run, &mut cursor.offset, gate, limits);
            lost_count += lost;
            if !planned {
                break;
            }
            *cursor = Cursor { run_index: cursor.run_index + 1, offset: 0 };
        }
        lost_count
    }

    /// Plans the rest of `run`; false if the plan filled up first.
    fn fill_from_run(&mut self, run: &Run, offset: &mut usize, gate: &mut Gate, limits: Limits) -> (bool, u64) {
        let mut lost_count = 0;
        // Datagrams of different runs never share a frame.
        let mut open = false;
        while *offset < run.bytes {
            let left_count = (run.bytes - *offset).div_ceil(run.datagram_bytes);
            let passing_count = gate.passing(left_count);
            if passing_count == 0 {
                gate.lose();
                lost_count += 1;
                *offset = (*offset + run.datagram_bytes).min(run.bytes);
                continue;
            }
            let room = match self.frames.get(self.frame_count.wrapping_sub(1)) {
                Some(frame) if open => limits.room(frame, run.datagram_bytes),
                _ => 0,
            };
            if room == 0 {
                open = self.open_frame(run.datagram_bytes);
                if !open {
                    return (false, lost_count);
                }
                continue;
            }
            let count = passing_count.min(room);
            let bytes = (count * run.datagram_bytes).min(run.bytes - *offset);
            if !self.append(Piece { start: run.start + *offset, bytes }, count) {
                return (false, lost_count);
            }
            gate.pass(count);
            *offset += bytes;
        }
        (true, lost_count)
    }

    /// Begins a frame; false if there is no room for one and its first piece.
    fn open_frame(&mut self, datagram_bytes: usize) -> bool {
        if self.frame_count == FRAMES_MAX || self.piece_count == PIECES_MAX {
            return false;
        }
        self.frames[self.frame_count] = Frame { piece_first: self.piece_count, datagram_bytes, ..Frame::default() };
        self.frame_count += 1;
        true
    }

    /// Adds datagrams to the open frame; false if they would need a piece more than there is.
    fn append(&mut self, piece: Piece, datagram_count: usize) -> bool {
        let frame = &mut self.frames[self.frame_count - 1];
        let last = self.piece_count.wrapping_sub(1);
        match self.pieces.get_mut(last) {
            Some(before) if frame.piece_count > 0 && before.start + before.bytes == piece.start => {
                before.bytes += piece.bytes
            }
            _ if self.piece_count == PIECES_MAX => return false,
            _ => {
                self.pieces[self.piece_count] = piece;
                self.piece_count += 1;
                frame.piece_count += 1;
            }
        }
        frame.datagram_count += datagram_count;
        frame.bytes += piece.bytes;
        true
    }
}

#[cfg(test)]
mod tests;
