//! The keys of a `[[job]]` section, and what each job draws from them.

use anyhow::{Context, bail, ensure};
use fanin_link::Random;
use fanin_protocol::time::Span;
use serde::{Deserialize, Serialize};

use super::CongestionName;
use super::jobs::JobInfo;
use crate::job::model::Model;
use crate::job::placement::{Placement, Placer, Rule};
use crate::workload::exponential_ps;

const BUCKET_COUNT_MAX: usize = 10_000;
/// Of an iteration, a thousand hours.
const COMPUTE_US_MAX: f64 = 3.6e12;

/// One job, or several of a kind.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobSection {
    /// What it is called in tables; the model's name and a number otherwise.
    pub name: Option<String>,
    /// Jobs like this.
    #[serde(default = "one")]
    pub count: u32,
    /// A model by name, or several of which each job draws one.
    pub model: Option<Models>,
    /// Gradients of an iteration, if no model says so.
    pub bytes: Option<u64>,
    /// Time to compute gradients, if no model says so.
    pub compute_ms: Option<f64>,
    /// Equal parts that gradients are summed in one after the other, as DDP does, each as soon as it is ready.
    #[serde(default = "one")]
    pub buckets: u32,
    /// Share of computing, at its end, over which buckets become ready, one after another in equal times.
    #[serde(default = "backward")]
    pub backward: f64,
    /// By bucket, the share of computing after which it is ready, in place of both; the last 1.
    pub ready: Option<Vec<f64>>,
    /// Multiplies gradients and computing time.
    #[serde(default = "unscaled")]
    pub scale: f64,
    /// How many times as fast as the model's its GPUs are: divides computing time (SwitchML's α, §6.2).
    #[serde(default = "unscaled")]
    pub faster: f64,
    /// Ranks, or the least and the most of them, between which each job draws its number.
    pub workers: Range<u32>,
    /// `packed`, `random`, or the hosts by rank.
    #[serde(default = "packed")]
    pub placement: Placement,
    /// How gradients are summed.
    pub scheme: Scheme,
    /// When it starts, milliseconds, or the earliest and the latest time, between which each job draws its own.
    #[serde(default = "at_once")]
    pub start_ms: Range<f64>,
    /// Jobs begin with exponential gaps from `start_ms` on, so many a second, whatever becomes of those before; `count` is then the most of them.
    pub arrivals_per_s: Option<f64>,
    /// Iterations; without, it goes on to the end.
    pub iterations: Option<u32>,
    /// Trees that blocks are spread over, as far as there are roots for them: ATP's only root is beside the server.
    #[serde(default = "one")]
    pub trees: u32,
    /// Who chooses the trees, where switches sum; without, PANAMA's controller for PANAMA, and lots for SwitchML.
    pub choose_trees: Option<TreeChoice>,
    /// Slots of each tree: the window. PANAMA: most packets out in a tree.
    #[serde(default = "slots")]
    pub slots: u32,
    /// PANAMA: so many packets out in each tree, in place of its congestion control.
    pub window: Option<u32>,
    /// PANAMA: windows grow in rounds with marks too, as DCTCP's do; without, as Fig. 5 has it.
    #[serde(default)]
    pub grow_when_marked: bool,
    /// PANAMA: a round is of what was out at its begin, as DCTCP's; without, as Fig. 5 has it, of as many Results as the window has by then.
    #[serde(default)]
    pub whole_rounds: bool,
    /// PANAMA: share of the workers that are waited for.
    #[serde(default = "unscaled")]
    pub share: f64,
    /// Elements of a packet that aggregates, bytes; without, what fits into the MTU.
    pub payload_bytes: Option<u16>,
    /// Host of an ATP job's server; without, the last host that has none.
    pub server: Option<u16>,
    /// A ring's congestion control, in place of that of `[transport]`.
    pub congestion: Option<CongestionName>,
    /// Least resend timeout of a scheme that aggregates.
    #[serde(default = "timeout_us")]
    pub timeout_min_us: f64,
}

/// How a job sums.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Scheme {
    /// On a network of its own, where every link carries the gradients once in each direction and nothing else.
    Ideal,
    /// Ring all-reduce over flows of `[transport]`.
    Ring,
    /// SwitchML.
    Switchml,
    /// ATP, with a server at a host of its own.
    Atp,
    /// PANAMA, on the trees of its controller.
    Panama,
}

