//! The gRPC face: authenticate, check, pass on.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use fanin_control::proto::controller_server::Controller;
use fanin_control::proto::{
    DrainRequest, DrainResponse, InspectRequest, InspectResponse, JoinRequest, JoinResponse, LeaveRequest,
    LeaveResponse, RelayInspection, RelayInstall, RelayInstalled, RelayRemove, RelayRemoved, RelaysRenew,
    RelaysRenewed, Report, ServerReport, StatusRequest, StatusResponse,
};
use fanin_control::registry::{Assignment, AtpAssignment, JoinAsk, RackAssignment, Ticket};
use fanin_control::tenants::Tenant;
use fanin_control::{ControlError, ErrorCode};
use tonic::{Request, Response, Status, Streaming};

use super::servers::{self, OrderStream};
use super::stream::NoticeStream;
use super::{Core, join, stream};

/// Implements `fanin.control.v1.Controller`.
pub(crate) struct Service(pub(crate) Arc<Core>);

impl Service {
    fn tenant<T>(&self, request: &Request<T>) -> Result<Arc<Tenant>, ControlError> {
        let header = request.metadata().get("authorization");
        self.0.tenants.authenticate(header.and_then(|value| value.to_str().ok()))
    }

    fn check_may_see(&self, tenant: &Tenant, job_id: u32) -> Result<(), ControlError> {
        let owner = self.0.read(|state, _| state.registry.tenant_of(job_id).map(str::to_string));
        match owner {
            None => Err(unknown_job(job_id)),
            Some(owner) if tenant.operator || owner == tenant.name => Ok(()),
            Some(_) => Err(forbidden("look into another tenant's job")),
        }
    }

    fn check_operator(&self, tenant: &Tenant, what: &str) -> Result<(), ControlError> {
        if tenant.operator { Ok(()) } else { Err(forbidden(what)) }
    }

    /// Jobs are admitted at the root of a topology only.
    fn check_is_root(&self) -> Result<(), ControlError> {
        let Some(root) = self.0.root else { return Ok(()) };
        Err(ControlError::new(
            ErrorCode::NotTheRoot,
            "this switch passes on what the root of its topology admits",
            format!("Use the root's address: FANIN_SWITCH={root}"),
        ))
    }

    /// The name and the data ports of the switch beside a rank; no ports for this one's own.
    fn beside(&self, assignment: &Assignment, rank: u16) -> (String, Vec<SocketAddr>) {
        let contributor = assignment.host_of_rank.get(usize::from(rank)).copied().unwrap_or(rank);
        let place = assignment.beside().get(usize::from(contributor)).copied().unwrap_or(0);
        self.0.read(|state, _| {
            let switch = state.registry.limits().topology.switches().get(place);
            let ports = |data: &[SocketAddr]| if place == 0 { Vec::new() } else { data.to_vec() };
            switch.map(|switch| (switch.name.clone(), ports(&switch.data))).unwrap_or_default()
        })
    }

    fn response(&self, assignment: &Assignment, rank: u16, ticket: Ticket) -> JoinResponse {
        let (switch_name, beside) = self.beside(assignment, rank);
        let data_address = beside.first().map_or(self.0.data_address.clone(), |address| address.ip().to_string());
        let ports = if beside.is_empty() { self.0.dataplane.ports() } else { beside };
        JoinResponse {
            job_id: assignment.job_id,
            job_token: assignment.job_token,
            world_size: assignment.shape.world_size.into(),
            lane_count: assignment.shape.lane_count.into(),
            slots_per_lane: assignment.slots_per_lane,
            element_count_max: assignment.element_count_max.into(),
            data_ports: ports.iter().map(|address| address.port().into()).collect(),
            data_address,
            lease_ms: self.0.read(|state, _| state.registry.limits().lease_ms),
            host_of_rank: assignment.host_of_rank.iter().map(|host| (*host).into()).collect(),
            checksum: Some(assignment.has_checksum),
            atp: assignment.atp.as_ref().map(AtpAssignment::to_proto),
            racks: assignment.racks.as_ref().map(RackAssignment::to_proto),
            switch_name,
            boundary: assignment.resumed.as_ref().map(|resumed| resumed.boundary.to_proto(0)),
            packet_token: assignment.resumed.as_ref().map_or(0, |resumed| resumed.packet_token),
            accumulator: assignment.shape.accumulator.code().into(),
            membership: ticket.0,
        }
    }
}

#[tonic::async_trait]
impl Controller for Service {
    type AttachStream = NoticeStream;
    type ServeStream = OrderStream;

    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<JoinResponse>, Status> {
        let tenant = self.tenant(&request)?;
        self.check_is_root()?;
        let limits = self.0.read(|state, _| state.registry.limits().clone());
        let worker = address_of(&request);
        let ask = JoinAsk::check(request.into_inner(), &limits, worker)?;
        let rank = ask.rank;
        let (ticket, assignment) = join::join(&self.0, &tenant, ask).await?;
        Ok(Response::new(self.response(&assignment, rank, ticket)))
    }

