//! The worker's side of the control plane.
//!
//! [`Client`] is async; [`ControlClient`] is the same for programs without a runtime. Both turn every failure into a
//! [`ControlError`] that says what to do next, and end every wait.

mod attachment;
mod blocking;
mod connect;
mod serving;

use std::net::SocketAddr;
use std::time::Duration;

use fanin_wire::Accumulator;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Status};

pub use attachment::{Attachment, HostReport, Notice};
pub use blocking::ControlClient;
pub use connect::{BearerToken, ClientConfig, TlsTrust};
pub use serving::{Order, ServerOffer, Serving};

use crate::proto::controller_client::ControllerClient;
use crate::proto::{
    DrainRequest, InspectRequest, InspectResponse, JoinRequest, JoinResponse, LeaveRequest, RackJob, RelayInspection,
    RelayInstall, RelayRemove, RelaysRenew, StatusRequest, StatusResponse,
};
use crate::registry::{Absences, Assignment, AtpAssignment, Boundary, JobShape, RackAssignment, Resumed};
use crate::{Algorithm, ControlError, ErrorCode, PROTOCOL_VERSION, WireFormat};

/// Longest wait for an answer that the switch should give at once.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The same from switch to switch: jobs of others wait behind it.
const RELAY_TIMEOUT: Duration = Duration::from_secs(2);

/// A worker that explains what it waits for should not wait long for that.
const RELAY_INSPECT_TIMEOUT: Duration = Duration::from_secs(1);

/// What a rank wants from the switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinParameters {
    /// Names the job for people; 1 to 128 bytes.
    pub job_name: String,
    /// The same on all ranks of one run and different for every run, restarts included; 1 to 128 bytes.
    pub run_id: String,
    /// Less than `world_size`.
    pub rank: u16,
    /// Number of ranks.
    pub world_size: u16,
    /// Worker threads with a socket each.
    pub lane_count: u16,
    /// `None` lets the switch choose.
    pub slots_per_lane: Option<u32>,
    /// Largest number of elements that fits in one packet on this worker's path.
    pub element_count_max: u16,
    /// Layout of the datagrams.
    pub wire_format: WireFormat,
    /// How long to wait for the other ranks.
    pub wait: Duration,
    /// Host name and process id, for people.
    pub worker_label: String,
    /// Equal for ranks that can share memory, 1 to 128 bytes; `None` to contribute for itself.
    pub host_key: Option<String>,
    /// Whose slots the job uses, and how.
    pub algorithm: Algorithm,
    /// How the switch adds sums of floats.
    pub accumulator: Accumulator,
    /// UDP ports on which this worker would run an ATP job's parameter server; empty: it would not.
    pub server_ports: Vec<u16>,
    /// Name of the switch beside this worker; empty: the topology tells by its address.
    pub switch_name: String,
    /// What an ATP job does without workers.
    pub absences: Absences,
    /// Takes the place of the lost worker of this rank; `wait` is then for the other ranks to admit it.
    pub is_replacement: bool,
}

/// A place in a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The same on every rank.
    pub assignment: Assignment,
    /// This worker's rank.
    pub rank: u16,
    /// Tells this process from others that have the rank before or after it; zero at a switch of an older release.
    pub membership: u64,
    /// Lane `l` talks to `data_addresses[l mod length]`; never empty.
    pub data_addresses: Vec<SocketAddr>,
    /// Name of the switch at these addresses; empty without a topology.
    pub switch_name: String,
    /// Silence after which the switch takes this worker for lost.
    pub lease: Duration,
}

type Stub = ControllerClient<InterceptedService<Channel, BearerToken>>;

/// A connection to a switch's controller.
#[derive(Clone)]
pub struct Client {
    stub: Stub,
    controller: SocketAddr,
}

