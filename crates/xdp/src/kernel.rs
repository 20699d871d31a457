//! The loaded program: its interfaces, its jobs, its counters.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::AsFd;
use std::sync::Arc;

use aya::maps::{Array, DevMap, HashMap, Map, MapData, PerCpuArray};
use aya::programs::{TestRunOptions, Xdp, XdpMode};
use aya::{Ebpf, EbpfLoader, TestRun as _};
use fanin_numeric::accumulate;
use fanin_protocol::switchml::{JobConfig, JobSnapshot, WireFormat};
use fanin_protocol::time::Time;
use fanin_wire::generated::{HEADER_BYTES, RANK_ALL, XDP_ELEMENT_COUNT_MAX};
use fanin_wire::{Accumulator, ElementFormat, Kind, fanin};

use crate::allotment::Allotment;
use crate::state::{Copy, Counters, Job, MemberKey, PAIRS_MAX, Peer, Slot};
use crate::{InstallError, XdpError, checksum, snapshot, sys};

#[cfg(has_program)]
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/switchml.bpf.o"));
#[cfg(not(has_program))]
static OBJECT: &[u8] = &[];

/// Ranks and lanes of all jobs together.
const PEER_COUNT: u32 = 16_384;
/// Interfaces where the caller does not say how many there will be.
const INTERFACE_COUNT: u32 = 64;
pub(crate) const NO_FLAGS: u64 = 0;

/// Bytes of the kernel's memory that a slot takes, both copies in one.
pub const SLOT_BYTES: u64 = size_of::<Slot>() as u64;

/// What the program is told when it is loaded.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// First UDP port of the data plane.
    pub port_first: u16,
    /// Ports from there on.
    pub port_count: u16,
    /// Frames to any other address are left alone; `None`: a job's id and token alone tell its packets.
    pub own_address: Option<Ipv4Addr>,
    /// Slots of all jobs together, both copies in one: each takes 2,936 bytes of the kernel's memory.
    pub slot_count: u32,
}

/// What the program does with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing leaves.
    Drop,
    /// It goes up to the sockets.
    Pass,
    /// It goes back where it came from.
    Transmit,
    /// A copy leaves by every interface.
    Broadcast,
}

/// An Aggregate for the daemon's socket to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completed {
    /// Its job.
    pub job_id: u32,
    /// Its lane.
    pub lane: u16,
    /// The one rank that asked for it; `None`: all ranks await it.
    pub receiver: Option<u16>,
    /// The one rank that gets the elements; the others get a header.
    pub destination: Option<u16>,
    /// Length of the datagram.
    pub bytes: usize,
}

/// The SwitchML program in the kernel. Dropping it detaches the program and frees its maps.
pub struct KernelSwitch {
    ebpf: Ebpf,
    jobs: Array<MapData, Job>,
    slots: Array<MapData, Slot>,
    peers: Array<MapData, Peer>,
    members: HashMap<MapData, MemberKey, u32>,
    counts: PerCpuArray<MapData, Counters>,
    ports: DevMap<MapData>,
    interface_count: u32,
    free_slots: Allotment,
    free_peers: Allotment,
    installed: Vec<Installed>,
    read_maps: Arc<ReadMaps>,
}

/// Second handles of the maps that a [`Carrier`] reads.
struct ReadMaps {
    slots: Array<MapData, Slot>,
    peers: Array<MapData, Peer>,
}

/// Sends one job's Aggregates in the program's place. It reads the program's maps by itself, so that a thread needs no lock
/// and may keep it for longer than the job lives.
#[derive(Clone)]
pub struct Carrier {
    config: JobConfig,
    job: Job,
    maps: Arc<ReadMaps>,
}

struct Installed {
    config: JobConfig,
    job: Job,
    /// Counters of earlier jobs of this number.
    before: Counters,
}

