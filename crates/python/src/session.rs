//! Membership of one worker in one job.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fanin_host::{
    Accumulator, Algorithm, CollectiveKind, DataType, ElementFormat, Leave, OnPeerLoss, ReduceOp, Request, Scale,
    SessionConfig, StragglerPolicy, Transport, WireFormat,
};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::buffer::Buffer;
use crate::errors::{exception, invalid};
use crate::numerics::causes;
use crate::ticket::{SIGNAL_CHECK_INTERVAL, Ticket, seconds_to_duration};
use crate::totals::{Account, Totals};

/// Larger collectives are left to the session's threads: a wake-up is nothing to them, and they were slower otherwise where
/// ranks outnumber cores.
const CARRY_BYTES_MAX: usize = 256 << 10;

/// A place in a job on a switch.
#[pyclass(frozen, module = "fanin._fanin")]
pub struct Session {
    /// Empty once closed. Who uses it holds a share for that time, so that nobody waits at the lock while packets are carried.
    inner: Mutex<Option<Arc<fanin_host::Session>>>,
    process_id: u32,
    totals: Arc<Totals>,
    /// Control address of the switch.
    #[pyo3(get)]
    controller: String,
    /// What carries the collectives: "udp", "shared memory", or both.
    #[pyo3(get)]
    transport: &'static str,
}

