//! Is there a path for full-sized datagrams to the switch and back, and does
//! the network carry multicast?
//!
//! Asked once per lane before the first collective, so that a firewall or a
//! small MTU is an error at the start that says so, not a hang later.
//! Multicast spares the switch a copy of each sum per worker; where it does
//! not get through, nothing but speed is lost.

use std::net::{SocketAddr, SocketAddrV4};
use std::time::{Duration, Instant};

use fanin_net::{NetError, Options, PortEvent, ReceiveBatch, SendBatch, SlotError, UdpPort, Waker};
use fanin_protocol::atp::{WorkerConfig, answers_probe, write_probe};
use fanin_wire::generated::{ATP_HEADER_BYTES, HEADER_BYTES, RANK_ALL};
use fanin_wire::{ElementFormat, Kind, Operator, ProbePath, fanin, multicast_group};

use crate::{Error, ErrorKind};

/// Attempts, and the wait for the first; each later one waits twice as long. The first often comes before another rank's
/// parameter server has heard of the job; and a start-up on a crowded machine is slow: two seconds in all.
const ATTEMPT_COUNT: u32 = 8;
const ATTEMPT_WAIT: Duration = Duration::from_millis(8);
/// The same for multicast, which most often works at once or never: 0.3 s in all.
const GROUP_ATTEMPT_COUNT: u32 = 3;
const GROUP_ATTEMPT_WAIT: Duration = Duration::from_millis(43);

/// What identifies the prober to the switch.
pub(crate) struct Prober {
    pub job_id: u32,
    pub job_token: u32,
    /// What the contributor calls itself in datagrams.
    pub number: u16,
    pub lane: u16,
    /// First slot of the lane.
    pub slot_index: u16,
    /// Whether the job's datagrams carry a checksum.
    pub has_checksum: bool,
    /// The session's own rank, for messages.
    pub session_rank: u16,
}

/// One question: how it is asked, and how long.
#[derive(Clone, Copy)]
struct Question {
    path: ProbePath,
    element_format: ElementFormat,
    element_count: u16,
    attempt_count: u32,
    wait: Duration,
}

/// Checks the path with datagrams of `element_count` elements of a format,
/// the longest ones of the session.
pub(crate) fn check(
    port: &mut UdpPort,
    waker: &Waker,
    peer: SocketAddr,
    prober: &Prober,
    element_format: ElementFormat,
    element_count: u16,
    is_in_racks: bool,
) -> Result<(), Error> {
    let question = Question {
        path: ProbePath::Unicast,
        element_format,
        element_count,
        attempt_count: ATTEMPT_COUNT,
        wait: ATTEMPT_WAIT,
    };
    let mut ask = |element_count| exchange(port, None, waker, peer, prober, Question { element_count, ..question });
    if ask(element_count)? {
        return Ok(());
    }
    let bytes = HEADER_BYTES + usize::from(element_count) * element_format.bytes();
    // Below others a switch passes the question on, so that it tests every hop.
    let to = if is_in_racks { "the root of the job's switches by" } else { "" };
    Err(no_path(prober.session_rank, format!("{to} the switch at {peer}").trim_start(), bytes, ask(0)?))
}

/// The same for an ATP job, whose Probes go all the way to its parameter server.
pub(crate) fn check_atp(
    port: &mut UdpPort,
    waker: &Waker,
    peer: SocketAddr,
    worker: &WorkerConfig,
    session_rank: u16,
    element_count: u16,
) -> Result<(), Error> {
    let mut ask = |element_count: u16| {
        let asking = Asking {
            attempt_count: ATTEMPT_COUNT,
            wait: ATTEMPT_WAIT,
            write: &|batch, attempt| {
                let bytes = ATP_HEADER_BYTES + usize::from(element_count) * 4;
                let space = batch.next_slot(bytes).map_err(|error| too_long(element_count, error))?;
                write_probe(worker, element_count, attempt as u8, space);
                Ok(())
            },
            answers: &|datagram| answers_probe(worker, element_count, datagram),
        };
        asking.exchange(port, None, waker, peer)
    };
    if ask(element_count)? {
        return Ok(());
    }
    let bytes = ATP_HEADER_BYTES + usize::from(element_count) * 4;
    let to = format!("the job's parameter server by the switch at {peer}");
    Err(no_path(session_rank, &to, bytes, ask(0)?))
}

fn no_path(session_rank: u16, to: &str, bytes: usize, small_passes: bool) -> Error {
    let why = if small_passes {
        format!(
            "datagrams of {bytes} bytes do not get to {to} and back, small ones do: some link on the path has a smaller \
             MTU than this host's. Use fewer elements per packet (FANIN_ELEMENTS=256 fits an MTU of 1500), or raise the \
             MTU on every hop"
        )
    } else {
        format!(
            "no datagram gets to {to} and back, although the controller answers: a firewall may block UDP in one \
             direction. Open the data ports for UDP both ways"
        )
    };
    Error::new(ErrorKind::Path, format!("rank {session_rank}: {why}"))
}

