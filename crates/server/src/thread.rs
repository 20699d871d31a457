//! One thread: receive, add up, answer.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, TryRecvError};
use fanin_net::{NetError, Patience, ReceiveBatch, SendBatch, UdpPort, Waker};
use fanin_protocol::atp::{Server, refuse_stray};
use fanin_protocol::time::Time;
use fanin_wire::generated::{ATP_HEADER_BYTES, ATP_JOB_ID_OFFSET, ATP_LANE_OFFSET};

use crate::{Command, LaneWaiting, ServedJob, Totals};

/// How often a busy thread publishes its counters.
const PUBLISH_EVERY: Duration = Duration::from_millis(100);

pub(crate) struct Lane {
    job_id: u32,
    number: u16,
    server: Server,
    datagram_bytes_max: usize,
    /// Where its packets come from: the switch beside the server.
    source: Option<SocketAddr>,
}

impl Lane {
    /// All lanes of a job, empty.
    pub fn all_of(job: &ServedJob) -> Vec<Lane> {
        let datagram_bytes_max = ATP_HEADER_BYTES + usize::from(job.element_count_max) * 4;
        let lane = |&(number, _): &(u16, u16)| Lane {
            job_id: job.job_id,
            number,
            server: job.server(number),
            datagram_bytes_max,
            source: None,
        };
        job.lanes.iter().map(lane).collect()
    }
}

pub(crate) struct Thread {
    port: UdpPort,
    waker: Waker,
    mailbox: Receiver<Command>,
    totals: Arc<Mutex<Totals>>,
    /// Of lanes that have ended.
    ended: Totals,
    /// The servers' time counts from here.
    start: Instant,
    published_last: Instant,
    spin: Duration,
    patience: Patience,
    lanes: Vec<Lane>,
    /// To whom the datagrams of the batch go.
    peer: Option<SocketAddr>,
    outgoing: SendBatch,
}

impl Thread {
    pub fn new(
        port: UdpPort,
        waker: Waker,
        mailbox: Receiver<Command>,
        totals: Arc<Mutex<Totals>>,
        spin: Duration,
    ) -> Thread {
        Thread {
            port,
            waker,
            mailbox,
            totals,
            ended: Totals::default(),
            start: Instant::now(),
            published_last: Instant::now(),
            spin,
            patience: Patience::default(),
            lanes: Vec::new(),
            peer: None,
            outgoing: SendBatch::new(),
        }
    }

