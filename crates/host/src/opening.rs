//! Opening what a session needs once it has its place: lanes with their sockets, and a parameter server.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use crossbeam_channel::{Sender, unbounded};
use fanin_control::client::Admission;
use fanin_control::registry::AtpAssignment;
use fanin_net::{Loss, Options, UdpPort, Waker};
use fanin_protocol::atp::{self, CongestionControl, Indexing};
use fanin_protocol::switchml::{Worker, WorkerConfig};
use fanin_protocol::time::Span;
use fanin_server::{ParameterServer, ServedJob, ServerConfig};

use crate::config::{ElementFormat, SessionConfig, WireFormat};
use crate::crew::Crew;
use crate::endpoint::Endpoint;
use crate::lane::{Lane, Trouble};
use crate::path::{self, Prober};
use crate::place::Place;
use crate::session::controller_address;
use crate::{Error, ErrorKind};

/// Chunks out at the start of an ATP job (ATP §3.7).
const WINDOW_INITIAL: u32 = 200;
const RESEND_TIMEOUT_INITIAL: Span = Span::from_ms(20);
const RESEND_TIMEOUT_MIN: Span = Span::from_ms(2);
const RESEND_TIMEOUT_MAX: Span = Span::from_ms(1000);

/// Opens a job's lanes and checks that full-sized datagrams get there and back.
pub(crate) fn open_lanes(
    config: &SessionConfig,
    admission: &Admission,
    place: Place,
    trouble: &Sender<Trouble>,
) -> Result<Vec<Crew>, Error> {
    (0..admission.assignment.shape.lane_count).map(|lane| open_lane(config, admission, place, trouble, lane)).collect()
}

fn open_lane(
    config: &SessionConfig,
    admission: &Admission,
    place: Place,
    trouble: &Sender<Trouble>,
    number: u16,
) -> Result<Crew, Error> {
    let lane = number;
    let peer = admission.data_addresses[usize::from(lane) % admission.data_addresses.len()];
    let any: SocketAddr = if peer.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let mut port = UdpPort::bind(any, &Options::default())?;
    port.connect(peer)?;
    let waker = Waker::new()?;
    let element_count = admission.assignment.element_count_max;
    let mut group = None;
    let endpoint = match &admission.assignment.atp {
        Some(atp) => {
            let worker = atp_worker_config(config, admission, atp, place, lane);
            path::check_atp(&mut port, &waker, peer, &worker, config.rank, element_count)?;
            let resumed = admission.assignment.resumed.as_ref();
            let begin = resumed.map(|resumed| (resumed.boundary.chunks[usize::from(lane)], atp.tree.lost().count()));
            Endpoint::atp(worker, begin)
        }
        None => {
            let worker = worker_config(config, admission, place, lane);
            let (prober, format) = (prober(config, &worker), config.element_format.on_wire());
            let is_in_racks = admission.assignment.racks.is_some();
            path::check(&mut port, &waker, peer, &prober, format, element_count, is_in_racks)?;
            if config.multicast && place.host_count > 1 {
                group = path::join_group(&mut port, &waker, peer, &prober, format, element_count)?;
            }
            Endpoint::SwitchMl(Box::new(Worker::new(worker)))
        }
    };
    // Tests lose datagrams of the stream, not of the set-up.
    for (index, port) in [Some(&mut port), group.as_mut()].into_iter().flatten().enumerate() {
        let seed_offset = (index as u64) << 32 | u64::from(config.rank) << 16 | u64::from(lane);
        let loss = |(probability, seed): (f64, u64)| Loss { probability, seed: seed.wrapping_add(seed_offset) };
        port.set_loss(config.loss.map(loss))?;
        port.set_blackhole(config.blackhole);
    }
    let (commands, mailbox) = unbounded();
    let (trouble, stats, spin) = (trouble.clone(), Arc::default(), config.spin());
    Ok(Crew::new(Lane { number, port, group, peer, endpoint, waker, mailbox, trouble, stats, spin }, commands))
}