/// Who chooses a job's trees.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum TreeChoice {
    /// PANAMA's controller: away from the trees that it has chosen before, of all schemes (PANAMA §4.1).
    Controller,
    /// Drawn by lot.
    Lot,
}

impl std::fmt::Display for Scheme {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Scheme::Ideal => "ideal",
            Scheme::Ring => "ring",
            Scheme::Switchml => "switchml",
            Scheme::Atp => "atp",
            Scheme::Panama => "panama",
        })
    }
}

/// Models by name.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "a model's name, or a list of names")]
pub enum Models {
    /// One.
    One(String),
    /// One of these, drawn by lot; a name may stand several times.
    Any(Vec<String>),
}

/// A number, or the ends of a range to draw from.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged, expecting = "a number, or the least and the most as [least, most]")]
pub enum Range<T> {
    /// The same for all.
    Exactly(T),
    /// Least and most.
    Between(T, T),
}

impl<T: Copy> Range<T> {
    /// The number, or the least one.
    pub fn least(self) -> T {
        match self {
            Range::Exactly(value) | Range::Between(value, _) => value,
        }
    }
}

fn one() -> u32 {
    1
}

/// As is usual of backward passes.
fn backward() -> f64 {
    2.0 / 3.0
}

fn slots() -> u32 {
    128
}

fn unscaled() -> f64 {
    1.0
}

fn timeout_us() -> f64 {
    1000.0
}

fn packed() -> Placement {
    Placement::Rule(Rule::Packed)
}

fn at_once() -> Range<f64> {
    Range::Exactly(0.0)
}

/// A job whose lots are drawn.
pub(super) struct Drawn {
    pub info: JobInfo,
    /// For paths and trees.
    pub random: Random,
}

/// A Poisson process.
pub(super) struct Arrivals {
    at_ps: u64,
    gap_mean_ps: f64,
    gaps: Random,
}

impl Iterator for Arrivals {
    type Item = u64;

    /// When the next job begins.
    fn next(&mut self) -> Option<u64> {
        self.at_ps = self.at_ps.saturating_add(exponential_ps(self.gap_mean_ps, &mut self.gaps));
        Some(self.at_ps)
    }
}

fn check_start(start_ms: f64) -> anyhow::Result<f64> {
    ensure!((0.0..=3.6e6).contains(&start_ms), "start_ms = {start_ms}: from 0 to an hour");
    Ok(start_ms)
}

impl JobSection {
    /// Draws in an order that does not depend on the scheme: another scheme has the same jobs on the same hosts.
    pub(super) fn draw(&self, number: usize, placer: &mut Placer, random: &mut Random) -> anyhow::Result<Drawn> {
        let (mut models, mut sizes, mut places, mut starts, paths) =
            (random.split(), random.split(), random.split(), random.split(), random.split());
        let model = self.model(&mut models)?;
        let workers = match self.workers {
            Range::Exactly(workers) => workers,
            Range::Between(least, most) => {
                ensure!(least <= most, "workers = [{least}, {most}]: the least first");
                sizes.within(least.into(), most.into()) as u32
            }
        };
        ensure!((2..=65_535).contains(&workers), "workers = {workers}: from 2 to 65,535");
        let start_ms = match self.start_ms {
            Range::Exactly(start) => check_start(start)?,
            Range::Between(first, last) => {
                ensure!(check_start(first)? <= check_start(last)?, "start_ms = [{first}, {last}]: the earliest first");
                first + (last - first) * ((starts.bits() >> 11) as f64 / (1u64 << 53) as f64)
            }
        };
        ensure!(
            self.congestion.is_none() || self.scheme == Scheme::Ring,
            "congestion: of a job with scheme = \"ring\" only; others have their own"
        );
        ensure!(
            self.choose_trees.is_none() || matches!(self.scheme, Scheme::Switchml | Scheme::Panama),
            "choose_trees: of a job with scheme = \"switchml\" or \"panama\" only; no other spreads packets over trees of its own"
        );
        ensure!(self.iterations != Some(0), "iterations = 0: leave it out for no end");
        ensure!((1..=256).contains(&self.trees), "trees = {}: from 1 to 256", self.trees);
        ensure!((1.0..=1e8).contains(&self.timeout_min_us), "timeout_min_us = {}: from 1 to 1e8", self.timeout_min_us);
        let is_plain = |name: &String| !name.contains([',', '"', '\n']);
        ensure!(self.name.as_ref().is_none_or(is_plain), "name: without commas, quotes and line ends");
        let hosts = placer.place(&self.placement, workers, &mut places)?;
        let name = match &self.name {
            Some(name) if self.count == 1 => name.clone(),
            Some(name) => format!("{name}-{number}"),
            None => format!("{}-{number}", model.name),
        };
        let compute_ps = (model.compute_us * 1e6) as u64;
        let info = JobInfo {
            name,
            scheme: self.scheme,
            hosts,
            bytes: model.bytes,
            compute_ps,
            ready_ps: self.ready(model.bytes)?.iter().map(|share| (share * compute_ps as f64) as u64).collect(),
            start_ps: (start_ms * 1e9) as u64,
            trees: 0,
        };
        Ok(Drawn { info, random: paths })
    }

