//! One fanin rank of a benchmark, driven over stdin and stdout.
//!
//! Requests and replies are JSON, one a line: `connect` joins a job, `round`
//! runs a barrier and one all-reduce of it, several times over, and checks the
//! results. A rank may be in several jobs, so that their settings can take
//! turns. The end of stdin ends the process.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::time::Duration;

use anyhow::{Context, bail};
use fanin_host::{
    Accumulator, Buffer, CollectiveKind, DataType, ElementFormat, ReduceOp, Request, Session, SessionConfig, WireFormat,
};
use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;
use serde_json::{Value, json};

use super::fleet::{Algorithm, Format, Kernels, REGISTERED_MEMORY, Transport};
use super::pattern::Pattern;
use super::process::end_with_parent;
use super::threads;

/// A worker has no flags: all comes over stdin.
#[derive(clap::Args, Debug)]
pub struct WorkerArguments {}

/// How to join.
#[derive(Debug, Deserialize)]
struct Connect {
    job: u32,
    controller: String,
    run_id: String,
    rank: u16,
    world_size: u16,
    lanes: Option<u16>,
    slots: Option<u32>,
    elements: Option<u16>,
    element_format: Format,
    transport: Transport,
    unicast: bool,
    loss: f64,
    loss_seed: u64,
    timeout_ms: u64,
    spin_us: Option<u64>,
    /// In the whole process.
    #[serde(default)]
    kernels: Option<Kernels>,
    /// Datagrams in the p4app-switchML layout.
    #[serde(default)]
    p4app: bool,
    #[serde(default)]
    algorithm: Algorithm,
    /// By its label.
    #[serde(default)]
    accumulator: Option<String>,
}

/// One measurement.
#[derive(Debug, Deserialize)]
struct Round {
    job: u32,
    bytes: usize,
    dtype: String,
    round: u64,
    repeat: u32,
}

/// What this process is, in all its jobs.
#[derive(Default)]
struct Ranks {
    jobs: BTreeMap<u32, Rank>,
    /// The tensor, kept from round to round so that no round pays for fresh pages.
    words: Vec<u64>,
}

struct Rank {
    session: Session,
    /// The tensor, where it is to lie in registered memory: as long as the longest so far.
    registered: Option<Buffer>,
    format: ElementFormat,
    rank: u16,
    world_size: u16,
}

/// Serves requests until stdin ends.
pub fn run_worker(_: WorkerArguments) -> anyhow::Result<i32> {
    end_with_parent();
    let mut ranks = Ranks::default();
    let mut out = std::io::stdout();
    for line in std::io::stdin().lock().lines() {
        let reply = ranks.serve(&line?).unwrap_or_else(|error| json!({ "error": format!("{error:#}") }));
        writeln!(out, "{reply}")?;
        out.flush()?;
    }
    Ok(0)
}

impl Ranks {
    fn serve(&mut self, line: &str) -> anyhow::Result<Value> {
        let request: Value = serde_json::from_str(line)?;
        match request.get("op").and_then(Value::as_str) {
            Some("connect") => {
                let connect: Connect = serde_json::from_value(request)?;
                let job = connect.job;
                let joined = Rank::connect(connect)?;
                let mut reply = serde_json::to_value(joined.session.stats())?;
                reply["transport"] = joined.transport().into();
                self.jobs.insert(job, joined);
                Ok(reply)
            }
            Some("round") => {
                let round: Round = serde_json::from_value(request)?;
                let rank = self.jobs.get_mut(&round.job).context("round before connect")?;
                rank.round(&round, &mut self.words)
            }
            other => bail!("unknown request {other:?}"),
        }
    }
}