impl KernelSwitch {
    /// Loads the program; it sees no packet before [`KernelSwitch::attach`].
    ///
    /// # Errors
    /// [`XdpError`]: no program in this build, no privileges, or a kernel that does not take it.
    pub fn load(settings: &Settings) -> Result<KernelSwitch, XdpError> {
        KernelSwitch::load_for_interfaces(settings, INTERFACE_COUNT)
    }

    /// [`KernelSwitch::load_for_interfaces`] for interfaces whose other end may be a veth without a program: answers leave by a redirect,
    /// which such a veth takes, instead of `XDP_TX`.
    ///
    /// # Errors
    /// As there.
    pub fn load_redirecting(settings: &Settings, interface_count: u32) -> Result<KernelSwitch, XdpError> {
        KernelSwitch::load_as(settings, true, interface_count)
    }

    /// As [`KernelSwitch::load`], for so many interfaces at most. Each that is not attached costs every Aggregate some 10 ns:
    /// the kernel looks at all places of its list.
    ///
    /// # Errors
    /// As there.
    pub fn load_for_interfaces(settings: &Settings, interface_count: u32) -> Result<KernelSwitch, XdpError> {
        KernelSwitch::load_as(settings, false, interface_count)
    }

    fn load_as(settings: &Settings, redirects_answers: bool, interface_count: u32) -> Result<KernelSwitch, XdpError> {
        if !crate::HAS_PROGRAM {
            return Err(XdpError::NotBuilt);
        }
        let mut ebpf = load_object(settings, redirects_answers, interface_count)?;
        for name in ["switchml", "to_worker"] {
            program(&mut ebpf, name).load().map_err(|error| XdpError::verify(&error))?;
        }
        let mut map = |name: &str| ebpf.take_map(name).unwrap_or_else(|| unreachable!("the object has the map {name}"));
        let (slots, peers) = (map("slots"), map("peers"));
        let read_maps = ReadMaps { slots: second_handle(&slots)?, peers: second_handle(&peers)? };
        Ok(KernelSwitch {
            read_maps: Arc::new(read_maps),
            jobs: Array::try_from(map("jobs"))?,
            slots: Array::try_from(slots)?,
            peers: Array::try_from(peers)?,
            members: HashMap::try_from(map("members"))?,
            counts: PerCpuArray::try_from(map("counts"))?,
            ports: DevMap::try_from(map("ports"))?,
            ebpf,
            interface_count: 0,
            free_slots: Allotment::new(settings.slot_count),
            free_peers: Allotment::new(PEER_COUNT),
            installed: Vec::new(),
        })
    }

    /// Puts the program in front of an interface, in the driver ("native" XDP): frames of jobs are summed there, and
    /// Aggregates leave by it.
    ///
    /// # Errors
    /// [`XdpError`], saying what to change.
    pub fn attach(&mut self, interface: &str) -> Result<(), XdpError> {
        let index = self.attach_input(interface)?;
        let exit = program(&mut self.ebpf, "to_worker").fd().map_err(|error| XdpError::verify(&error))?;
        let exit = exit.try_clone().map_err(|error| XdpError::Map { why: error.to_string() })?;
        self.ports.set(self.interface_count, index, Some(&exit), NO_FLAGS).map_err(|error| XdpError::NotAttached {
            interface: interface.into(),
            why: format!(
                "{}; at most as many interfaces as it was loaded for, on Linux 5.8 or later",
                crate::error::chain(&error)
            ),
        })?;
        self.interface_count += 1;
        Ok(())
    }

    /// As [`KernelSwitch::attach`], but no Aggregate for all ranks leaves by this interface: to measure the program without
    /// what the kernel does to send. Returns the interface's number.
    ///
    /// # Errors
    /// [`XdpError`], saying what to change.
    pub fn attach_input(&mut self, interface: &str) -> Result<u32, XdpError> {
        let index =
            sys::interface_index(interface).ok_or_else(|| XdpError::NoInterface { interface: interface.into() })?;
        let entry = program(&mut self.ebpf, "switchml");
        entry.attach_to_if_index(index, XdpMode::Driver).map_err(|error| XdpError::attach(interface, &error))?;
        Ok(index)
    }