    /// Shares of computing after which buckets are ready.
    fn ready(&self, bytes: u64) -> anyhow::Result<Vec<f64>> {
        let shares = match &self.ready {
            Some(shares) => shares.clone(),
            None => {
                ensure!((0.0..=1.0).contains(&self.backward), "backward = {}: a share from 0 to 1", self.backward);
                let left = |bucket: u32| f64::from(self.buckets - bucket) / f64::from(self.buckets);
                (1..=self.buckets).map(|bucket| 1.0 - self.backward * left(bucket)).collect()
            }
        };
        ensure!(self.ready.is_none() || self.buckets == 1, "buckets and ready: give one of them");
        let count = shares.len();
        ensure!(
            (1..=BUCKET_COUNT_MAX).contains(&count) && count as u64 <= bytes,
            "{count} buckets of {bytes} bytes: from 1 to {BUCKET_COUNT_MAX}, with a byte each at least"
        );
        ensure!(
            shares.is_sorted() && shares[0] >= 0.0 && shares[count - 1] == 1.0,
            "ready: shares of computing from 0 on, none before the one before it, and the last 1"
        );
        Ok(shares)
    }

    /// When its jobs arrive, if they do so one after another.
    pub(super) fn arrivals(&self, random: &mut Random) -> anyhow::Result<Option<Arrivals>> {
        let Some(rate) = self.arrivals_per_s else { return Ok(None) };
        ensure!((1e-3..=1e6).contains(&rate), "arrivals_per_s = {rate}: from 0.001 to 1e6");
        let Range::Exactly(start_ms) = self.start_ms else {
            bail!("arrivals_per_s and a range of start_ms: give one of them");
        };
        check_start(start_ms)?;
        Ok(Some(Arrivals { at_ps: (start_ms * 1e9) as u64, gap_mean_ps: 1e12 / rate, gaps: random.split() }))
    }

    pub(super) fn tree_choice(&self) -> TreeChoice {
        let usual = if self.scheme == Scheme::Panama { TreeChoice::Controller } else { TreeChoice::Lot };
        self.choose_trees.unwrap_or(usual)
    }

    pub(super) fn timeout_min(&self) -> Span {
        Span::from_ns((self.timeout_min_us * 1000.0) as u64)
    }

    fn model(&self, random: &mut Random) -> anyhow::Result<Model> {
        let named = match &self.model {
            None => None,
            Some(Models::One(name)) => Some(Model::named(name)?),
            Some(Models::Any(names)) => {
                ensure!(!names.is_empty(), "model = []: name at least one");
                Some(Model::named(random.choose::<String>(names))?)
            }
        };
        let bytes = self.bytes.or(named.map(|model| model.bytes));
        let compute_us = self.compute_ms.map(|ms| ms * 1000.0).or(named.map(|model| model.compute_us));
        let bytes = bytes.context("what does it sum? Give a model, or bytes and compute_ms")?;
        let compute_us = compute_us.context("how long does it compute? Give a model or compute_ms")?;
        ensure!(bytes > 0, "bytes = 0: a job sums at least a byte");
        ensure!((0.0..=3.6e9).contains(&compute_us), "compute_ms = {}: from 0 to an hour", compute_us / 1000.0);
        ensure!((1e-3..=1e6).contains(&self.faster), "faster = {}: from 0.001 to a million", self.faster);
        let name = named.map_or("job", |model| model.name);
        let model = Model { name, bytes, compute_us: compute_us / self.faster }.scaled(self.scale)?;
        ensure!(model.compute_us <= COMPUTE_US_MAX, "compute_ms, scale and faster make more than a thousand hours");
        Ok(model)
    }
}
