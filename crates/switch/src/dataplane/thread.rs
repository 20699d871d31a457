//! One data-plane thread: receive, decide, send.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, TryRecvError};
use fanin_net::{NetError, Patience, ReceiveBatch, UdpPort, Waker};
use fanin_protocol::Verdict;
use fanin_protocol::atp::SwitchConfig;
use fanin_protocol::switchml::{self, Admitted, Context, LeafVerdict, Side, Switch, WireFormat};
use fanin_protocol::time::Time;
use fanin_wire::generated::{ATP_HEADER_BYTES, ATP_MAGIC, HEADER_BYTES, MAGIC};
use fanin_wire::{Kind, ProbePath, fanin};

use super::atp::{self, AtpProgram};
use super::carry::{CarriedJob, Carrying};
use super::leaf::{LeafProgram, Origin};
use super::outgoing::{Group, Outgoing};
use super::peers::Peers;
use super::publish::{self, JobTraffic};
use super::{Command, DataplaneConfig, inspection, job_config};
use crate::dataplane_api::{DataplaneCounters, InstallError, JobInspection, JobInstall, RackInstall};

/// How often a busy thread publishes its counters.
const PUBLISH_EVERY: Duration = Duration::from_millis(100);

pub(super) struct Thread {
    port: UdpPort,
    waker: Waker,
    mailbox: Receiver<Command>,
    published: Arc<Mutex<DataplaneCounters>>,
    published_last: Instant,
    spin: Duration,
    patience: Patience,
    start: Instant,
    switch: Switch,
    leaf: LeafProgram,
    atp: AtpProgram,
    jobs: Vec<JobInstall>,
    carrying: Carrying,
    peers: Peers,
    traffic: Vec<JobTraffic>,
    outgoing: Outgoing,
    /// Batches received so far.
    batch: u64,
    /// Longest datagram of any installed job.
    datagram_bytes_max: usize,
}

impl Thread {
    pub fn new(
        port: UdpPort,
        waker: Waker,
        mailbox: Receiver<Command>,
        published: Arc<Mutex<DataplaneCounters>>,
        config: &DataplaneConfig,
    ) -> Thread {
        let start = Instant::now();
        Thread {
            waker,
            mailbox,
            published,
            published_last: start,
            spin: config.spin,
            patience: Patience::default(),
            start,
            switch: Switch::new(),
            leaf: LeafProgram::default(),
            atp: AtpProgram::new(with_reachable_threshold(config.atp, &port)),
            jobs: Vec::new(),
            carrying: Carrying::default(),
            peers: Peers::new(port.local_addr().port()),
            traffic: vec![JobTraffic::default(); 256],
            outgoing: Outgoing::new(),
            batch: 0,
            datagram_bytes_max: HEADER_BYTES,
            port,
        }
    }

