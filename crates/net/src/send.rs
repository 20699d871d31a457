//! Hands planned messages to the kernel and deals with its refusals.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use socket2::SockAddr;

use crate::options::{SEGMENTS_MAX, SEGMENTS_MAX_OLD};
use crate::plan::{Frame, Limits, Piece, Plan};
use crate::port::{Notes, payload_of_mtu, probe_path_mtu};
use crate::sys::{self, Interest};
use crate::trouble::{SOFT_ERRORS_MAX, Trouble};
use crate::{NetError, PortEvent, Sent};

/// One batch on its way to one destination.
pub(crate) struct Outgoing<'a> {
    socket: BorrowedFd<'a>,
    memory: &'a [u8],
    local: IpAddr,
    destination: SocketAddr,
    /// `None` towards the connected peer, which spares the kernel a route lookup.
    raw_destination: Option<SockAddr>,
    wait_max: Duration,
    /// Set when the kernel first had no room.
    deadline: Option<Instant>,
    gave_up: bool,
    sent: Sent,
}

impl<'a> Outgoing<'a> {
    /// `local` is the port's own address, which the route may depend on.
    pub(crate) fn new(socket: BorrowedFd<'a>, memory: &'a [u8], local: IpAddr, destination: SocketAddr) -> Self {
        Self {
            socket,
            memory,
            local,
            destination,
            raw_destination: Some(destination.into()),
            wait_max: Duration::ZERO,
            deadline: None,
            gave_up: false,
            sent: Sent::default(),
        }
    }

    /// Uses the socket's connection if it leads to the destination.
    pub(crate) fn connected_to(mut self, peer: Option<SocketAddr>) -> Self {
        if peer == Some(self.destination) {
            self.raw_destination = None;
        }
        self
    }

    pub(crate) fn waiting_at_most(mut self, wait_max: Duration) -> Self {
        self.wait_max = wait_max;
        self
    }

    pub(crate) fn sent(&self) -> Sent {
        self.sent
    }

    /// Sends one plan. After giving up for want of room it only counts: the loss decisions of the rest have been
    /// drawn all the same, so a full kernel does not shift them.
    pub(crate) fn send(&mut self, plan: &Plan, limits: &mut Limits, notes: &mut Notes) -> Result<(), NetError> {
        self.send_frames(plan.frames(), plan.pieces(), limits, notes)
    }

    fn send_frames(
        &mut self,
        frames: &[Frame],
        pieces: &[Piece],
        limits: &mut Limits,
        notes: &mut Notes,
    ) -> Result<(), NetError> {
        let mut rest = frames;
        let mut soft_count = 0;
        while let Some(frame) = rest.first() {
            if self.gave_up {
                self.abandon(rest, notes);
                return Ok(());
            }
            if frame.datagram_count > limits.datagrams {
                // Planned before the port learnt of the lower limit.
                self.send_singly(frame, pieces, limits, notes)?;
                rest = &rest[1..];
                continue;
            }
            notes.counters.send_calls += 1;
            let error = match sys::send_many(self.socket, self.memory, rest, pieces, self.raw_destination.as_ref()) {
                Ok(count) => {
                    self.note_sent(&rest[..count], notes);
                    rest = &rest[count..];
                    soft_count = 0;
                    continue;
                }
                Err(error) => error,
            };
            if self.settle(frame, pieces, error, &mut soft_count, limits, notes)? {
                rest = &rest[1..];
            }
        }
        Ok(())
    }

    /// Deals with an error of `frame`. True if the frame is done with, false if it should be tried again.
    fn settle(
        &mut self,
        frame: &Frame,
        pieces: &[Piece],
        error: io::Error,
        soft_count: &mut usize,
        limits: &mut Limits,
        notes: &mut Notes,
    ) -> Result<bool, NetError> {
        *soft_count += 1;
        let persistent = *soft_count > SOFT_ERRORS_MAX;
        match Trouble::of(&error) {
            Trouble::Interrupted => Ok(false),
            Trouble::NoRoom => self.wait_for_room(notes).map(|()| false),
            Trouble::Refused => {
                notes.refusal();
                if persistent {
                    self.abandon(std::slice::from_ref(frame), notes);
                }
                Ok(persistent)
            }
            // The report may speak of an earlier datagram: only a repeat of it is about this one.
            Trouble::Unreachable if *soft_count < 2 => Ok(false),
            Trouble::Unreachable => Err(NetError::Unreachable { destination: self.destination, source: error }),
            Trouble::TooLong => Err(self.too_long(frame)),
            Trouble::Offload if frame.datagram_count > 1 => {
                self.step_down(frame, pieces, &error, limits, notes).map(|()| true)
            }
            Trouble::Offload | Trouble::Other => Err(NetError::Send { destination: self.destination, source: error }),
        }
    }

