//! What a rank asks for, checked against what the switch and the packet format can do.

use std::net::{IpAddr, SocketAddr};

use fanin_wire::Accumulator;

use super::{Absences, Limits};
use crate::proto::JoinRequest;
use crate::{Algorithm, ControlError, ErrorCode, PROTOCOL_VERSION, WireFormat};

/// Longest job name, run id and worker label, in bytes.
const NAME_BYTES_MAX: usize = 128;
/// A p4app-switchML packet has one of these element counts (128 to 1024 bytes of data).
const P4APP_ELEMENT_COUNTS: [u32; 4] = [32, 64, 128, 256];
/// Chunks that all lanes of an ATP worker may have out: at 8 KiB each, 64 MiB at a parameter server.
const ATP_WINDOW_MAX: u32 = 4096;
/// The worker bitmap of the p4app-switchML program is one 32-bit word.
const P4APP_WORLD_SIZE_MAX: u32 = 32;

/// What all ranks of a job must say alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobShape {
    /// Number of ranks.
    pub world_size: u16,
    /// Worker threads with a socket each, per rank.
    pub lane_count: u16,
    /// Layout of the datagrams.
    pub wire_format: WireFormat,
    /// Whose slots the job uses, and how.
    pub algorithm: Algorithm,
    /// How the switch adds sums of floats.
    pub accumulator: Accumulator,
    /// What the job does without workers.
    pub absences: Absences,
}

/// A checked [`JoinRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinAsk {
    /// Chosen by the user.
    pub job_name: String,
    /// The same on all ranks of one run.
    pub run_id: String,
    /// Less than `shape.world_size`.
    pub rank: u16,
    /// What the ranks must agree on.
    pub shape: JobShape,
    /// A power of two, or `None` to let the switch choose.
    pub slots_per_lane_wanted: Option<u32>,
    /// At least 1 and at most the switch's limit.
    pub element_count_max: u16,
    /// Bounded by the switch's limit.
    pub wait_ms: u64,
    /// For people.
    pub worker_label: String,
    /// Equal for ranks that can share memory; `None` where this rank contributes for itself.
    pub host_key: Option<String>,
    /// This rank can do without checksums.
    pub checksum_optional: bool,
    /// Where this worker would run the parameter server of an ATP job; empty: it would not.
    pub server_addresses: Vec<SocketAddr>,
    /// Place of the switch beside this worker in the topology.
    pub beside: usize,
    /// In place of a lost worker.
    pub is_replacement: bool,
}

impl JoinAsk {
    /// Checks a request of a worker that was reached from `worker`, an address on the way to it.
    ///
    /// # Errors
    /// [`ErrorCode::VersionMismatch`] or [`ErrorCode::InvalidRequest`], naming the field, its value and its bounds.
    pub fn check(request: JoinRequest, limits: &Limits, worker: IpAddr) -> Result<Self, ControlError> {
        check_version(request.protocol_version)?;
        check_name("job_name", &request.job_name)?;
        check_name("run_id", &request.run_id)?;
        let shape = check_shape(&request, limits)?;
        check_layout_beside(&request)?;
        if request.rank >= request.world_size {
            return Err(invalid("rank", request.rank, 0, request.world_size - 1));
        }
        Ok(Self {
            rank: request.rank as u16,
            shape,
            slots_per_lane_wanted: check_slots(&request, limits)?,
            element_count_max: check_element_count(&request, limits)?,
            wait_ms: request.wait_ms.clamp(1, limits.wait_ms_max),
            worker_label: request.worker_label.chars().take(NAME_BYTES_MAX).collect(),
            server_addresses: check_server_ports(&request.server_ports, worker)?,
            beside: check_beside(&request.switch_name, limits, worker)?,
            host_key: check_host_key(request.host_key)?,
            checksum_optional: request.checksum_optional,
            is_replacement: request.replace,
            job_name: request.job_name,
            run_id: request.run_id,
        })
    }
}

