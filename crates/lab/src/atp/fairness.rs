//! Two training jobs that share a switch and a server (ATP App. D.2, Fig. 20).

use fanin_protocol::time::{Span, Time};
use serde::{Deserialize, Serialize};

use super::cluster::{Cluster, one_switch};
use crate::findings::{Findings, Row, Sheet};
use crate::world::{JobSpec, Topology, Workload};

/// One job of a pair.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Contender {
    /// For the table.
    pub model: String,
    /// Workers.
    pub workers: u16,
    /// Bytes of the model.
    pub model_bytes: f64,
    /// Time to compute a round, in microseconds.
    pub compute_us: u64,
}

/// Two jobs, and what the paper says of them.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Pair {
    /// The paper's throughputs together, 1 = alone; 0 where it gives none.
    pub paper: [f64; 2],
    /// The jobs.
    pub jobs: [Contender; 2],
}

/// `experiments/atp/fairness.toml`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// Seed of jitter.
    pub seed: u64,
    /// The network.
    pub cluster: Cluster,
    /// Slots of the switch.
    pub slots: u16,
    /// Rounds of the slower job, and how many of them are not counted.
    pub rounds: u32,
    /// See `rounds`.
    pub warm_up: usize,
    /// Rounds take up to this much longer, in parts per million.
    pub jitter_ppm: u32,
    /// The pairs.
    pub pairs: Vec<Pair>,
}

impl Setting {
    /// Fewer rounds and one pair, for tests.
    pub fn quicken(&mut self) {
        self.pairs.truncate(1);
        (self.rounds, self.warm_up) = (5, 1);
        for job in self.pairs.iter_mut().flat_map(|pair| &mut pair.jobs) {
            (job.model_bytes, job.compute_us) = (job.model_bytes / 3.0, job.compute_us / 3);
        }
    }

    /// Mean rounds in nanoseconds of the jobs that run, and packet arrivals.
    fn measure(&self, pair: &Pair, running: [bool; 2]) -> anyhow::Result<([f64; 2], u64)> {
        let hosts: usize = pair.jobs.iter().map(|job| usize::from(job.workers)).sum();
        let mut world = self.cluster.world(Topology::one_switch(hosts + 1), self.slots, self.seed);
        let mut first = 0;
        let mut numbers = Vec::new();
        for (place, job) in pair.jobs.iter().enumerate() {
            let own = (first..first + usize::from(job.workers)).collect();
            first += usize::from(job.workers);
            if running[place] {
                numbers.push((place, world.add_job(self.job(job, own, hosts, place)?)?));
            }
        }
        // Both have to be at work all the time that is counted, so it ends by the clock.
        let slowest = pair.jobs.iter().map(|job| job.compute_us + self.link_us(job)).max().unwrap_or(0);
        world.run_until(Time::from_ns(u64::from(self.rounds) * slowest * 1200))?;
        let mut rounds = [0.0; 2];
        for (place, number) in numbers {
            let round = world.progress(number)[0].round_ns(self.warm_up);
            rounds[place] =
                round.ok_or_else(|| anyhow::anyhow!("too few rounds: raise `rounds` above {}", self.rounds))?;
        }
        Ok((rounds, world.hops()))
    }

    fn link_us(&self, job: &Contender) -> u64 {
        (job.model_bytes * 8.0 / self.cluster.goodput_gbps_max(self.cluster.atp_packet) / 1000.0) as u64
    }

    fn job(&self, job: &Contender, hosts: Vec<usize>, server: usize, place: usize) -> anyhow::Result<JobSpec> {
        let workload = Workload::Training {
            model_chunks: self.cluster.chunks(job.model_bytes, self.cluster.atp_packet),
            compute: Span::from_us(job.compute_us),
            jitter_ppm: self.jitter_ppm,
            rounds: u32::MAX,
        };
        let starts = Time::from_ns(place as u64 * job.compute_us * 500);
        Ok(JobSpec { starts, ..self.cluster.atp_job(one_switch(job.workers)?, hosts, server, workload) })
    }

    /// App. D.2.
    ///
    /// # Errors
    /// A setting that makes no sense, or a run that fails.
    pub fn run(&self) -> anyhow::Result<Findings> {
        let mut hops = 0;
        let (mut rows, mut numbers) = (Vec::new(), Vec::new());
        for (index, pair) in self.pairs.iter().enumerate() {
            let ([first, _], a) = self.measure(pair, [true, false])?;
            let ([_, second], b) = self.measure(pair, [false, true])?;
            let (together, c) = self.measure(pair, [true, true])?;
            hops += a + b + c;
            let shares = [first / together[0], second / together[1]];
            numbers.push(vec![index as f64, shares[0], shares[1]]);
            rows.push(row(pair, shares));
        }
        let columns = ["pair", "first job, 1 = alone", "second job, 1 = alone"].map(String::from);
        Ok(Findings {
            experiment: "fairness".into(),
            title: "Two jobs on one switch (App. D.2, Fig. 20)".into(),
            place: super::SIMULATED.into(),
            rows,
            notes: vec!["Workers are on hosts of their own, both servers on one.".into()],
            sheets: vec![Sheet { name: "shares".into(), columns: columns.into(), rows: numbers }],
            plots: Vec::new(),
            hops,
        })
    }
}

fn row(pair: &Pair, shares: [f64; 2]) -> Row {
    let name = |job: &Contender| format!("{} with {} workers", job.model, job.workers);
    let paper = if pair.paper[0] > 0.0 {
        format!("{:.2} and {:.2}", pair.paper[0], pair.paper[1])
    } else {
        "the job with more workers a little slower (145.6 and 159.3 images/s)".into()
    };
    let is_equal_pair = pair.jobs[0] == pair.jobs[1];
    let is_fair =
        if is_equal_pair { (shares[0] - shares[1]).abs() < 0.1 } else { shares.iter().all(|share| *share > 0.6) };
    Row::new(
        format!("throughput beside each other, 1 = alone: {}; {}", name(&pair.jobs[0]), name(&pair.jobs[1])),
        paper,
        format!("{:.2} and {:.2}", shares[0], shares[1]),
        is_fair,
    )
    .because("Phases of two jobs seldom meet on these links; the paper's servers took 60 of 100 Gbit/s.")
}