/// A switch that sums for another one cannot add sums that were rounded to few bits.
pub(crate) fn fits_racks(config: &SessionConfig, admission: &Admission) -> Result<(), Error> {
    let format = config.element_format;
    if admission.assignment.racks.is_none() || format == ElementFormat::Int32 {
        return Ok(());
    }
    let why = format!(
        "rank {}: the workers of this job are beside several switches, which sum 32-bit elements only, and the element \
         format is {format:?}: use the element format int32, or put all workers beside the root (FANIN_SWITCH_NAME)",
        config.rank
    );
    Err(Error::new(ErrorKind::Invalid, why))
}

/// A parameter server on free ports, for the controller to choose.
pub(crate) fn own_server(config: &SessionConfig) -> Result<Option<ParameterServer>, Error> {
    if !config.offers_server() {
        return Ok(None);
    }
    let is_ipv4 = controller_address(config)?.is_ipv4();
    let address = if is_ipv4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let settings = ServerConfig { address, port_base: 0, thread_count: 1, spin: config.spin(), loss: None };
    Ok(Some(ParameterServer::start(&settings)?))
}

/// Serves the lanes that the controller has given to this rank's server; without any, it ends.
pub(crate) fn serve(server: Option<ParameterServer>, admission: &Admission) -> Result<Option<ParameterServer>, Error> {
    let (Some(server), Some(job)) = (server, ServedJob::of_rank(&admission.assignment, admission.rank)) else {
        return Ok(None);
    };
    server.serve(&job).map_err(|error| Error::new(ErrorKind::Network, error.to_string()))?;
    Ok(Some(server))
}

fn prober(config: &SessionConfig, worker: &WorkerConfig) -> Prober {
    Prober {
        job_id: worker.job_id,
        job_token: worker.job_token,
        number: worker.number,
        lane: worker.lane,
        slot_index: (u32::from(worker.lane) * worker.slots_per_lane) as u16,
        has_checksum: worker.has_checksum,
        session_rank: config.rank,
    }
}

fn atp_worker_config(
    config: &SessionConfig,
    admission: &Admission,
    job: &AtpAssignment,
    place: Place,
    lane: u16,
) -> atp::WorkerConfig {
    let assignment = &admission.assignment;
    let window_max = assignment.slots_per_lane;
    atp::WorkerConfig {
        job_id: assignment.job_id,
        job_token: assignment.resumed.as_ref().map_or(assignment.job_token, |resumed| resumed.packet_token),
        rank: place.host,
        lane,
        way: *job.tree.way(place.host),
        level_count: job.tree.level_count(),
        slot_count: job.slot_count,
        indexing: Indexing::Hash,
        element_count_max: assignment.element_count_max,
        window_max,
        scale: config.atp_scale,
        congestion_control: CongestionControl::Aimd { window_initial: WINDOW_INITIAL.min(window_max), step: 1 },
        resend_timeout_initial: RESEND_TIMEOUT_INITIAL,
        resend_timeout_min: RESEND_TIMEOUT_MIN,
        resend_timeout_max: RESEND_TIMEOUT_MAX,
    }
}

/// What this rank calls itself at its switch.
fn number_at_switch(admission: &Admission, place: Place) -> u16 {
    let racks = admission.assignment.racks.as_ref();
    racks.and_then(|racks| racks.numbers.get(usize::from(place.host)).copied()).unwrap_or(place.host)
}

fn worker_config(config: &SessionConfig, admission: &Admission, place: Place, lane: u16) -> WorkerConfig {
    let assignment = &admission.assignment;
    WorkerConfig {
        job_id: assignment.job_id,
        job_token: assignment.job_token,
        rank: place.host,
        number: number_at_switch(admission, place),
        worker_count: place.host_count,
        lane,
        slots_per_lane: assignment.slots_per_lane,
        element_count_max: assignment.element_count_max,
        wire_format: match config.wire_format {
            WireFormat::Fanin => fanin_protocol::switchml::WireFormat::Fanin,
            WireFormat::P4app => fanin_protocol::switchml::WireFormat::P4app,
        },
        has_checksum: assignment.has_checksum,
        resend_timeout_initial: RESEND_TIMEOUT_INITIAL,
        resend_timeout_min: RESEND_TIMEOUT_MIN,
        resend_timeout_max: RESEND_TIMEOUT_MAX,
    }
}
