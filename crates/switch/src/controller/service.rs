//! The gRPC face: authenticate, check, pass on.

use std::sync::Arc;
use std::time::Duration;

use fanin_control::proto::controller_server::Controller;
use fanin_control::proto::{
    DrainRequest, DrainResponse, InspectRequest, InspectResponse, JoinRequest, JoinResponse, LeaveRequest,
    LeaveResponse, Report, StatusRequest, StatusResponse,
};
use fanin_control::registry::{Assignment, JoinAsk};
use fanin_control::tenants::Tenant;
use fanin_control::{ControlError, ErrorCode};
use tonic::{Request, Response, Status, Streaming};

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

    fn response(&self, assignment: &Assignment) -> JoinResponse {
        let ports = self.0.dataplane.ports();
        JoinResponse {
            job_id: assignment.job_id,
            job_token: assignment.job_token,
            world_size: assignment.shape.world_size.into(),
            lane_count: assignment.shape.lane_count.into(),
            slots_per_lane: assignment.slots_per_lane,
            element_count_max: assignment.element_count_max.into(),
            data_ports: ports.iter().map(|address| address.port().into()).collect(),
            data_address: self.0.data_address.clone(),
            lease_ms: self.0.read(|state, _| state.registry.limits().lease_ms),
            host_of_rank: assignment.host_of_rank.iter().map(|host| (*host).into()).collect(),
            checksum: Some(assignment.has_checksum),
        }
    }
}

#[tonic::async_trait]
impl Controller for Service {
    type AttachStream = NoticeStream;

    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<JoinResponse>, Status> {
        let tenant = self.tenant(&request)?;
        let limits = self.0.read(|state, _| state.registry.limits().clone());
        let ask = JoinAsk::check(request.into_inner(), &limits)?;
        let assignment = join::join(&self.0, &tenant, ask).await?;
        Ok(Response::new(self.response(&assignment)))
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
        let LeaveRequest { job_id, job_token, rank } = request.into_inner();
        self.0.with(|state, _| state.registry.leave(job_id, job_token, rank))?;
        Ok(Response::new(LeaveResponse {}))
    }

    async fn drain(&self, request: Request<DrainRequest>) -> Result<Response<DrainResponse>, Status> {
        if !self.tenant(&request)?.operator {
            return Err(forbidden("drain the switch").into());
        }
        let limit = match request.into_inner().deadline_ms {
            0 => self.0.drain_limit,
            asked_ms => Duration::from_millis(asked_ms).min(self.0.drain_limit),
        };
        Ok(Response::new(DrainResponse { job_count_running: self.0.drain(limit) }))
    }
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