#[pymethods]
impl Session {
    /// Joins a job and waits for all its workers; Ctrl-C ends the wait.
    /// Raises `FaninError` that names the ranks that did not come.
    #[staticmethod]
    #[pyo3(signature = (
        *, controller, job_name, run_id, rank, world_size, join_timeout_s, collective_timeout_s, auth_token = None,
        tls_ca = None, lane_count = None, slots_per_lane = None, element_count = None, element_format = "int32",
        wire_format = "fanin", transport = "auto", host_key = None, loss = 0.0, loss_seed = 0, spin_us = None,
        multicast = true, algorithm = "switchml", own_server = None, switch_name = None,
        on_peer_loss = "fail", stragglers = "wait", replace = false, accumulator = None, tolerance = None,
        atp_scale = "static",
    ))]
    #[allow(clippy::too_many_arguments)]
    fn connect(
        py: Python<'_>,
        controller: String,
        job_name: String,
        run_id: String,
        rank: u16,
        world_size: u16,
        join_timeout_s: f64,
        collective_timeout_s: f64,
        auth_token: Option<String>,
        tls_ca: Option<PathBuf>,
        lane_count: Option<u16>,
        slots_per_lane: Option<u32>,
        element_count: Option<u16>,
        element_format: &str,
        wire_format: &str,
        transport: &str,
        host_key: Option<String>,
        loss: f64,
        loss_seed: u64,
        spin_us: Option<u64>,
        multicast: bool,
        algorithm: &str,
        own_server: Option<bool>,
        switch_name: Option<String>,
        on_peer_loss: &str,
        stragglers: &str,
        replace: bool,
        accumulator: Option<&str>,
        tolerance: Option<f64>,
        atp_scale: &str,
    ) -> PyResult<Session> {
        let config = SessionConfig {
            controller: controller.clone(),
            auth_token,
            tls_ca,
            job_name,
            run_id,
            rank,
            world_size,
            lane_count,
            slots_per_lane,
            element_count,
            element_format: parse_element_format(element_format)?,
            wire_format: parse_wire_format(wire_format)?,
            transport: parse_transport(transport)?,
            host_key,
            join_timeout: seconds_to_duration(join_timeout_s),
            collective_timeout: seconds_to_duration(collective_timeout_s),
            loss: (loss > 0.0).then_some((loss, loss_seed)),
            spin: spin_us.map(Duration::from_micros),
            multicast,
            algorithm: parse_algorithm(algorithm)?,
            own_server,
            switch_name,
            on_peer_loss: parse_on_peer_loss(on_peer_loss)?,
            stragglers: parse_stragglers(stragglers)?,
            is_replacement: replace,
            accumulator: accumulator.map(parse_accumulator).transpose()?,
            tolerance,
            atp_scale: parse_atp_scale(atp_scale)?,
            ..SessionConfig::default()
        };
        let inner = connect_interruptibly(py, config)?;
        let totals = Arc::new(Totals::default());
        let transport = inner.transport();
        let inner = Mutex::new(Some(Arc::new(inner)));
        Ok(Session { inner, process_id: std::process::id(), totals, controller, transport })
    }

    /// Starts a collective on raw memory; `element_count` counts the full
    /// (larger) buffer. `keep_alive` is held until the ticket is done. A caller
    /// that would only wait says for how long (`carry_s`) it carries the packets
    /// itself instead.
    #[pyo3(signature = (
        kind, data_type, operator, root, input_address, output_address, element_count, label, keep_alive = None,
        carry_s = 0.0,
    ))]
    #[allow(clippy::too_many_arguments)]
    fn submit(
        &self,
        kind: &str,
        data_type: &str,
        operator: &str,
        root: u16,
        input_address: usize,
        output_address: usize,
        element_count: usize,
        label: &str,
        keep_alive: Option<Py<PyAny>>,
        carry_s: f64,
        py: Python<'_>,
    ) -> PyResult<Ticket> {
        let kind = parse_kind(kind, root)?;
        let (data_type, operator, label) = (parse_data_type(data_type)?, parse_operator(operator)?, label.to_owned());
        let (input, output) = (input_address, output_address);
        // Made where it is needed, because pointers may not go where the GIL is released.
        let request = move || {
            let (input, output) = (input as *const u8, output as *mut u8);
            Request { kind, data_type, operator, input, output, element_count, label }
        };
        let mut signal = Ok(());
        let is_small = element_count * data_type.bytes() <= CARRY_BYTES_MAX;
        let submitted = if carry_s > 0.0 && is_small {
            let limit = seconds_to_duration(carry_s).min(SIGNAL_CHECK_INTERVAL);
            // SAFETY: as below.
            self.with(|session| unsafe { carry(py, session, request, limit, &mut signal) })?
        } else {
            // SAFETY: the caller vouches for the addresses and their sizes; what owns the memory is in `keep_alive`, which the
            // callback below holds until no lane touches it any more.
            self.with(|session| unsafe { session.submit(request()) })?
        };
        let ticket = submitted.map_err(|error| exception(py, &error))?;
        let account = Account::new(&self.totals, kind_name(kind));
        let end = account.clone();
        ticket.on_complete(Box::new(move |result| {
            end.record(result);
            // PyO3 defers the release to the next holder of the GIL, so this thread never waits for Python.
            drop(keep_alive);
        }));
        signal?;
        Ok(Ticket::new(ticket, account))
    }

    /// Waits for the other ranks to call this too, and `wait_s` longer for replacements; returns the ranks that were replaced.
    fn admit(&self, py: Python<'_>, wait_s: f64) -> PyResult<Vec<u16>> {
        let mut signal = Ok(());
        let wait = seconds_to_duration(wait_s);
        let admitted = py.detach(|| {
            let raised = Mutex::new(Ok(()));
            let is_interrupted = || {
                let checked = Python::attach(|py| py.check_signals());
                let is_raised = checked.is_err();
                *raised.lock().unwrap_or_else(PoisonError::into_inner) = checked;
                is_raised
            };
            let admitted = self.with(|session| session.admit(wait, &is_interrupted));
            signal = raised.into_inner().unwrap_or_else(PoisonError::into_inner);
            admitted
        })?;
        signal?;
        admitted.map_err(|error| exception(py, &error))
    }

    /// Zeroed memory, `bytes` of it, that the ranks of a host can sum where it lies.
    fn allocate(&self, py: Python<'_>, bytes: usize) -> PyResult<Buffer> {
        let memory = py.detach(|| self.with(|session| session.allocate(bytes)))?;
        memory.map(Buffer::new).map_err(|error| exception(py, &error))
    }

    /// Counts per kind of collective.
    fn totals<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let kinds = PyDict::new(py);
        for (kind, total) in self.totals.snapshot() {
            let row = PyDict::new(py);
            row.set_item("completed", total.completed)?;
            row.set_item("failed", total.failed)?;
            row.set_item("timeouts", total.timeouts)?;
            row.set_item("chunks", total.chunks)?;
            row.set_item("non_finite_blocks", total.non_finite_blocks)?;
            row.set_item("overflowed_elements", total.overflowed_elements)?;
            row.set_item("seconds_in_flight", total.in_flight.as_secs_f64())?;
            kinds.set_item(kind, row)?;
        }
        Ok(kinds)
    }

    /// What the switch's accumulator has met in the job, since it was set up last, in additions by cause: in all, and by tensor, the
    /// worst first. Both are empty where it counts none.
    fn accumulator_counts<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyDict>, Bound<'py, PyDict>)> {
        let counts = py.detach(|| self.with(|session| session.accumulator_counts()))?;
        let tensors = PyDict::new(py);
        let Some(counts) = counts.map_err(|error| exception(py, &error))? else {
            return Ok((PyDict::new(py), tensors));
        };
        for (name, telemetry) in &counts.tensors {
            tensors.set_item(name, causes(py, telemetry)?)?;
        }
        Ok((causes(py, &counts.total)?, tensors))
    }

    /// The worker runtime's counters, as JSON.
    fn stats(&self, py: Python<'_>) -> PyResult<String> {
        let stats = py.detach(|| self.with(|session| session.stats()))?;
        serde_json::to_string(&stats).map_err(|error| invalid(format!("counters cannot be shown: {error}")))
    }

    /// Fails every collective in flight on this rank; harmless once closed.
    fn abort(&self, py: Python<'_>, reason: &str) {
        // An error here means that nothing is in flight any more.
        let _ = py.detach(|| self.with(|session| session.abort(reason)));
    }

    /// Leaves the job; harmless twice, and in a forked child.
    fn close(&self, py: Python<'_>) {
        if self.check_process().is_ok() {
            // Closing waits for threads; taking the session out first lets submitters see the end at once.
            py.detach(|| {
                if let Some(session) = self.take() {
                    session.begin_close();
                    // Where another thread carries packets at this moment, its share is the last, and it waits in place of this one.
                    drop(session);
                }
            });
        }
    }
}