    /// Sends a refused super-packet as single datagrams and lowers the limit for those to come.
    fn step_down(
        &mut self,
        frame: &Frame,
        pieces: &[Piece],
        error: &io::Error,
        limits: &mut Limits,
        notes: &mut Notes,
    ) -> Result<(), NetError> {
        // Older kernels give the same error when a segment exceeds the MTU. Then the single datagram fails too,
        // with an error that says so, and offload stays as it is.
        self.send_singly(frame, pieces, limits, notes)?;
        limits.datagrams = match frame.datagram_count {
            count if count > SEGMENTS_MAX => SEGMENTS_MAX,
            count if count > SEGMENTS_MAX_OLD => SEGMENTS_MAX_OLD,
            _ => 1,
        };
        notes.counters.gso_fallbacks += 1;
        notes.segmentation = Some(match limits.datagrams {
            1 => PortEvent::SegmentationUnavailable { os_error: error.raw_os_error().unwrap_or(0) },
            segments_max => PortEvent::SegmentsReduced { segments_max },
        });
        Ok(())
    }

    fn send_singly(
        &mut self,
        frame: &Frame,
        pieces: &[Piece],
        limits: &mut Limits,
        notes: &mut Notes,
    ) -> Result<(), NetError> {
        for piece in &pieces[frame.piece_first..frame.piece_first + frame.piece_count] {
            let end = piece.start + piece.bytes;
            for start in (piece.start..end).step_by(frame.datagram_bytes) {
                let bytes = frame.datagram_bytes.min(end - start);
                let single = Frame { piece_first: 0, piece_count: 1, datagram_count: 1, bytes, datagram_bytes: bytes };
                self.send_frames(&[single], &[Piece { start, bytes }], limits, notes)?;
            }
        }
        Ok(())
    }

    /// Waits for room until the deadline of this batch, then gives up.
    fn wait_for_room(&mut self, notes: &mut Notes) -> Result<(), NetError> {
        notes.counters.send_would_block += 1;
        let now = Instant::now();
        let deadline = *self.deadline.get_or_insert(now + self.wait_max);
        let left = deadline.saturating_duration_since(now);
        if left.is_zero() {
            self.gave_up = true;
            return Ok(());
        }
        sys::poll(&mut std::iter::once(self.socket), Interest::Writable, None, Some(left)).map_err(NetError::Wait)?;
        Ok(())
    }

    fn note_sent(&mut self, frames: &[Frame], notes: &mut Notes) {
        for frame in frames {
            self.sent.datagrams += frame.datagram_count;
            notes.counters.datagrams_sent += frame.datagram_count as u64;
            notes.counters.bytes_sent += frame.bytes as u64;
            notes.counters.super_packets_sent += u64::from(frame.datagram_count > 1);
        }
    }

    fn abandon(&mut self, frames: &[Frame], notes: &mut Notes) {
        let count: usize = frames.iter().map(|frame| frame.datagram_count).sum();
        self.sent.not_sent += count;
        notes.counters.send_gave_up += count as u64;
    }

    fn too_long(&self, frame: &Frame) -> NetError {
        // The error is about length whether or not the MTU can be read; 0 stands for "could not be read".
        let path_mtu_bytes = probe_path_mtu(self.local, self.destination).unwrap_or(0);
        NetError::DatagramTooLong {
            destination: self.destination,
            datagram_bytes: frame.longest(),
            path_mtu_bytes,
            payload_bytes_max: payload_of_mtu(path_mtu_bytes, self.destination),
        }
    }
}