fn check_version(version: u32) -> Result<(), ControlError> {
    if version == PROTOCOL_VERSION {
        return Ok(());
    }
    Err(ControlError::new(
        ErrorCode::VersionMismatch,
        format!("the worker speaks control protocol {version}, the switch speaks {PROTOCOL_VERSION}"),
        "Install the same release of fanin on workers and switch",
    ))
}

fn check_name(field: &str, value: &str) -> Result<(), ControlError> {
    if (1..=NAME_BYTES_MAX).contains(&value.len()) && !value.chars().any(char::is_control) {
        return Ok(());
    }
    Err(ControlError::new(
        ErrorCode::InvalidRequest,
        format!("{field} has {} bytes", value.len()),
        format!("Use 1 to {NAME_BYTES_MAX} bytes without control characters"),
    ))
}

fn check_host_key(key: String) -> Result<Option<String>, ControlError> {
    if key.is_empty() {
        return Ok(None);
    }
    check_name("host_key", &key).map(|()| Some(key))
}

fn check_server_ports(ports: &[u32], worker: IpAddr) -> Result<Vec<SocketAddr>, ControlError> {
    let address =
        |port: &u32| in_range("server_ports", *port, 1, u16::MAX.into()).map(|port| SocketAddr::new(worker, port));
    ports.iter().map(address).collect()
}

fn check_beside(name: &str, limits: &Limits, worker: IpAddr) -> Result<usize, ControlError> {
    let topology = &limits.topology;
    if name.is_empty() {
        // Whoever no network names stands beside the root, as everybody does without a topology.
        return Ok(topology.beside(worker).unwrap_or(0));
    }
    topology.find(name).ok_or_else(|| {
        let known: Vec<&str> = topology.switches().iter().map(|switch| switch.name.as_str()).collect();
        if known == [""] {
            let message = format!("no switch is named `{name}`: this one was started without a topology");
            return ControlError::new(ErrorCode::InvalidRequest, message, "Leave the name out");
        }
        ControlError::new(
            ErrorCode::InvalidRequest,
            format!("no switch is named `{name}`"),
            format!("The topology has: {}. Leave the name out to be placed by address", known.join(", ")),
        )
    })
}

fn check_layout_beside(request: &JoinRequest) -> Result<(), ControlError> {
    if request.switch_name.is_empty() || request.wire_format() != WireFormat::P4appSwitchml {
        return Ok(());
    }
    Err(ControlError::new(
        ErrorCode::InvalidRequest,
        format!("switch name `{}` with the layout p4app-switchML", request.switch_name),
        "That layout knows one switch, the root: leave the name out, or use the wire format `fanin`",
    ))
}

fn check_shape(request: &JoinRequest, limits: &Limits) -> Result<JobShape, ControlError> {
    let wire_format = request.wire_format();
    let algorithm = request.algorithm();
    if algorithm == Algorithm::Atp && wire_format != WireFormat::FaninV1 {
        return Err(ControlError::new(
            ErrorCode::InvalidRequest,
            format!("algorithm ATP with the layout {}", super::format_name(wire_format)),
            "ATP has a layout of its own: leave the wire format at `fanin`",
        ));
    }
    if algorithm == Algorithm::Atp && limits.atp_slot_count == 0 {
        return Err(ControlError::new(
            ErrorCode::InvalidRequest,
            "this switch has no slots for ATP jobs",
            "Start it with data.atp_slot_count above 0, or use the algorithm switchml",
        ));
    }
    let world_size_max = match wire_format {
        WireFormat::Unspecified => return Err(unknown_format(request.wire_format)),
        WireFormat::FaninV1 => u32::from(limits.world_size_max),
        WireFormat::P4appSwitchml => P4APP_WORLD_SIZE_MAX.min(limits.world_size_max.into()),
    };
    Ok(JobShape {
        world_size: in_range("world_size", request.world_size, 1, world_size_max)?,
        lane_count: in_range("lane_count", request.lane_count, 1, limits.lane_count_max.into())?,
        wire_format,
        algorithm,
        accumulator: check_accumulator(request)?,
        absences: check_absences(request, algorithm)?,
    })
}