    /// Gives a job its slots; its packets are served when this returns. Without `has_checksum` its packets' CRC-32C is
    /// neither checked nor written, which all its workers must have been told.
    ///
    /// # Errors
    /// [`InstallError`]; nothing is installed then.
    pub fn install(&mut self, config: JobConfig, has_checksum: bool) -> Result<(), InstallError> {
        check(&config)?;
        let number = config.job_id & 0xff;
        if self.installed.iter().any(|installed| installed.config.job_id & 0xff == number) {
            return Err(InstallError::JobNumberInUse { job_number: number as u8 });
        }
        let slot_count = config.slots_per_lane * u32::from(config.lane_count);
        let slot_base = self.free_slots.take(slot_count).ok_or(InstallError::Full { what: "the slots" })?;
        let peer_count = u32::from(config.worker_count) * u32::from(config.lane_count);
        let Some(peer_base) = self.free_peers.take(peer_count) else {
            self.free_slots.give_back(slot_base);
            return Err(InstallError::Full { what: "the worker addresses" });
        };
        let job = Job {
            slot_base,
            peer_base,
            slot_count,
            has_checksum: has_checksum.into(),
            is_live: 0,
            job_id: config.job_id,
            job_token: config.job_token,
            worker_count: config.worker_count.into(),
            lane_count: config.lane_count.into(),
            slots_per_lane: config.slots_per_lane,
            slots_shift: config.slots_per_lane.trailing_zeros(),
            element_count_max: config.element_count_max.into(),
            is_shared: 0,
        };
        if let Err(error) = self.write_job(&job, peer_count) {
            self.free_slots.give_back(slot_base);
            self.free_peers.give_back(peer_base);
            return Err(error.into());
        }
        let before = self.number_counters(number);
        self.installed.push(Installed { config, job, before });
        Ok(())
    }

    /// Ends a job; returns whether there was one.
    pub fn remove(&mut self, job_id: u32) -> bool {
        self.remove_if(job_id, |_| true)
    }

    /// Ends a job, unless a chunk of it is complete; returns whether it did.
    pub fn remove_unless_summed(&mut self, job_id: u32) -> bool {
        self.remove_if(job_id, |counters| counters.aggregates == 0)
    }

    /// Stops serving a job, and ends it if its counters, which no packet changes any more, are such; else goes on.
    fn remove_if(&mut self, job_id: u32, is_wanted: impl Fn(&Counters) -> bool) -> bool {
        let Some(place) = self.installed.iter().position(|installed| installed.config.job_id == job_id) else {
            return false;
        };
        let job = self.installed[place].job;
        self.write_live(Job { is_live: 0, ..job });
        let waited = sys::wait_for_running_programs();
        if !self.job_counters(job_id).is_some_and(|counters| is_wanted(&counters)) {
            // Whether ranks share an interface may have been learned just before: assume it, which is never wrong.
            self.write_live(Job { is_live: 1, is_shared: 1, ..job });
            return false;
        }
        self.installed.remove(place);
        match waited {
            Ok(()) => {
                self.free_slots.give_back(job.slot_base);
                self.free_peers.give_back(job.peer_base);
            }
            // A packet that is just being served may still write to the slots: they are not given to anybody else.
            Err(error) => {
                tracing::warn!(%error, job_id, "the kernel does not say when a job's slots are free: they stay taken")
            }
        }
        self.forget_members(job_id);
        true
    }

    fn write_live(&mut self, job: Job) {
        self.jobs.set(job.job_id & 0xff, job, NO_FLAGS).expect("an entry of an array map can be overwritten");
    }

    /// Whether the program serves this job.
    pub fn serves(&self, job_id: u32) -> bool {
        self.installed(job_id).is_some()
    }