impl Client {
    /// Connects and checks that a controller of this version answers and takes the token.
    ///
    /// # Errors
    /// [`ErrorCode::Unreachable`], [`ErrorCode::NotAController`], [`ErrorCode::Tls`],
    /// [`ErrorCode::Unauthenticated`], [`ErrorCode::VersionMismatch`].
    pub async fn connect(config: &ClientConfig) -> Result<Self, ControlError> {
        connect::connect(config).await
    }

    /// The controller's address in use.
    pub fn controller(&self) -> SocketAddr {
        self.controller
    }

    /// Asks for a place and waits until all ranks have asked.
    ///
    /// # Errors
    /// After `wait`: [`ErrorCode::MissingRanks`] with the ranks. At once: whatever the switch refuses, see
    /// [`ErrorCode`]. [`ErrorCode::Unreachable`] when the connection breaks while waiting.
    pub async fn join(&self, parameters: &JoinParameters) -> Result<Admission, ControlError> {
        let request = timed(join_request(parameters), parameters.wait.saturating_add(CALL_TIMEOUT));
        let response =
            self.stub.clone().join(request).await.map_err(|status| lost_or(&status, "waiting for the other ranks"))?;
        admission(response.into_inner(), parameters, self.controller)
    }

    /// What a job waits for.
    ///
    /// # Errors
    /// [`ErrorCode::UnknownJob`], [`ErrorCode::Forbidden`], or the connection's.
    pub async fn inspect(&self, job_id: u32) -> Result<InspectResponse, ControlError> {
        let request = timed(InspectRequest { job_id }, CALL_TIMEOUT);
        plain(self.stub.clone().inspect(request).await)
    }

    /// Everything the switch knows.
    ///
    /// # Errors
    /// The connection's.
    pub async fn status(&self) -> Result<StatusResponse, ControlError> {
        plain(self.stub.clone().status(timed(StatusRequest {}, CALL_TIMEOUT)).await)
    }

    /// Leaves the job in good order. Leaving twice is no error.
    ///
    /// # Errors
    /// [`ErrorCode::UnknownJob`] when the job has ended, or the connection's.
    pub async fn leave(&self, admission: &Admission) -> Result<(), ControlError> {
        let request = LeaveRequest {
            job_id: admission.assignment.job_id,
            job_token: admission.assignment.job_token,
            rank: admission.rank.into(),
            membership: admission.membership,
        };
        plain(self.stub.clone().leave(timed(request, CALL_TIMEOUT)).await).map(drop)
    }

    /// Has a switch take part in a job of this one's.
    ///
    /// # Errors
    /// [`ErrorCode::InstallFailed`], [`ErrorCode::Forbidden`] without an operator's token, or the connection's.
    pub async fn install_relay(&self, install: RelayInstall) -> Result<(), ControlError> {
        plain(self.stub.clone().install_relay(timed(install, RELAY_TIMEOUT)).await).map(drop)
    }

    /// Has a switch take part no longer. Unknown jobs are no error.
    ///
    /// # Errors
    /// [`ErrorCode::Forbidden`], or the connection's.
    pub async fn remove_relay(&self, job_id: u32) -> Result<(), ControlError> {
        plain(self.stub.clone().remove_relay(timed(RelayRemove { job_id }, RELAY_TIMEOUT)).await).map(drop)
    }

    /// Tells a switch in which jobs of this one's it takes part. Returns those of them in which it does not.
    ///
    /// # Errors
    /// [`ErrorCode::Forbidden`] without an operator's token, or the connection's.
    pub async fn renew_relays(&self, job_ids: Vec<u32>) -> Result<Vec<u32>, ControlError> {
        let renewed = plain(self.stub.clone().renew_relays(timed(RelaysRenew { job_ids }, RELAY_TIMEOUT)).await)?;
        Ok(renewed.job_ids_unknown)
    }

    /// What a switch below this one waits for in a job.
    ///
    /// # Errors
    /// [`ErrorCode::UnknownJob`], [`ErrorCode::Forbidden`] without an operator's token, or the connection's.
    pub async fn inspect_relay(&self, job_id: u32) -> Result<RelayInspection, ControlError> {
        plain(self.stub.clone().inspect_relay(timed(InspectRequest { job_id }, RELAY_INSPECT_TIMEOUT)).await)
    }