impl Session {
    fn with<T>(&self, use_it: impl FnOnce(&fanin_host::Session) -> T) -> PyResult<T> {
        // Before the lock: in a forked child another thread's hold on it would never end.
        self.check_process()?;
        let shared = self.inner.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(session) = shared else { return Err(invalid("the session is closed")) };
        let result = use_it(&session);
        leave_to_threads(session);
        Ok(result)
    }

    fn take(&self) -> Option<Arc<fanin_host::Session>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn check_process(&self) -> PyResult<()> {
        if std::process::id() == self.process_id {
            return Ok(());
        }
        Err(invalid(format!(
            "this session belongs to process {} and does not survive fork(); make the process group in the child, or start \
             children with the \"spawn\" or \"forkserver\" method",
            self.process_id
        )))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if std::process::id() != self.process_id {
            // A forked child has the session's memory but not its threads, so it must not wait for them.
            std::mem::forget(inner);
        } else if let Some(session) = inner {
            leave_to_threads(session);
        }
    }
}

/// Gives a share back. The last one ends the session, which waits for its threads: not here, where the GIL may be held.
fn leave_to_threads(session: Arc<fanin_host::Session>) {
    if let Some(last) = Arc::into_inner(session) {
        std::thread::spawn(move || drop(last));
    }
}

/// Starts a collective and does what there is to do for `limit`, without the GIL. `signal` gets what a signal's handler raised.
///
/// # Safety
/// As for [`fanin_host::Session::submit`].
unsafe fn carry(
    py: Python<'_>,
    session: &fanin_host::Session,
    request: impl FnOnce() -> Request + Send,
    limit: Duration,
    signal: &mut PyResult<()>,
) -> Result<fanin_host::Ticket, fanin_host::Error> {
    py.detach(|| {
        let raised = Mutex::new(Ok(()));
        let is_interrupted = || {
            let checked = Python::attach(|py| py.check_signals());
            let is_raised = checked.is_err();
            *raised.lock().unwrap_or_else(PoisonError::into_inner) = checked;
            is_raised
        };
        let leave = Leave { after: Instant::now() + limit, is_interrupted: &is_interrupted };
        // SAFETY: the caller's promise.
        let ticket = unsafe { session.run_or_leave(request(), leave) };
        *signal = raised.into_inner().unwrap_or_else(PoisonError::into_inner);
        ticket
    })
}

fn connect_interruptibly(py: Python<'_>, config: SessionConfig) -> PyResult<fanin_host::Session> {
    let (sender, receiver) = crossbeam_channel::bounded(1);
    // On Ctrl-C the thread is left to its timeout; nobody takes its session, so it leaves the job at once.
    std::thread::Builder::new()
        .name("fanin-join".into())
        .spawn(move || drop(sender.send(fanin_host::Session::connect(config))))
        .map_err(|error| invalid(format!("cannot start a thread: {error}")))?;
    loop {
        match py.detach(|| receiver.recv_timeout(SIGNAL_CHECK_INTERVAL)) {
            Ok(result) => return result.map_err(|error| exception(py, &error)),
            Err(crossbeam_channel::RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(crossbeam_channel::RecvTimeoutError::Disconnected) => {
                return Err(invalid("joining the job failed inside fanin; the message above tells where"));
            }
        }
    }
}

fn parse_kind(name: &str, root: u16) -> PyResult<CollectiveKind> {
    Ok(match name {
        "all_reduce" => CollectiveKind::AllReduce,
        "reduce" => CollectiveKind::Reduce { root },
        "reduce_scatter" => CollectiveKind::ReduceScatter,
        "all_gather" => CollectiveKind::AllGather,
        "broadcast" => CollectiveKind::Broadcast { root },
        "barrier" => CollectiveKind::Barrier,
        _ => return Err(invalid(format!("unknown collective {name:?}"))),
    })
}

fn kind_name(kind: CollectiveKind) -> &'static str {
    match kind {
        CollectiveKind::AllReduce => "all_reduce",
        CollectiveKind::Reduce { .. } => "reduce",
        CollectiveKind::ReduceScatter => "reduce_scatter",
        CollectiveKind::AllGather => "all_gather",
        CollectiveKind::Broadcast { .. } => "broadcast",
        CollectiveKind::Barrier => "barrier",
    }
}