    /// The jobs that the program serves.
    pub fn job_ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.installed.iter().map(|installed| installed.config.job_id)
    }

    /// What a job's slots look like now, without holding them: a slot that changes meanwhile may read half old. Times are
    /// those of [`KernelSwitch::now`].
    pub fn inspect(&self, job_id: u32) -> Option<JobSnapshot> {
        let Installed { config, job, .. } = self.installed(job_id)?;
        let slot = |index: u32| self.slots.get(&(job.slot_base + index), NO_FLAGS).ok();
        let seen = |rank: u16| {
            let lanes = (0..config.lane_count).filter_map(|lane| peer(&self.peers, config, job, lane, rank));
            lanes.map(|peer| Time::from_ns(peer.seen_ns)).max()
        };
        Some(snapshot::take(config, slot, seen))
    }

    /// The present time, as [`KernelSwitch::inspect`] counts it.
    pub fn now() -> Time {
        Time::from_ns(sys::coarse_ns())
    }

    /// What a thread needs to send a job's Aggregates that the program hands up; `None` for a job that it does not serve.
    pub fn carrier(&self, job_id: u32) -> Option<Carrier> {
        let Installed { config, job, .. } = self.installed(job_id)?;
        Some(Carrier { config: *config, job: *job, maps: self.read_maps.clone() })
    }

    /// Packets by outcome, of all jobs since the program was loaded.
    pub fn counters(&self) -> Counters {
        (0..=0xff).map(|number| self.number_counters(number)).fold(Counters::default(), |sum, one| sum.plus(&one))
    }

    /// Packets of one job by outcome.
    pub fn job_counters(&self, job_id: u32) -> Option<Counters> {
        let installed = self.installed(job_id)?;
        Some(self.number_counters(job_id & 0xff).since(&installed.before))
    }

    /// Runs the program on one Ethernet frame as if it had arrived, without an interface. What would leave is written to
    /// `output`; returns its length. Copies of a broadcast are as they are before `to_worker` addresses them.
    ///
    /// # Errors
    /// [`XdpError::NotRun`].
    pub fn run(&mut self, frame: &[u8], output: &mut [u8]) -> Result<(Action, usize), XdpError> {
        let not_run = |why: String| XdpError::NotRun { why };
        let options = TestRunOptions { data_in: Some(frame), data_out: Some(output), ..TestRunOptions::default() };
        let result = program(&mut self.ebpf, "switchml").test_run(options);
        let result = result.map_err(|error| not_run(crate::error::chain(&error)))?;
        let action = match result.return_value {
            1 => Action::Drop,
            2 => Action::Pass,
            3 => Action::Transmit,
            4 => Action::Broadcast,
            other => return Err(not_run(format!("it ended with {other}"))),
        };
        Ok((action, result.data_size_out as usize))
    }

    fn installed(&self, job_id: u32) -> Option<&Installed> {
        self.installed.iter().find(|installed| installed.config.job_id == job_id)
    }

    fn number_counters(&self, number: u32) -> Counters {
        let per_processor = self.counts.get(&number, NO_FLAGS);
        per_processor.iter().flat_map(|values| values.iter()).fold(Counters::default(), |sum, one| sum.plus(one))
    }

    /// The job goes live last, when all that its packets may touch is in place.
    fn write_job(&mut self, job: &Job, peer_count: u32) -> Result<(), XdpError> {
        self.forget_members(job.job_id);
        self.jobs.set(job.job_id & 0xff, *job, NO_FLAGS)?;
        for slot_index in 0..job.slot_count {
            self.slots.set(job.slot_base + slot_index, fresh_slot(job, slot_index), NO_FLAGS)?;
        }
        for index in 0..peer_count {
            self.peers.set(job.peer_base + index, Peer::default(), NO_FLAGS)?;
        }
        self.jobs.set(job.job_id & 0xff, Job { is_live: 1, ..*job }, NO_FLAGS)?;
        Ok(())
    }

    fn forget_members(&mut self, job_id: u32) {
        let of_job = |key: &MemberKey| key.group >> 16 == job_id & 0xff;
        let keys: Vec<_> = self.members.keys().flatten().filter(of_job).collect();
        for key in keys {
            // One that a last packet of the job has just replaced is gone as well, or harmless: it makes the daemon's socket
            // send for a later job.
            let _ = self.members.remove(&key);
        }
    }
}