fn check_accumulator(request: &JoinRequest) -> Result<Accumulator, ControlError> {
    let accumulator = Accumulator::from_code(request.accumulator).ok_or_else(|| {
        let message = format!("the switch does not know accumulator number {}", request.accumulator);
        ControlError::new(ErrorCode::InvalidRequest, message, "Install the same release of fanin on workers and switch")
    })?;
    match (request.algorithm(), request.wire_format()) {
        // The first of the codes: none was asked for.
        (Algorithm::Atp, _) if accumulator == Accumulator::BlockFixed => Ok(Accumulator::StaticFixed),
        (Algorithm::Switchml, WireFormat::P4appSwitchml) if accumulator != Accumulator::BlockFixed => {
            Err(ControlError::new(
                ErrorCode::InvalidRequest,
                format!("the layout p4app-switchML with the accumulator {}", accumulator.label()),
                "Leave the accumulator out, or use the wire format `fanin`",
            ))
        }
        _ => Ok(accumulator),
    }
}

fn check_absences(request: &JoinRequest, algorithm: Algorithm) -> Result<Absences, ControlError> {
    let Some(asked) = &request.absences else { return Ok(Absences::default()) };
    let absences = Absences::from_proto(asked);
    if asked.stragglers.is_some() && absences.stragglers.is_none() {
        return Err(ControlError::new(
            ErrorCode::InvalidRequest,
            "absences.stragglers has a share above 100 percent, or a time above an hour",
            "Use times like 5 ms, and shares of 0 to 100 percent",
        ));
    }
    if algorithm != Algorithm::Atp && absences != Absences::default() {
        return Err(ControlError::new(
            ErrorCode::InvalidRequest,
            "a job of the algorithm switchml cannot go on without workers that are lost or late",
            "Use the algorithm atp, or leave on_peer_loss at `fail` and stragglers at `wait`",
        ));
    }
    Ok(absences)
}

fn check_slots(request: &JoinRequest, limits: &Limits) -> Result<Option<u32>, ControlError> {
    let wanted = request.slots_per_lane_wanted;
    if wanted == 0 {
        return Ok(None);
    }
    let most = limits.slots_per_lane_bound(request.lane_count);
    if request.algorithm() == Algorithm::Atp {
        // An upper bound of the window, which may as well be lower: a parameter server keeps twice as many chunks.
        let most = most.min(1 << (ATP_WINDOW_MAX / request.lane_count.max(1)).max(1).ilog2());
        return Ok(Some(wanted.min(most).next_power_of_two()));
    }
    if wanted > most {
        return Err(invalid("slots_per_lane_wanted", wanted, 1, most));
    }
    Ok(Some(wanted.next_power_of_two()))
}

fn check_element_count(request: &JoinRequest, limits: &Limits) -> Result<u16, ControlError> {
    let count = request.element_count_max;
    if request.wire_format() != WireFormat::P4appSwitchml {
        let offered = in_range("element_count_max", count, 1, u16::MAX.into())?;
        return Ok(offered.min(limits.element_count_max));
    }
    if !P4APP_ELEMENT_COUNTS.contains(&count) || count > limits.element_count_max.into() {
        return Err(ControlError::new(
            ErrorCode::InvalidRequest,
            format!("element_count_max is {count}"),
            format!("The p4app-switchML format has 32, 64, 128 or 256, here at most {}", limits.element_count_max),
        ));
    }
    Ok(count as u16)
}

fn in_range(field: &str, value: u32, least: u32, most: u32) -> Result<u16, ControlError> {
    if (least..=most).contains(&value) {
        return Ok(value as u16);
    }
    Err(invalid(field, value, least, most))
}

fn invalid(field: &str, value: u32, least: u32, most: u32) -> ControlError {
    ControlError::new(
        ErrorCode::InvalidRequest,
        format!("{field} is {value}"),
        format!("This switch takes {least} to {most} here"),
    )
}

fn unknown_format(value: i32) -> ControlError {
    ControlError::new(
        ErrorCode::InvalidRequest,
        format!("the switch does not know wire format number {value}"),
        "Use `fanin v1` or `p4app-switchML`, and the same release on workers and switch",
    )
}