impl Rank {
    fn connect(connect: Connect) -> anyhow::Result<Rank> {
        if let Some(kernels) = connect.kernels {
            fanin_numeric::limit_kernel_level(kernels.into());
        }
        let format = connect.element_format.into();
        let session = Session::connect(SessionConfig {
            controller: connect.controller,
            job_name: "bench".into(),
            run_id: connect.run_id,
            rank: connect.rank,
            world_size: connect.world_size,
            lane_count: connect.lanes,
            slots_per_lane: connect.slots,
            element_count: connect.elements,
            element_format: format,
            transport: connect.transport.into(),
            wire_format: if connect.p4app { WireFormat::P4app } else { WireFormat::Fanin },
            algorithm: connect.algorithm.into(),
            accumulator: connect.accumulator.as_deref().and_then(Accumulator::from_label),
            multicast: !connect.unicast,
            join_timeout: Duration::from_secs(60),
            collective_timeout: Duration::from_millis(connect.timeout_ms),
            spin: connect.spin_us.map(Duration::from_micros),
            loss: (connect.loss > 0.0).then_some((connect.loss, connect.loss_seed)),
            ..SessionConfig::default()
        })?;
        let registered = match connect.transport {
            Transport::Registered => Some(session.allocate(8)?),
            _ => None,
        };
        Ok(Rank { session, registered, format, rank: connect.rank, world_size: connect.world_size })
    }

    fn transport(&self) -> &'static str {
        match &self.registered {
            Some(memory) if memory.is_registered() => REGISTERED_MEMORY,
            _ => self.session.transport(),
        }
    }

    fn round(&mut self, round: &Round, words: &mut Vec<u64>) -> anyhow::Result<Value> {
        let word_count = round.bytes.div_ceil(8);
        let Some(mut memory) = self.registered.take() else {
            words.resize(word_count, 0);
            return self.round_on(round, words);
        };
        if memory.len() < word_count * 8 {
            memory = self.session.allocate(word_count * 8)?;
        }
        let result = self.round_on(round, &mut memory.as_mut_words()[..word_count]);
        self.registered = Some(memory);
        result
    }

    fn round_on(&mut self, round: &Round, words: &mut [u64]) -> anyhow::Result<Value> {
        let data_type = data_type(&round.dtype)?;
        let element_count = round.bytes / data_type.bytes();
        let pattern = Pattern::new(data_type, self.format, self.rank, self.world_size, round.round);
        let (mut starts_ns, mut ends_ns, mut wrong, mut cpu_ns, mut sleeps) = (Vec::new(), Vec::new(), 0, 0, 0);
        for _ in 0..round.repeat {
            pattern.fill(words);
            self.run(CollectiveKind::Barrier, data_type, 0, words)?;
            let sleeps_before = threads::own_sleeps();
            let cpu_before_ns = time_ns(ClockId::ProcessCPUTime);
            starts_ns.push(now_ns());
            self.run(CollectiveKind::AllReduce, data_type, element_count, words)?;
            ends_ns.push(now_ns());
            cpu_ns += time_ns(ClockId::ProcessCPUTime) - cpu_before_ns;
            sleeps += threads::own_sleeps() - sleeps_before;
            wrong += pattern.count_wrong(words, element_count * data_type.bytes());
        }
        let stats = self.session.stats();
        Ok(json!({
            "starts_ns": starts_ns, "ends_ns": ends_ns, "cpu_ns": cpu_ns, "sleeps": sleeps, "wrong_elements": wrong,
            "stats": stats,
        }))
    }

    fn run(
        &mut self,
        kind: CollectiveKind,
        data_type: DataType,
        element_count: usize,
        words: &mut [u64],
    ) -> anyhow::Result<()> {
        let pointer = words.as_mut_ptr().cast::<u8>();
        let operator = ReduceOp::Sum;
        let label = String::new();
        let request = Request { kind, data_type, operator, input: pointer, output: pointer, element_count, label };
        // SAFETY: `words` holds the elements, and `&mut` keeps everyone from
        // them until the wait below has returned. A failed wait ends the
        // process through its coordinator; the session is closed first.
        // The session's collective timeout bounds this.
        if let Err(error) = unsafe { self.session.run(request) } {
            self.session.close();
            return Err(error.into());
        }
        Ok(())
    }
}

/// On the clock that all processes of a host share, so that one rank's start can be compared with another's end.
fn now_ns() -> u64 {
    time_ns(ClockId::Monotonic)
}

fn time_ns(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The data types that a switch can sum, by PyTorch's names.
pub fn data_type(name: &str) -> anyhow::Result<DataType> {
    let all = [DataType::Float32, DataType::Float16, DataType::Bfloat16, DataType::Int32, DataType::Int64];
    let found = all.into_iter().find(|data_type| data_type.name() == name);
    found.with_context(|| format!("{name:?} is not float32, float16, bfloat16, int32 or int64"))
}
