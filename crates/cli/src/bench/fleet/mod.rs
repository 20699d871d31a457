//! The processes of one benchmark: a switch, fanin's ranks and those of the
//! systems beside it.

mod gloo;
mod job;
mod mpi;
mod places;
mod stage;
mod torch;

use std::ffi::OsString;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};

use super::output::BaselineUse;
use super::process::{Process, ask_all, check_interrupted};
use crate::net::Link;
use places::{Place, own_command, start_ranks};

pub use places::python;

pub use job::{Algorithm, Format, Job, Joined, Kernels, REGISTERED_MEMORY, SHARED_MEMORY, Transport};
pub use stage::Stage;
pub use torch::TorchRanks;

const JOIN_LIMIT: Duration = Duration::from_secs(90);
/// Filling and checking tensors, beyond the collectives themselves.
const ROUND_MARGIN: Duration = Duration::from_secs(60);

/// What to start.
#[derive(Clone, Debug)]
pub struct Setting {
    pub ranks: u16,
    pub timeout_ms: u64,
    /// How long lanes and switch poll; `None`: their own choice.
    pub spin_us: Option<u64>,
    /// What vector instructions ranks may use; `None`: all that there are.
    pub kernels: Option<Kernels>,
    /// Further flags of `fanin switch`.
    pub switch_flags: Vec<&'static str>,
    /// Whether ATP jobs get a parameter server behind a link of its own, where there are links.
    pub has_server: bool,
    /// `None`: loopback.
    pub link: Option<Link>,
    /// `None`: fanin is compared with itself only.
    pub baselines: Option<Baselines>,
}

/// The systems to measure beside fanin; what is false was asked to be left out.
#[derive(Clone, Copy, Debug)]
pub struct Baselines {
    pub gloo: bool,
    pub open_mpi: bool,
}

/// One round of everybody's.
#[derive(Clone, Debug)]
pub struct Work<'a> {
    pub bytes: u64,
    pub dtype: &'a str,
    /// Chooses the values.
    pub round: u32,
    /// All-reduces, one after another, each after a barrier.
    pub repeat: u32,
}

/// A system that is measured beside fanin.
pub trait Baseline {
    /// For example "gloo".
    fn name(&self) -> &'static str;
    /// For example "PyTorch 2.9.0".
    fn version(&self) -> &str;
    /// Whether it sums elements of this type.
    fn sums(&self, dtype: &str) -> bool;
    /// One round: every rank's reply.
    fn round(&mut self, work: &Work<'_>, limit: Duration) -> anyhow::Result<Vec<Value>>;
}

/// Everything that runs. Dropping it ends the processes, then the network.
pub struct Fleet {
    workers: Vec<Process>,
    baselines: Vec<Box<dyn Baseline>>,
    /// The baselines that were asked for, in order.
    pub baselines_used: Vec<BaselineUse>,
    stage: Stage,
    jobs: u32,
    pub setting: Setting,
}

impl Fleet {
    /// Starts everything; the baselines' ranks have joined, fanin's have not.
    pub fn start(setting: &Setting) -> anyhow::Result<Fleet> {
        let stage = Stage::build(setting)?;
        let command = [own_command()?, vec!["bench-worker".into()]].concat();
        let workers = start_ranks("rank", &stage.places, &command, &[])?;
        let (baselines, baselines_used) = (Vec::new(), Vec::new());
        let mut fleet = Fleet { workers, baselines, baselines_used, stage, jobs: 0, setting: setting.clone() };
        fleet.start_baselines()?;
        Ok(fleet)
    }

    fn start_baselines(&mut self) -> anyhow::Result<()> {
        let setting = self.setting.clone();
        let Some(wanted) = setting.baselines else { return Ok(()) };
        let gloo = if wanted.gloo { gloo::start(&self.stage.places, &setting) } else { Err("--no-gloo".into()) };
        self.add("gloo", gloo)?;
        for transport in mpi::Transport::ALL {
            let ranks = if wanted.open_mpi { mpi::start(transport, &setting) } else { Err("--no-open-mpi".into()) };
            self.add(transport.name(), ranks)?;
        }
        Ok(())
    }