    /// Stops the switch: no new jobs, running ones may finish within `deadline` (zero: the switch's own limit).
    /// Returns the number of jobs that still run.
    ///
    /// # Errors
    /// [`ErrorCode::Forbidden`] unless the token is an operator's, or the connection's.
    pub async fn drain(&self, deadline: Duration) -> Result<u32, ControlError> {
        let request = DrainRequest { deadline_ms: milliseconds(deadline) };
        let response = plain(self.stub.clone().drain(timed(request, CALL_TIMEOUT)).await)?;
        Ok(response.job_count_running)
    }
}

fn plain<T>(answer: Result<tonic::Response<T>, Status>) -> Result<T, ControlError> {
    answer.map(tonic::Response::into_inner).map_err(|status| ControlError::from_status(&status))
}

fn timed<T>(message: T, timeout: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(timeout);
    request
}

/// The transport's own words for a broken connection ("h2 protocol error") tell a user nothing.
fn lost_or(status: &Status, doing: &str) -> ControlError {
    let error = ControlError::from_status(status);
    let from_transport = status.details().is_empty();
    if from_transport && matches!(error.code, ErrorCode::Unreachable | ErrorCode::Internal) {
        return ControlError::new(
            ErrorCode::Unreachable,
            format!("the connection to the switch broke while {doing} ({})", error.message),
            "Check that the switch still runs, then start all ranks again",
        );
    }
    error
}

fn milliseconds(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap_or(u64::MAX)
}

fn join_request(parameters: &JoinParameters) -> JoinRequest {
    JoinRequest {
        protocol_version: PROTOCOL_VERSION,
        job_name: parameters.job_name.clone(),
        run_id: parameters.run_id.clone(),
        rank: parameters.rank.into(),
        world_size: parameters.world_size.into(),
        lane_count: parameters.lane_count.into(),
        slots_per_lane_wanted: parameters.slots_per_lane.unwrap_or(0),
        element_count_max: parameters.element_count_max.into(),
        wire_format: parameters.wire_format.into(),
        wait_ms: milliseconds(parameters.wait),
        worker_label: parameters.worker_label.clone(),
        host_key: parameters.host_key.clone().unwrap_or_default(),
        checksum_optional: true,
        algorithm: parameters.algorithm.into(),
        accumulator: parameters.accumulator.code().into(),
        server_ports: parameters.server_ports.iter().map(|port| (*port).into()).collect(),
        switch_name: parameters.switch_name.clone(),
        absences: (parameters.absences != Absences::default()).then(|| parameters.absences.to_proto()),
        replace: parameters.is_replacement,
    }
}

fn admission(
    response: JoinResponse,
    parameters: &JoinParameters,
    controller: SocketAddr,
) -> Result<Admission, ControlError> {
    let data_addresses = data_addresses(&response, controller)?;
    // A switch of an older release overlooks what it is asked for.
    if response.accumulator != u32::from(parameters.accumulator.code()) {
        return Err(not_understood("accumulator"));
    }
    let shape = JobShape {
        world_size: parameters.world_size,
        lane_count: parameters.lane_count,
        wire_format: parameters.wire_format,
        algorithm: parameters.algorithm,
        accumulator: parameters.accumulator,
        absences: parameters.absences,
    };
    let element_count_max = response.element_count_max.try_into();
    let assignment = Assignment {
        job_id: response.job_id,
        job_token: response.job_token,
        shape,
        slots_per_lane: response.slots_per_lane,
        element_count_max: element_count_max.map_err(|_| not_understood("element_count_max"))?,
        host_of_rank: host_of_rank(&response.host_of_rank, parameters.world_size)?,
        has_checksum: response.checksum.unwrap_or(true),
        atp: atp_assignment(&response, parameters)?,
        racks: response.racks.as_ref().map(rack_assignment).transpose()?,
        resumed: resumed(&response, parameters)?,
    };
    let numbered = assignment.racks.as_ref().map(|racks| racks.numbers.len());
    if numbered.is_some_and(|count| count != usize::from(assignment.contributor_count())) {
        return Err(not_understood("racks.numbers"));
    }
    if assignment.atp.as_ref().is_some_and(|atp| atp.tree.worker_count() != assignment.contributor_count()) {
        return Err(not_understood("atp.ways"));
    }
    if !assignment.slots_per_lane.is_power_of_two() {
        return Err(not_understood("slots_per_lane"));
    }
    let (lease, switch_name) = (Duration::from_millis(response.lease_ms), response.switch_name);
    let (rank, membership) = (parameters.rank, response.membership);
    Ok(Admission { assignment, rank, membership, data_addresses, switch_name, lease })
}