/// A port on which the lane gets the sums for all ranks, if the network
/// carries multicast from the switch to here. The switch then sends them there.
pub(crate) fn join_group(
    port: &mut UdpPort,
    waker: &Waker,
    peer: SocketAddr,
    prober: &Prober,
    element_format: ElementFormat,
    element_count: u16,
) -> Result<Option<UdpPort>, Error> {
    let (SocketAddr::V4(switch), SocketAddr::V4(own)) = (peer, port.local_addr()) else { return Ok(None) };
    let group = SocketAddrV4::new(multicast_group(prober.job_token, prober.lane), switch.port());
    let mut members_port = match UdpPort::join_group(group, *own.ip(), peer, &Options::default()) {
        Ok(port) => port,
        Err(error) => {
            tracing::info!(%group, %error, "sums come by unicast");
            return Ok(None);
        }
    };
    let question = Question {
        path: ProbePath::MulticastTest,
        element_format,
        element_count,
        attempt_count: GROUP_ATTEMPT_COUNT,
        wait: GROUP_ATTEMPT_WAIT,
    };
    if !exchange(port, Some(&mut members_port), waker, peer, prober, question)? {
        tracing::info!(%group, "sums come by unicast: the network does not carry multicast from the switch");
        return Ok(None);
    }
    // Without an answer the switch may have heard all the same: listen on.
    exchange(port, None, waker, peer, prober, Question { path: ProbePath::MulticastUse, ..question })?;
    Ok(Some(members_port))
}

/// Whether a Probe comes back, to `members_port` if there is one.
fn exchange(
    port: &mut UdpPort,
    members_port: Option<&mut UdpPort>,
    waker: &Waker,
    peer: SocketAddr,
    prober: &Prober,
    question: Question,
) -> Result<bool, Error> {
    let asking = Asking {
        attempt_count: question.attempt_count,
        wait: question.wait,
        write: &|batch, attempt| write_switchml_probe(batch, prober, question, attempt),
        answers: &|datagram| answers(datagram, prober, question),
    };
    asking.exchange(port, members_port, waker, peer)
}

/// A question in whatever words.
struct Asking<'a> {
    attempt_count: u32,
    wait: Duration,
    write: &'a dyn Fn(&mut SendBatch, u32) -> Result<(), Error>,
    answers: &'a dyn Fn(&[u8]) -> bool,
}

impl Asking<'_> {
    fn exchange(
        &self,
        port: &mut UdpPort,
        mut members_port: Option<&mut UdpPort>,
        waker: &Waker,
        peer: SocketAddr,
    ) -> Result<bool, Error> {
        let mut outgoing = SendBatch::new();
        let mut incoming = ReceiveBatch::new();
        for attempt in 0..self.attempt_count {
            outgoing.clear();
            (self.write)(&mut outgoing, attempt)?;
            match port.send(&outgoing, peer) {
                Ok(_) | Err(NetError::Unreachable { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            let deadline = Instant::now() + self.wait * (1 << attempt);
            loop {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                let answered = members_port.as_deref_mut().unwrap_or(port);
                answered.wait(waker, Some(left), Duration::ZERO)?;
                answered.receive(&mut incoming)?;
                while let Some(PortEvent::PeerRefused { .. }) = port.poll_event() {
                    // Say it at the end: the port may be opening just now.
                }
                if incoming.iter_mut().any(|(datagram, _)| (self.answers)(datagram)) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

fn too_long(element_count: u16, error: SlotError) -> Error {
    Error::new(ErrorKind::Invalid, format!("{element_count} elements per packet: {error:?}"))
}

fn write_switchml_probe(batch: &mut SendBatch, prober: &Prober, question: Question, attempt: u32) -> Result<(), Error> {
    let Question { element_format, element_count, .. } = question;
    let header = fanin::Header {
        kind: Kind::Probe,
        job_id: prober.job_id,
        job_token: prober.job_token,
        worker_rank: prober.number,
        slot_index: prober.slot_index,
        slot_parity: 0,
        chunk_index: 0,
        collective_tag: 0,
        block_exponent_next: 0,
        element_count,
        element_format,
        operator: Operator::Add,
        detail: attempt as u8,
        destination: RANK_ALL,
        echo: question.path as u32,
    };
    let datagram = batch.next_slot(header.datagram_bytes()).map_err(|error| too_long(element_count, error))?;
    datagram.fill(0);
    if prober.has_checksum {
        header.seal(datagram)
    } else {
        header.seal_unsummed(datagram)
    }
    Ok(())
}

fn answers(datagram: &[u8], prober: &Prober, question: Question) -> bool {
    let parse = if prober.has_checksum { fanin::Header::parse } else { fanin::Header::parse_unsummed };
    parse(datagram).is_ok_and(|(header, _)| {
        header.kind == Kind::ProbeReply
            && header.job_id == prober.job_id
            && header.job_token == prober.job_token
            && header.worker_rank == prober.number
            && header.slot_index == prober.slot_index
            && header.element_count == question.element_count
            && header.echo == question.path as u32
    })
}
