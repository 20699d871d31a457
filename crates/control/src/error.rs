//! One error for registry, server and client: what happened, and what to do next.

use prost::Message;
use tonic::{Code, Status};

use crate::proto::{Capacity, ErrorCode, ErrorDetail, RpcAny, RpcStatus};

const DETAIL_TYPE_URL: &str = "type.googleapis.com/fanin.control.v1.ErrorDetail";

/// A refusal or failure of the control plane.
#[derive(Clone, Debug, PartialEq)]
pub struct ControlError {
    /// For programs.
    pub code: ErrorCode,
    /// What happened, with the names and values involved.
    pub message: String,
    /// What to do next.
    pub hint: String,
    /// Ranks that were waited for in vain, ascending; empty where it does not apply.
    pub missing_ranks: Vec<u16>,
    /// What the switch has and who uses it; only with [`ErrorCode::SwitchFull`] and [`ErrorCode::QuotaExceeded`].
    pub capacity: Option<Box<Capacity>>,
}

impl std::error::Error for ControlError {}

impl std::fmt::Display for ControlError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}", self.message)?;
        if !self.hint.is_empty() {
            write!(formatter, ". {}", self.hint)?;
        }
        Ok(())
    }
}

impl ControlError {
    /// An error without ranks or capacity.
    pub fn new(code: ErrorCode, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: hint.into(), missing_ranks: Vec::new(), capacity: None }
    }

    /// The same error, naming the ranks that are missing.
    pub fn with_missing_ranks(mut self, ranks: Vec<u16>) -> Self {
        self.missing_ranks = ranks;
        self
    }

    /// The same error, with what is free and who uses the rest.
    pub fn with_capacity(mut self, capacity: Capacity) -> Self {
        self.capacity = Some(Box::new(capacity));
        self
    }

    /// The error inside a gRPC status. A status from elsewhere (a proxy, the transport) is given the nearest code.
    pub fn from_status(status: &Status) -> Self {
        Self::decode_details(status).unwrap_or_else(|| Self::from_bare_status(status))
    }

    fn decode_details(status: &Status) -> Option<Self> {
        let envelope = RpcStatus::decode(status.details()).ok()?;
        let any = envelope.details.iter().find(|any| any.type_url == DETAIL_TYPE_URL)?;
        ErrorDetail::decode(any.value.as_slice()).ok().map(Self::from)
    }

    fn from_bare_status(status: &Status) -> Self {
        let (code, hint) = bare_code_and_hint(status.code());
        Self::new(code, status.message(), hint)
    }
}

fn bare_code_and_hint(code: Code) -> (ErrorCode, &'static str) {
    match code {
        Code::DeadlineExceeded | Code::Cancelled => {
            (ErrorCode::TimedOut, "Look at the switch's log: it accepted the call but did not answer it")
        }
        Code::Unavailable => {
            (ErrorCode::Unreachable, "Check that the switch still runs and that the network to it works")
        }
        Code::Unimplemented => (
            ErrorCode::NotAController,
            "Check the address: something answers there, but not a fanin controller of this version",
        ),
        Code::Unauthenticated => (ErrorCode::Unauthenticated, "Check the token"),
        _ => (ErrorCode::Internal, "Look at the switch's log, and report this with it"),
    }
}

fn grpc_code(code: ErrorCode) -> Code {
    match code {
        ErrorCode::Unauthenticated => Code::Unauthenticated,
        ErrorCode::Forbidden | ErrorCode::WrongJobToken => Code::PermissionDenied,
        ErrorCode::InvalidRequest => Code::InvalidArgument,
        ErrorCode::DuplicateRank => Code::AlreadyExists,
        ErrorCode::MissingRanks | ErrorCode::TimedOut => Code::DeadlineExceeded,
        ErrorCode::SwitchFull | ErrorCode::QuotaExceeded => Code::ResourceExhausted,
        ErrorCode::Draining | ErrorCode::Unreachable => Code::Unavailable,
        ErrorCode::UnknownJob => Code::NotFound,
        ErrorCode::VersionMismatch
        | ErrorCode::RanksDisagree
        | ErrorCode::StaleRun
        | ErrorCode::JobBroken
        | ErrorCode::NoServer
        | ErrorCode::NotTheRoot => Code::FailedPrecondition,
        _ => Code::Internal,
    }
}

impl From<ErrorDetail> for ControlError {
    fn from(detail: ErrorDetail) -> Self {
        Self {
            code: detail.code(),
            message: detail.message,
            hint: detail.hint,
            missing_ranks: detail.missing_ranks.iter().filter_map(|rank| (*rank).try_into().ok()).collect(),
            capacity: detail.capacity.map(Box::new),
        }
    }
}

impl From<ControlError> for ErrorDetail {
    fn from(error: ControlError) -> Self {
        Self {
            code: error.code.into(),
            message: error.message,
            hint: error.hint,
            missing_ranks: error.missing_ranks.into_iter().map(u32::from).collect(),
            capacity: error.capacity.map(|capacity| *capacity),
        }
    }
}

impl From<ControlError> for Status {
    fn from(error: ControlError) -> Self {
        let code = grpc_code(error.code);
        let text = error.to_string();
        let detail = RpcAny { type_url: DETAIL_TYPE_URL.into(), value: ErrorDetail::from(error).encode_to_vec() };
        let envelope = RpcStatus { code: code.into(), message: text.clone(), details: vec![detail] };
        Status::with_details(code, text, envelope.encode_to_vec().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_survives_the_trip_over_grpc() {
        let error = ControlError::new(ErrorCode::SwitchFull, "full", "wait")
            .with_missing_ranks(vec![1, 255])
            .with_capacity(Capacity { slot_memory_bytes_free: 7, ..Capacity::default() });
        let status = Status::from(error.clone());
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert_eq!(ControlError::from_status(&status), error);
    }

    #[test]
    fn a_status_from_a_proxy_gets_the_nearest_code() {
        let error = ControlError::from_status(&Status::unavailable("tcp reset"));
        assert_eq!(error.code, ErrorCode::Unreachable);
        assert_eq!(error.message, "tcp reset");
    }
}