    async fn serve(&self, request: Request<Streaming<ServerReport>>) -> Result<Response<OrderStream>, Status> {
        let tenant = self.tenant(&request)?;
        self.check_operator(&tenant, "offer a parameter server")?;
        self.check_is_root()?;
        let address = address_of(&request);
        servers::serve(&self.0, request.into_inner(), address).await.map(Response::new)
    }

    async fn install_relay(&self, request: Request<RelayInstall>) -> Result<Response<RelayInstalled>, Status> {
        let tenant = self.tenant(&request)?;
        self.check_operator(&tenant, "have this switch take part in another's jobs")?;
        let core = self.0.clone();
        blocking(move || core.install_relayed(&request.into_inner())).await??;
        Ok(Response::new(RelayInstalled {}))
    }

    async fn remove_relay(&self, request: Request<RelayRemove>) -> Result<Response<RelayRemoved>, Status> {
        let tenant = self.tenant(&request)?;
        self.check_operator(&tenant, "end this switch's part in a job")?;
        let core = self.0.clone();
        blocking(move || core.remove_relayed(request.into_inner().job_id)).await?;
        Ok(Response::new(RelayRemoved {}))
    }

    async fn renew_relays(&self, request: Request<RelaysRenew>) -> Result<Response<RelaysRenewed>, Status> {
        let tenant = self.tenant(&request)?;
        self.check_operator(&tenant, "say in which jobs this switch takes part")?;
        let core = self.0.clone();
        let job_ids_unknown = blocking(move || core.renew_relayed(&request.into_inner().job_ids)).await?;
        Ok(Response::new(RelaysRenewed { job_ids_unknown }))
    }

    async fn inspect_relay(&self, request: Request<InspectRequest>) -> Result<Response<RelayInspection>, Status> {
        let tenant = self.tenant(&request)?;
        self.check_operator(&tenant, "look into this switch's part in another's job")?;
        let core = self.0.clone();
        let found = blocking(move || core.inspect_relayed(request.into_inner().job_id)).await??;
        Ok(Response::new(found))
    }

    async fn attach(&self, request: Request<Streaming<Report>>) -> Result<Response<NoticeStream>, Status> {
        self.tenant(&request)?;
        stream::attach(&self.0, request.into_inner()).await.map(Response::new)
    }

    async fn inspect(&self, request: Request<InspectRequest>) -> Result<Response<InspectResponse>, Status> {
        let tenant = self.tenant(&request)?;
        let job_id = request.into_inner().job_id;
        self.check_may_see(&tenant, job_id)?;
        let core = self.0.clone();
        let inspection = blocking(move || core.inspect(job_id)).await?;
        Ok(Response::new(inspection.ok_or_else(|| unknown_job(job_id))?))
    }

    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        self.tenant(&request)?;
        let core = self.0.clone();
        Ok(Response::new(blocking(move || core.status()).await?))
    }

    async fn leave(&self, request: Request<LeaveRequest>) -> Result<Response<LeaveResponse>, Status> {
        self.tenant(&request)?;
        self.0.with(|state, _| state.registry.leave(request.get_ref()))?;
        Ok(Response::new(LeaveResponse {}))
    }

    async fn drain(&self, request: Request<DrainRequest>) -> Result<Response<DrainResponse>, Status> {
        let tenant = self.tenant(&request)?;
        self.check_operator(&tenant, "drain the switch")?;
        let limit = match request.into_inner().deadline_ms {
            0 => self.0.drain_limit,
            asked_ms => Duration::from_millis(asked_ms).min(self.0.drain_limit),
        };
        Ok(Response::new(DrainResponse { job_count_running: self.0.drain(limit) }))
    }
}

/// The address at which a caller is seen from here.
fn address_of<T>(request: &Request<T>) -> IpAddr {
    request.remote_addr().map_or(Ipv4Addr::UNSPECIFIED.into(), |address| address.ip().to_canonical())
}

/// The data plane may take a moment to answer, which must not hold up the runtime.
async fn blocking<T: Send + 'static>(read: impl FnOnce() -> T + Send + 'static) -> Result<T, Status> {
    tokio::task::spawn_blocking(read).await.map_err(|error| Status::internal(error.to_string()))
}

fn unknown_job(job_id: u32) -> ControlError {
    ControlError::new(
        ErrorCode::UnknownJob,
        format!("the switch has no job {job_id:#010x}"),
        "The job has ended or the switch was restarted: start all ranks again",
    )
}

fn forbidden(what: &str) -> ControlError {
    ControlError::new(ErrorCode::Forbidden, format!("this token may not {what}"), "Use an operator's token")
}