fn resumed(response: &JoinResponse, parameters: &JoinParameters) -> Result<Option<Resumed>, ControlError> {
    if !parameters.is_replacement {
        return Ok(None);
    }
    let boundary = response.boundary.as_ref().map(Boundary::from_proto);
    let boundary = boundary.filter(|boundary| boundary.chunks.len() == usize::from(parameters.lane_count));
    let boundary = boundary.ok_or_else(|| not_understood("answer to a replacement"))?;
    Ok(Some(Resumed { packet_token: response.packet_token, boundary }))
}

fn atp_assignment(response: &JoinResponse, parameters: &JoinParameters) -> Result<Option<AtpAssignment>, ControlError> {
    let Some(job) = &response.atp else {
        // A switch of an older release overlooks what it is asked for; where one host's memory holds the job, nothing is lost.
        let on_one_host = !response.host_of_rank.is_empty() && response.host_of_rank.iter().all(|host| *host == 0);
        return match parameters.algorithm {
            Algorithm::Atp if !on_one_host => Err(not_understood("answer to a job of the algorithm ATP")),
            _ => Ok(None),
        };
    };
    let assignment = AtpAssignment::from_proto(job).ok_or_else(|| not_understood("atp"))?;
    if assignment.servers.len() != usize::from(parameters.lane_count) {
        return Err(not_understood("atp.servers"));
    }
    Ok(Some(assignment))
}

fn rack_assignment(job: &RackJob) -> Result<RackAssignment, ControlError> {
    RackAssignment::from_proto(job).ok_or_else(|| not_understood("racks"))
}

fn host_of_rank(numbers: &[u32], world_size: u16) -> Result<Vec<u16>, ControlError> {
    let hosts: Option<Vec<u16>> = numbers.iter().map(|host| u16::try_from(*host).ok()).collect();
    let fits = |hosts: &Vec<u16>| hosts.is_empty() || hosts.len() == usize::from(world_size);
    let in_order = |hosts: &Vec<u16>| {
        let mut next = 0;
        hosts.iter().all(|host| {
            let known = *host <= next;
            next = next.max(host.saturating_add(1));
            known
        })
    };
    hosts.filter(fits).filter(in_order).ok_or_else(|| not_understood("host_of_rank"))
}

fn data_addresses(response: &JoinResponse, controller: SocketAddr) -> Result<Vec<SocketAddr>, ControlError> {
    let host = match response.data_address.as_str() {
        "" => controller.ip(),
        text => text.parse().map_err(|_| not_understood("data_address"))?,
    };
    let ports = response.data_ports.iter().map(|port| u16::try_from(*port));
    let ports: Vec<u16> = ports.collect::<Result<_, _>>().map_err(|_| not_understood("data_ports"))?;
    if ports.is_empty() {
        return Err(not_understood("data_ports"));
    }
    Ok(ports.into_iter().map(|port| SocketAddr::new(host, port)).collect())
}

fn not_understood(field: &str) -> ControlError {
    ControlError::new(
        ErrorCode::Internal,
        format!("the switch answered with an impossible {field}"),
        "Install the same release of fanin on workers and switch",
    )
}