impl Carrier {
    /// From where a lane's workers were last heard, by rank.
    pub fn addresses(&self, lane: u16) -> impl Iterator<Item = Option<SocketAddr>> + '_ {
        let address = |peer: Peer| {
            let ip = Ipv4Addr::from(u32::from_be(peer.address));
            SocketAddrV4::new(ip, u16::from_be(peer.port)).into()
        };
        let ranks = 0..self.config.worker_count;
        ranks.map(move |rank| peer(&self.maps.peers, &self.config, &self.job, lane, rank).map(address))
    }

    /// Makes whole what the program could not send itself: a datagram that came up to a socket as an Aggregate of the
    /// job, perhaps without its elements. Writes it to `output`, which must hold the job's largest datagram. `None` for any
    /// other datagram, and if the slot has gone on to another chunk meanwhile, which no worker does that still waits for this
    /// one.
    pub fn complete(&self, datagram: &[u8], output: &mut [u8]) -> Option<Completed> {
        let header = fanin::Header::parse_unchecked(datagram).filter(|header| header.kind == Kind::Aggregate)?;
        let is_ours = (header.job_id, header.job_token) == (self.config.job_id, self.config.job_token);
        if !is_ours || u32::from(header.slot_index) >= self.job.slot_count {
            return None;
        }
        let output = output.get_mut(..header.datagram_bytes())?;
        if datagram.len() == output.len() {
            output.copy_from_slice(datagram);
        } else if datagram.len() != HEADER_BYTES || !self.write_elements(&header, &mut output[HEADER_BYTES..]) {
            return None;
        }
        if self.job.has_checksum == 1 {
            header.seal(output);
        } else {
            header.seal_unsummed(output);
        }
        Some(Completed {
            job_id: header.job_id,
            lane: (u32::from(header.slot_index) / self.config.slots_per_lane) as u16,
            receiver: (header.worker_rank != RANK_ALL).then_some(header.worker_rank),
            destination: (header.destination != RANK_ALL).then_some(header.destination),
            bytes: output.len(),
        })
    }

    /// Writes a complete sum as it lies in a packet; false if the slot no longer holds the one that the header is of.
    fn write_elements(&self, header: &fanin::Header, payload: &mut [u8]) -> bool {
        let parity = usize::from(header.slot_parity & 1);
        let read = || self.maps.slots.get(&(self.job.slot_base + u32::from(header.slot_index)), NO_FLAGS).ok();
        let holds_sum = |slot: &Slot| {
            let copy = &slot.copies[parity];
            slot.job_id == header.job_id
                && copy.chunk_index == header.chunk_index
                && copy.contribution_count == 0
                && copy.element_count == header.element_count
        };
        // Read without holding the slot: if it is still the same chunk's afterwards, it was all the time.
        let Some(slot) = read().filter(|_| read().is_some_and(|later| holds_sum(&later))).filter(holds_sum) else {
            return false;
        };
        let count = usize::from(header.element_count).min(2 * PAIRS_MAX);
        let pairs = slot.pairs[parity];
        let values: [i32; 2 * PAIRS_MAX] =
            std::array::from_fn(|index| (pairs[index / 2] >> if index % 2 == 0 { 32 } else { 0 }) as i32);
        match header.element_format {
            ElementFormat::Int32 => accumulate::emit(&values[..count], payload),
            ElementFormat::Float16 => accumulate::half::emit(&values[..count], payload),
            ElementFormat::Bfloat16 => accumulate::bfloat::emit(&values[..count], payload),
            ElementFormat::Int8 => accumulate::byte::emit(&values[..count], slot.copies[parity].shift, payload),
            // No job of the program has them.
            ElementFormat::RawFloat32
            | ElementFormat::RawFloat16
            | ElementFormat::RawBfloat16
            | ElementFormat::Fixed32 => return false,
        }
        true
    }
}