    pub fn run(mut self) {
        let mut batch = ReceiveBatch::new();
        loop {
            match self.step(&mut batch) {
                Ok(true) => {}
                Ok(false) => return self.publish(),
                Err(error) => {
                    // One bad system call must not end all jobs; a dead
                    // socket repeats, so do not spin on it.
                    tracing::error!(%error, address = %self.port.local_addr(), "data-plane thread");
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
            if self.patience.is_over(self.spin) {
                self.publish();
                self.port.wait(&self.waker, None, Duration::ZERO)?;
                self.patience.renew();
            }
            return Ok(true);
        }
        self.patience.renew();
        self.batch += 1;
        let now = Time::from_ns(self.start.elapsed().as_nanos() as u64);
        for (datagram, source) in batch.iter_mut() {
            self.handle(now, datagram, source)?;
        }
        self.outgoing.flush(&mut self.port, &mut self.peers)?;
        if self.published_last.elapsed() >= PUBLISH_EVERY {
            self.publish();
        }
        Ok(true)
    }

    fn handle(&mut self, now: Time, datagram: &[u8], source: SocketAddr) -> Result<(), NetError> {
        if datagram.starts_with(&ATP_MAGIC.to_be_bytes()) {
            return self.handle_atp(now, datagram, source);
        }
        if let Some(origin) = self.leaf.origin(datagram, source) {
            return self.handle_leaf(now, datagram, source, origin);
        }
        if self.carry(datagram, source)? {
            return Ok(());
        }
        let context = self.context(now, datagram, source);
        // A Probe's echo is as long as the Probe; nothing else exceeds the jobs' own datagrams.
        let bytes_max = self.datagram_bytes_max.max(datagram.len());
        let space = self.outgoing.space(bytes_max, &mut self.port, &mut self.peers)?;
        let verdict = self.switch.process(&context, datagram, space);
        let path = match verdict {
            Verdict::ProbeReply { bytes } => switchml::probe_path(&space[..bytes]),
            _ => ProbePath::Unicast,
        };
        if let Some(sender) = self.switch.admitted() {
            self.peers.learn(sender, source);
            self.count(sender, datagram.len(), &verdict);
        }
        match verdict {
            Verdict::ProbeReply { .. } => {
                self.register_if_p4app(source);
                let to = self.probe_destination(path, self.switch.admitted(), source);
                self.send(&verdict, to)
            }
            _ => self.send(&verdict, source),
        }
    }

    /// For a job that this switch sums for another one: up to its parent, or down to children.
    fn handle_leaf(&mut self, now: Time, datagram: &[u8], source: SocketAddr, origin: Origin) -> Result<(), NetError> {
        let Origin { job_number, side, up } = origin;
        let bytes_max = self.datagram_bytes_max.max(datagram.len());
        let space = match side {
            // What is written lies where it is most likely sent from.
            Side::Below => self.outgoing.unicast_space(up, bytes_max, &mut self.port)?,
            Side::Above => self.outgoing.space(bytes_max, &mut self.port, &mut self.peers)?,
        };
        let verdict = self.leaf.process(now, side, datagram, space);
        let path = match verdict {
            LeafVerdict::Below(Verdict::ProbeReply { bytes }) => switchml::probe_path(&space[..bytes]),
            _ => ProbePath::Unicast,
        };
        let sender = self.leaf.admitted();
        if let Some(sender) = sender {
            self.peers.learn(sender, source);
        }
        let (copies, bytes) = match verdict {
            LeafVerdict::Up { bytes } | LeafVerdict::ToChild { bytes, .. } => (1, bytes as u64),
            LeafVerdict::Below(below) => {
                let lane = if let Verdict::Multicast { lane, .. } = below { lane } else { 0 };
                self.copies(job_number, lane, &below)
            }
        };
        self.traffic[usize::from(job_number)].add(datagram.len(), copies, bytes);
        match verdict {
            LeafVerdict::Up { bytes } => match side {
                Side::Below => {
                    self.outgoing.commit_unicast(bytes);
                    Ok(())
                }
                Side::Above => self.outgoing.reply(bytes, up, &mut self.port),
            },
            LeafVerdict::ToChild { job_number, lane, child, bytes } => {
                match self.peers.group(job_number, lane).get(usize::from(child)).copied().flatten() {
                    Some(to) => self.outgoing.reply(bytes, to, &mut self.port),
                    // It asks again.
                    None => Ok(()),
                }
            }
            LeafVerdict::Below(Verdict::ProbeReply { bytes }) => {
                let to = self.probe_destination(path, sender, source);
                self.outgoing.send_back(bytes, to, &mut self.port)
            }
            LeafVerdict::Below(
                Verdict::Refuse { bytes, .. } | Verdict::Reply { bytes } | Verdict::Missing { bytes },
            ) => self.outgoing.send_back(bytes, source, &mut self.port),
            LeafVerdict::Below(below) => self.send(&below, source),
        }
    }

    /// Keeps what was just written to the outgoing space for the sender of the packet in hand, or for all.
    fn send(&mut self, verdict: &Verdict, to: SocketAddr) -> Result<(), NetError> {
        match *verdict {
            Verdict::Drop(_) => Ok(()),
            Verdict::Refuse { bytes, .. }
            | Verdict::Reply { bytes }
            | Verdict::Missing { bytes }
            | Verdict::ProbeReply { bytes } => self.outgoing.reply(bytes, to, &mut self.port),
            Verdict::Multicast { job_number, lane, bytes, destination } => {
                let group = Group { job_number, lane, destination };
                self.outgoing.multicast(group, bytes, &mut self.port, &mut self.peers)
            }
        }
    }

    /// Up to the job's next hop, or down to children.
    fn handle_atp(&mut self, now: Time, datagram: &[u8], source: SocketAddr) -> Result<(), NetError> {
        let up = self.atp.up(datagram);
        let queue_bytes = self.atp.queue_bytes(self.batch, || self.port.send_queue_bytes());
        let context = fanin_protocol::atp::Context { now, egress_queue_bytes: queue_bytes };
        let bytes_max = self.datagram_bytes_max.max(datagram.len());
        let space = match up {
            // What is written lies where it is sent from.
            Some(up) => self.outgoing.unicast_space(up, bytes_max, &mut self.port)?,
            None => self.outgoing.space(bytes_max, &mut self.port, &mut self.peers)?,
        };
        let verdict = self.atp.process(&context, datagram, space);
        if let Some(sender) = self.atp.sender() {
            self.peers.learn(sender, source);
            self.atp.saw(sender, now);
        }
        let (copies, bytes) = atp::copies(&verdict, &self.peers);
        if let Some(number) = self.atp.job_number(datagram) {
            self.traffic[usize::from(number)].add(datagram.len(), copies, bytes);
        }
        self.send_atp(&verdict, up, source)
    }

    fn send_atp(
        &mut self,
        verdict: &fanin_protocol::atp::Verdict,
        up: Option<SocketAddr>,
        source: SocketAddr,
    ) -> Result<(), NetError> {
        use fanin_protocol::atp::Verdict;
        match *verdict {
            Verdict::Drop(_) => Ok(()),
            Verdict::Refuse { bytes, .. } => match up {
                Some(_) => self.outgoing.send_back(bytes, source, &mut self.port),
                None => self.outgoing.reply(bytes, source, &mut self.port),
            },
            Verdict::Up { bytes } => {
                self.outgoing.commit_unicast(bytes);
                Ok(())
            }
            Verdict::Down { job_number, lane, bytes, children: u32::MAX, payload_child } => {
                let group = Group { job_number, lane, destination: payload_child.map(u16::from) };
                self.outgoing.multicast(group, bytes, &mut self.port, &mut self.peers)
            }
            Verdict::Down { job_number, lane, bytes, children, .. } => {
                for child in (0..32).filter(|child| children >> child & 1 == 1) {
                    if let Some(to) = self.peers.group(job_number, lane).get(child).copied().flatten() {
                        self.outgoing.reply(bytes, to, &mut self.port)?;
                    }
                }
                Ok(())
            }
        }
    }

    /// Sends what the XDP program could not. Returns whether that is all there is to be done about the datagram.
    fn carry(&mut self, datagram: &[u8], source: SocketAddr) -> Result<bool, NetError> {
        let Some(job) = self.carrying.find(datagram) else { return Ok(false) };
        if fanin::Header::parse_unchecked(datagram).is_none_or(|header| header.kind != Kind::Aggregate) {
            let is_dropped = job.is_workers(datagram) && job.report_stray();
            self.carrying.stray_datagrams += u64::from(is_dropped);
            return Ok(is_dropped);
        }
        let job_number = job.install.job_id as u8;
        let space = self.outgoing.space(self.datagram_bytes_max, &mut self.port, &mut self.peers)?;
        let completed = job.carrier.complete(datagram, space);
        if let Some(lane) = completed.map(|completed| completed.lane)
            && job.addresses_are_old(lane, self.batch)
        {
            for (rank, address) in (0..).zip(job.carrier.addresses(lane)) {
                address.into_iter().for_each(|address| self.peers.learn(Admitted { job_number, lane, rank }, address));
            }
        }
        self.carrying.traffic.received_datagrams += 1;
        self.carrying.traffic.received_bytes += datagram.len() as u64;
        let Some(completed) = completed else { return Ok(true) };
        let verdict = match completed.receiver {
            Some(_) => Verdict::Reply { bytes: completed.bytes },
            None => {
                let (lane, bytes, destination) = (completed.lane, completed.bytes, completed.destination);
                Verdict::Multicast { job_number, lane, bytes, destination }
            }
        };
        let (copies, bytes) = self.copies(job_number, completed.lane, &verdict);
        self.carrying.traffic.sent_datagrams += copies;
        self.carrying.traffic.sent_bytes += bytes;
        self.send(&verdict, source)?;
        Ok(true)
    }

    /// Both layouts share the ports: fanin datagrams begin with a magic
    /// number that no p4app-switchML job type makes.
    fn context(&self, now: Time, datagram: &[u8], source: SocketAddr) -> Context {
        let is_fanin = datagram.starts_with(&MAGIC.to_be_bytes()) || datagram.first().is_none_or(|byte| byte >> 4 != 1);
        let wire_format = if is_fanin { WireFormat::Fanin } else { WireFormat::P4app };
        let source_rank = if is_fanin { None } else { self.peers.registered_rank(source) };
        Context { now, wire_format, source_rank }
    }

    /// Where a Probe's answer goes, by what the Probe asked for.
    fn probe_destination(&mut self, path: ProbePath, sender: Option<Admitted>, source: SocketAddr) -> SocketAddr {
        match (path, sender) {
            (ProbePath::MulticastTest, Some(sender)) => {
                self.peers.multicast_group(sender.job_number, sender.lane).unwrap_or(source)
            }
            (ProbePath::MulticastUse, Some(sender)) => {
                self.peers.join_group(sender);
                source
            }
            _ => source,
        }
    }

    /// A p4app worker of ours makes itself known by its Probe.
    fn register_if_p4app(&mut self, source: SocketAddr) {
        let Some(sender) = self.switch.admitted() else { return };
        let p4app = self.jobs.iter().any(|job| {
            job.job_id as u8 == sender.job_number && job.wire_format == fanin_control::WireFormat::P4appSwitchml
        });
        if p4app {
            self.peers.register(sender, source);
        }
    }

    fn count(&mut self, sender: Admitted, received_bytes: usize, verdict: &Verdict) {
        let (copies, bytes) = self.copies(sender.job_number, sender.lane, verdict);
        self.traffic[usize::from(sender.job_number)].add(received_bytes, copies, bytes);
    }

    /// Datagrams that a verdict sends, and their bytes.
    fn copies(&self, job_number: u8, lane: u16, verdict: &Verdict) -> (u64, u64) {
        match *verdict {
            Verdict::Drop(_) => (0, 0),
            Verdict::Multicast { bytes, destination: None, .. } => {
                let copies = self.peers.destinations(job_number, lane).count() as u64;
                (copies, bytes as u64 * copies)
            }
            Verdict::Multicast { bytes, .. } => {
                let others = (self.peers.group(job_number, lane).len() as u64).saturating_sub(1);
                (1 + others, bytes as u64 + others * HEADER_BYTES as u64)
            }
            Verdict::Refuse { bytes, .. }
            | Verdict::Reply { bytes }
            | Verdict::Missing { bytes }
            | Verdict::ProbeReply { bytes } => (1, bytes as u64),
        }
    }

    /// Carries out what the controller asked for; false to stop.
    fn obey(&mut self) -> bool {
        loop {
            match self.mailbox.try_recv() {
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return false,
                Ok(Command::Install(job, reply)) => {
                    let _ = reply.send(self.install(&job));
                }
                Ok(Command::Carry(job, reply)) => {
                    self.start_carrying(*job);
                    let _ = reply.send(Ok(()));
                }
                Ok(Command::Remove(job_id)) => self.remove(job_id),
                Ok(Command::Inspect(job_id, reply)) => {
                    let _ = reply.send(self.inspect(job_id));
                }
                Ok(Command::Count(thread, reply)) => {
                    let mut counters = DataplaneCounters::default();
                    self.counters(&mut counters);
                    let _ = reply.send((thread, counters));
                }
                Ok(Command::Register { job_id, lane, rank, address }) => {
                    self.peers.register(Admitted { job_number: job_id as u8, lane, rank }, address);
                }
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    fn install(&mut self, job: &JobInstall) -> Result<(), InstallError> {
        // A job that moves from the XDP program to the sockets.
        self.carrying.remove(job.job_id);
        let taken = InstallError::JobNumberInUse { job_number: job.job_id as u8 };
        if self.jobs.iter().any(|installed| installed.job_id as u8 == job.job_id as u8) {
            return Err(taken);
        }
        let in_words = |error| match error {
            switchml::InstallError::JobNumberInUse => taken,
            other => InstallError::Unsupported { what: format!("{other:?} of {:?}", job_config(job)) },
        };
        match (&job.atp, &job.racks) {
            (Some(part), _) => self.atp.install(job, part)?,
            (None, None) => self.switch.install(job_config(job)).map_err(in_words)?,
            (None, Some(RackInstall::Root(children))) => {
                self.switch.install_root(job_config(job), children.clone()).map_err(in_words)?;
            }
            (None, Some(RackInstall::Leaf(part))) => self.leaf.install(job, part).map_err(in_words)?,
        }
        self.peers.install(job);
        let header_bytes = HEADER_BYTES.max(ATP_HEADER_BYTES);
        self.datagram_bytes_max = self.datagram_bytes_max.max(header_bytes + usize::from(job.element_count_max) * 4);
        self.traffic[usize::from(job.job_id as u8)] = JobTraffic::default();
        self.jobs.push(job.clone());
        Ok(())
    }

    fn start_carrying(&mut self, job: CarriedJob) {
        self.peers.install(&job.install);
        let bytes_max = HEADER_BYTES + usize::from(job.install.element_count_max) * 4;
        self.datagram_bytes_max = self.datagram_bytes_max.max(bytes_max);
        self.carrying.insert(job);
    }

    fn remove(&mut self, job_id: u32) {
        if self.carrying.remove(job_id) {
            self.peers.remove(job_id as u8);
        }
        if self.switch.remove(job_id) || self.leaf.remove(job_id) || self.atp.remove(job_id) {
            self.peers.remove(job_id as u8);
            self.jobs.retain(|job| job.job_id != job_id);
        }
    }

    fn inspect(&self, job_id: u32) -> Option<JobInspection> {
        let job = self.jobs.iter().find(|job| job.job_id == job_id)?;
        if let Some(part) = &job.atp {
            let now = Time::from_ns(self.start.elapsed().as_nanos() as u64);
            return Some(self.atp.inspect(job, part, now, &self.peers));
        }
        let now = Time::from_ns(self.start.elapsed().as_nanos() as u64);
        if matches!(job.racks, Some(RackInstall::Leaf(_))) {
            return self.leaf.inspect(job, now, &self.peers);
        }
        let snapshot = self.switch.inspect(job_id)?;
        let address = |rank| self.peers.address(job_id as u8, rank);
        Some(inspection::describe(job, &snapshot, now, address))
    }

    fn publish(&mut self) {
        self.published_last = Instant::now();
        // The reader holds the lock for a copy only; if it does so now, the next round publishes.
        if let Ok(mut published) = self.published.try_lock() {
            self.counters(&mut published);
        }
    }

    fn counters(&self, counted: &mut DataplaneCounters) {
        let (switchml, leaf, atp) = (self.switch.counters(), self.leaf.counters(), self.atp.counters());
        counted.total = publish::total(&self.port.counters(), switchml, leaf, atp, &self.carrying);
        counted.jobs.clear();
        for job in &self.jobs {
            let traffic = &self.traffic[usize::from(job.job_id as u8)];
            let counters = match (&job.atp, &job.racks) {
                (Some(_), _) => {
                    let tensors = self.atp.job_tensors(job.job_id);
                    self.atp.job_counters(job.job_id).map(|found| publish::atp_job(traffic, found, tensors))
                }
                (None, Some(RackInstall::Leaf(_))) => {
                    self.leaf.job_counters(job.job_id).map(|found| publish::leaf_job(traffic, found))
                }
                (None, _) => {
                    let tensors = self.switch.job_tensors(job.job_id);
                    self.switch.job_counters(job.job_id).map(|found| publish::job(traffic, found, tensors))
                }
            };
            counted.jobs.extend(counters.map(|counters| (job.job_id, counters)));
        }
    }
}

/// A socket's queue cannot grow beyond its send buffer, so that a longer threshold would never mark anything.
fn with_reachable_threshold(config: SwitchConfig, port: &UdpPort) -> SwitchConfig {
    let reachable = port.buffer_sizes().map_or(u32::MAX, |sizes| (sizes.send_bytes / 2).min(u32::MAX as usize) as u32);
    SwitchConfig { ecn_threshold_bytes: config.ecn_threshold_bytes.min(reachable), ..config }
}