fn parse_data_type(name: &str) -> PyResult<DataType> {
    Ok(match name {
        "float32" => DataType::Float32,
        "float16" => DataType::Float16,
        "bfloat16" => DataType::Bfloat16,
        "int32" => DataType::Int32,
        "int64" => DataType::Int64,
        "bytes" => DataType::Bytes,
        _ => return Err(invalid(format!("unknown data type {name:?}"))),
    })
}

fn parse_operator(name: &str) -> PyResult<ReduceOp> {
    Ok(match name {
        "sum" => ReduceOp::Sum,
        "average" => ReduceOp::Average,
        "max" => ReduceOp::Max,
        "min" => ReduceOp::Min,
        "band" => ReduceOp::BitAnd,
        "bor" => ReduceOp::BitOr,
        "bxor" => ReduceOp::BitXor,
        _ => return Err(invalid(format!("unknown operator {name:?}"))),
    })
}

fn parse_transport(name: &str) -> PyResult<Transport> {
    match name {
        "auto" => Ok(Transport::Auto),
        "udp" => Ok(Transport::Udp),
        _ => Err(invalid(format!("unknown transport {name:?}; one of auto, udp"))),
    }
}

fn parse_element_format(name: &str) -> PyResult<ElementFormat> {
    match name {
        "int32" => Ok(ElementFormat::Int32),
        "float16" => Ok(ElementFormat::Float16),
        "bfloat16" => Ok(ElementFormat::Bfloat16),
        "int8" => Ok(ElementFormat::Int8),
        _ => Err(invalid(format!("unknown element format {name:?}; one of int32, float16, bfloat16, int8"))),
    }
}

fn parse_on_peer_loss(name: &str) -> PyResult<OnPeerLoss> {
    match name {
        "fail" => Ok(OnPeerLoss::Fail),
        "continue" => Ok(OnPeerLoss::Continue),
        _ => Err(invalid(format!("unknown on_peer_loss {name:?}; one of fail, continue"))),
    }
}

fn parse_atp_scale(name: &str) -> PyResult<Scale> {
    match name {
        "static" => Ok(Scale::Static),
        "dynamic" => Ok(Scale::Dynamic),
        _ => Err(invalid(format!("unknown atp_scale {name:?}; one of static, dynamic"))),
    }
}

/// `wait`, or `partial:ms:percent` or `skip:ms:percent`, as `fanin.config` writes them.
fn parse_stragglers(text: &str) -> PyResult<Option<StragglerPolicy>> {
    if text == "wait" {
        return Ok(None);
    }
    let parts: Vec<&str> = text.split(':').collect();
    let policy = match parts[..] {
        [mode @ ("partial" | "skip"), milliseconds, percent] => {
            let times = milliseconds.parse::<f64>().ok().filter(|&time| time > 0.0 && time <= 3_600_000.0);
            let share = percent.parse::<u8>().ok().filter(|&share| share <= 100);
            times.zip(share).map(|(milliseconds, share_min_percent)| StragglerPolicy {
                after_us: (milliseconds * 1e3).ceil() as u64,
                share_min_percent,
                rest_of_collective: mode == "skip",
            })
        }
        _ => None,
    };
    let expected = "one of wait, partial:ms:percent, skip:ms:percent";
    policy.map(Some).ok_or_else(|| invalid(format!("unknown stragglers {text:?}; {expected}")))
}

fn parse_accumulator(label: &str) -> PyResult<Accumulator> {
    Accumulator::from_label(label).ok_or_else(|| {
        let known = Accumulator::ALL.map(Accumulator::label).join(", ");
        invalid(format!("unknown accumulator {label:?}; one of {known}"))
    })
}

fn parse_algorithm(name: &str) -> PyResult<Algorithm> {
    match name {
        "switchml" => Ok(Algorithm::SwitchMl),
        "atp" => Ok(Algorithm::Atp),
        _ => Err(invalid(format!("unknown algorithm {name:?}; one of switchml, atp"))),
    }
}

fn parse_wire_format(name: &str) -> PyResult<WireFormat> {
    match name {
        "fanin" => Ok(WireFormat::Fanin),
        "p4app" => Ok(WireFormat::P4app),
        _ => Err(invalid(format!("unknown wire format {name:?}; one of fanin, p4app"))),
    }
}