/// What is known of one worker; `None` before its first packet.
fn peer(peers: &Array<MapData, Peer>, config: &JobConfig, job: &Job, lane: u16, rank: u16) -> Option<Peer> {
    let index = job.peer_base + u32::from(lane) * u32::from(config.worker_count) + u32::from(rank);
    peers.get(&index, NO_FLAGS).ok().filter(|peer| peer.port != 0)
}

/// Another descriptor of a map, which lives on its own.
fn second_handle<V: aya::Pod>(map: &Map) -> Result<Array<MapData, V>, XdpError> {
    let Map::Array(data) = map else { unreachable!("slots and peers are arrays") };
    let descriptor = data.fd().as_fd().try_clone_to_owned();
    let descriptor = descriptor.map_err(|error| XdpError::Map { why: error.to_string() })?;
    Ok(Array::try_from(Map::Array(MapData::from_fd(descriptor)?))?)
}

fn load_object(settings: &Settings, redirects_answers: bool, interface_count: u32) -> Result<Ebpf, XdpError> {
    let redirects_answers = u32::from(redirects_answers);
    let own_address = settings.own_address.map_or(0, |address| u32::from(address).to_be());
    let (port_first, port_count) = (u32::from(settings.port_first), u32::from(settings.port_count));
    let mut loader = EbpfLoader::new();
    loader
        .override_global("crc_tables", &checksum::TABLES[..], true)
        .override_global("port_first", &port_first, true)
        .override_global("port_count", &port_count, true)
        .override_global("own_address", &own_address, true)
        .override_global("redirects_answers", &redirects_answers, true)
        .map_max_entries("slots", settings.slot_count)
        .map_max_entries("ports", interface_count.max(1))
        .map_max_entries("peers", PEER_COUNT)
        .map_max_entries("members", PEER_COUNT);
    loader.load(OBJECT).map_err(|error| XdpError::load(&error))
}

pub(crate) fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> &'a mut Xdp {
    let found = ebpf.program_mut(name).and_then(|program| program.try_into().ok());
    found.unwrap_or_else(|| unreachable!("the object has the XDP program {name}"))
}

fn check(config: &JobConfig) -> Result<(), InstallError> {
    let unsupported = |what: String| Err(InstallError::Unsupported { what });
    if config.wire_format != WireFormat::Fanin {
        return unsupported("the p4app-switchML layout: the XDP program speaks fanin's own".into());
    }
    if config.accumulator != Accumulator::BlockFixed {
        let what = format!("the accumulator {}: the XDP program has block-fixed only", config.accumulator.label());
        return unsupported(what);
    }
    if config.element_count_max > XDP_ELEMENT_COUNT_MAX {
        let most = format!("{} elements per packet: at most {XDP_ELEMENT_COUNT_MAX} in XDP", config.element_count_max);
        return unsupported(most);
    }
    config.check().or_else(|error| unsupported(format!("{error:?} of {config:?}")))
}

/// Both copies as if the uses before the stream's first had completed.
fn fresh_slot(job: &Job, slot_index: u32) -> Slot {
    let first = slot_index & (job.slots_per_lane - 1);
    let before = |uses: u32| Copy::fresh(first.wrapping_sub(uses.wrapping_mul(job.slots_per_lane)));
    Slot { is_held: 0, job_id: job.job_id, copies: [before(2), before(1)], pairs: [[0; PAIRS_MAX]; 2] }
}