    fn add<B: Baseline + 'static>(&mut self, name: &str, started: Result<B, String>) -> anyhow::Result<()> {
        // It may have failed because of Ctrl-C.
        check_interrupted()?;
        let (version, reason) = match &started {
            Ok(baseline) => (Some(baseline.version().to_owned()), None),
            Err(why) => (None, Some(why.clone())),
        };
        let baseline = BaselineUse { name: name.into(), used: started.is_ok(), version, reason };
        if !baseline.used {
            eprintln!("{}", baseline.line());
        }
        self.baselines_used.push(baseline);
        self.baselines.extend(started.ok().map(|baseline| Box::new(baseline) as Box<dyn Baseline>));
        Ok(())
    }

    /// Makes fanin's ranks join one more job.
    pub fn join(&mut self, job: &Job) -> anyhow::Result<Joined> {
        let (setting, number) = (&self.setting, self.jobs);
        let run_id = format!("bench-{}-{number}", std::process::id());
        let request = |rank| {
            json!({
                "op": "connect", "job": number, "controller": self.stage.controller, "run_id": run_id, "rank": rank,
                "world_size": setting.ranks, "lanes": job.lanes, "slots": job.slots, "elements": job.elements,
                "algorithm": job.algorithm, "accumulator": job.accumulator, "element_format": job.element_format, "transport": job.transport, "unicast": job.unicast, "loss": job.loss, "loss_seed": job.loss_seed,
                "timeout_ms": setting.timeout_ms, "spin_us": setting.spin_us, "kernels": setting.kernels,
            })
            .to_string()
        };
        let requests: Vec<_> = (0..setting.ranks).map(request).collect();
        let replies = ask_all(&mut self.workers, &requests, JOIN_LIMIT)?;
        self.jobs += 1;
        Joined::new(number, job, &replies[0])
    }

    /// One round of fanin in one of its jobs: every rank's reply.
    pub fn round(&mut self, joined: &Joined, work: &Work<'_>) -> anyhow::Result<Vec<Value>> {
        let request = json!({
            "op": "round", "job": joined.number, "bytes": work.bytes, "dtype": work.dtype, "round": work.round,
            "repeat": work.repeat,
        });
        let limit = self.round_limit(work);
        ask_all(&mut self.workers, &vec![request.to_string(); usize::from(self.setting.ranks)], limit)
    }

    /// The baselines that take part and sum elements of this type, as
    /// numbers for [`Fleet::baseline_round`] and names.
    pub fn baselines_for(&self, dtype: &str) -> Vec<(usize, &'static str)> {
        let all = self.baselines.iter().enumerate();
        all.filter(|(_, baseline)| baseline.sums(dtype)).map(|(index, baseline)| (index, baseline.name())).collect()
    }

    /// One round of a baseline: every rank's reply.
    pub fn baseline_round(&mut self, index: usize, work: &Work<'_>) -> anyhow::Result<Vec<Value>> {
        let limit = self.round_limit(work);
        let baseline = &mut self.baselines[index];
        let name = baseline.name();
        baseline.round(work, limit).with_context(|| format!("{name} failed; --no-gloo and --no-open-mpi leave it out"))
    }

    /// The switch's process.
    pub fn switch_id(&self) -> u32 {
        self.stage.switch.id()
    }

    /// `host:port` of the switch's controller.
    pub fn controller(&self) -> &str {
        &self.stage.controller
    }

    /// Where the switch is.
    pub fn switch_address(&self) -> &str {
        &self.stage.switch_place.address
    }

    /// Starts this program with other arguments beside the switch.
    pub fn start_at_switch(&self, what: &str, arguments: &[&str]) -> anyhow::Result<Process> {
        start_at(&self.stage.switch_place, what, arguments)
    }

    /// Starts this program with other arguments beside a rank.
    pub fn start_at_rank(&self, rank: usize, what: &str, arguments: &[&str]) -> anyhow::Result<Process> {
        start_at(self.stage.places.get(rank).context("no such rank")?, what, arguments)
    }

    /// The collective timeout bounds each barrier and each all-reduce.
    fn round_limit(&self, work: &Work<'_>) -> Duration {
        let collectives = Duration::from_millis(self.setting.timeout_ms) * 2;
        collectives + ROUND_MARGIN + Duration::from_millis(100) * work.repeat
    }
}

fn start_at(place: &Place, what: &str, arguments: &[&str]) -> anyhow::Result<Process> {
    let mut command = own_command()?;
    command.extend(arguments.iter().map(OsString::from));
    Process::start(what.into(), place.namespace.as_deref(), &command, &[])
}