    pub fn run(mut self) {
        let mut batch = ReceiveBatch::new();
        loop {
            match self.step(&mut batch) {
                Ok(true) => {}
                Ok(false) => return self.publish(),
                Err(error) => {
                    // One bad system call must not end all jobs; a dead socket repeats, so do not spin on it.
                    tracing::error!(%error, address = %self.port.local_addr(), "parameter server's thread");
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        }
    }

    /// One round; false when told to stop.
    fn step(&mut self, batch: &mut ReceiveBatch) -> Result<bool, NetError> {
        if !self.obey() {
            return Ok(false);
        }
        if self.port.receive(batch)? == 0 {
            let due = self.look_at_the_late()?;
            if self.patience.is_over(self.spin) {
                self.publish();
                self.port.wait(&self.waker, due, Duration::ZERO)?;
                self.patience.renew();
            }
            return Ok(true);
        }
        self.patience.renew();
        // Read once: what came together came at the same time, as far as late workers are concerned.
        let now = self.now();
        for (datagram, source) in batch.iter_mut() {
            self.handle(now, datagram, source)?;
        }
        self.flush()?;
        self.look_at_the_late()?;
        if self.published_last.elapsed() >= PUBLISH_EVERY {
            self.publish();
        }
        Ok(true)
    }

    fn handle(&mut self, now: Time, datagram: &[u8], source: SocketAddr) -> Result<(), NetError> {
        let Some(lane) = find(&self.lanes, datagram) else { return self.refuse(datagram, source) };
        self.lanes[lane].server.handle_packet(now, datagram);
        self.lanes[lane].source = Some(source);
        self.answer(lane, datagram.len(), source)
    }

    fn now(&self) -> Time {
        Time::from_ns(self.start.elapsed().as_nanos() as u64)
    }

    /// Completes what late workers have had their time for. Returns how long there is nothing to do.
    fn look_at_the_late(&mut self) -> Result<Option<Duration>, NetError> {
        let now = self.now();
        for lane in 0..self.lanes.len() {
            if self.lanes[lane].server.poll_timeout().is_some_and(|due| due <= now) {
                self.lanes[lane].server.handle_timeout(now);
                // Nothing is due before the first packet.
                let Some(source) = self.lanes[lane].source else { continue };
                self.answer(lane, 0, source)?;
            }
        }
        self.flush()?;
        let due = self.lanes.iter().filter_map(|lane| lane.server.poll_timeout()).min();
        Ok(due.map(|due| Duration::from_nanos(due.since(self.now()).as_ns())))
    }

    /// Sends all that a lane has to say to where its packets come from.
    fn answer(&mut self, lane: usize, bytes_min: usize, source: SocketAddr) -> Result<(), NetError> {
        let bytes_max = self.lanes[lane].datagram_bytes_max.max(bytes_min);
        loop {
            self.make_room(source, bytes_max)?;
            let Ok(space) = self.outgoing.spare(bytes_max) else { return Ok(()) };
            let Some(transmit) = self.lanes[lane].server.poll_transmit(space) else { return Ok(()) };
            self.outgoing.commit(transmit.bytes);
            self.peer = Some(source);
        }
    }

    /// A late packet of a job that has ended, or nobody's.
    fn refuse(&mut self, datagram: &[u8], source: SocketAddr) -> Result<(), NetError> {
        self.make_room(source, ATP_HEADER_BYTES)?;
        let job_id = job_id_of(datagram);
        let is_job_known = self.lanes.iter().any(|lane| Some(lane.job_id) == job_id);
        let Ok(space) = self.outgoing.spare(ATP_HEADER_BYTES) else { return Ok(()) };
        let (reason, bytes) = refuse_stray(datagram, is_job_known, space);
        self.ended.drops[reason as usize] += 1;
        self.ended.received_bytes += datagram.len() as u64;
        if bytes > 0 {
            self.outgoing.commit(bytes);
            self.peer = Some(source);
        }
        Ok(())
    }

    /// Sends what waits for somebody else, or leaves no room for a datagram.
    fn make_room(&mut self, receiver: SocketAddr, bytes_max: usize) -> Result<(), NetError> {
        if self.peer != Some(receiver) || self.outgoing.spare(bytes_max).is_err() {
            self.flush()?;
        }
        Ok(())
    }

    /// Sends what waits. What does not get through, workers ask for again.
    fn flush(&mut self) -> Result<(), NetError> {
        if let Some(peer) = self.peer.take()
            && !self.outgoing.is_empty()
        {
            match self.port.send(&self.outgoing, peer) {
                Ok(_) => {}
                Err(
                    error @ (NetError::DatagramTooLong { .. } | NetError::Unreachable { .. } | NetError::Send { .. }),
                ) => {
                    tracing::warn!(%peer, %error, "cannot send to the switch");
                }
                Err(error) => {
                    self.outgoing.clear();
                    return Err(error);
                }
            }
        }
        self.outgoing.clear();
        Ok(())
    }

    /// Carries out what was asked for; false to stop.
    fn obey(&mut self) -> bool {
        loop {
            match self.mailbox.try_recv() {
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return false,
                Ok(Command::Serve(job_id, lanes, done)) => {
                    self.serve(job_id, lanes);
                    let _ = done.send(());
                }
                Ok(Command::Remove(job_id)) => self.remove(job_id),
                Ok(Command::Waiting(reply)) => {
                    let _ = reply.send(self.lanes.iter().filter_map(waiting).collect());
                }
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    fn serve(&mut self, job_id: u32, lanes: Vec<Lane>) {
        // A job number is the switch's to give: whoever had it before has ended.
        let is_older = |lane: &&Lane| lane.job_id != job_id && lane.job_id as u8 == job_id as u8;
        let older: Vec<u32> = self.lanes.iter().filter(is_older).map(|lane| lane.job_id).collect();
        older.into_iter().for_each(|job_id| self.remove(job_id));
        for lane in lanes {
            match self.lanes.iter_mut().find(|known| known.job_id == job_id && known.number == lane.number) {
                // The job goes on without somebody.
                Some(known) => known.server.set_up_again_as(lane.server),
                None => self.lanes.push(lane),
            }
        }
    }

    fn remove(&mut self, job_id: u32) {
        let ended = self.lanes.iter().filter(|lane| lane.job_id == job_id);
        ended.for_each(|lane| self.ended.add(lane.server.counters()));
        self.lanes.retain(|lane| lane.job_id != job_id);
    }

    fn publish(&mut self) {
        self.published_last = Instant::now();
        // The reader holds the lock for a copy only; if it does so now, the next round publishes.
        if let Ok(mut totals) = self.totals.try_lock() {
            *totals = self.ended.clone();
            self.lanes.iter().for_each(|lane| totals.add(lane.server.counters()));
        }
    }
}

/// The lane that a datagram names. The server checks it.
fn find(lanes: &[Lane], datagram: &[u8]) -> Option<usize> {
    let job_id = job_id_of(datagram)?;
    let number = u16::from_be_bytes(datagram[ATP_LANE_OFFSET..][..2].try_into().ok()?);
    lanes.iter().position(|lane| lane.job_id == job_id && lane.number == number)
}

fn job_id_of(datagram: &[u8]) -> Option<u32> {
    let header = datagram.get(..ATP_HEADER_BYTES)?;
    Some(u32::from_be_bytes(header[ATP_JOB_ID_OFFSET..][..4].try_into().ok()?))
}

fn waiting(lane: &Lane) -> Option<LaneWaiting> {
    let (chunk_index, missing) = lane.server.oldest_incomplete()?;
    Some(LaneWaiting { job_id: lane.job_id, lane: lane.number, chunk_index, missing })
}
