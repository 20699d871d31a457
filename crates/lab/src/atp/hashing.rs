//! How chunks are spread over slots: hashed, linear, or a share for each job (ATP §5.4.2, Fig. 14).

use fanin_protocol::atp::Indexing;
use fanin_protocol::time::{Span, Time};
use serde::{Deserialize, Serialize};

use super::cluster::{Cluster, one_switch};
use crate::findings::{Findings, Plot, Row, Sheet};
use crate::world::{JobSpec, Protocol, Topology, Workload};

/// `experiments/atp/fig14.toml`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// Seed of the runs.
    pub seed: u64,
    /// The network. `window_max` is not used: a job's window is its part of the slots, rounded down to a power of two.
    pub cluster: Cluster,
    /// Numbers of jobs to run with.
    pub jobs: Vec<u32>,
    /// Workers of each, all on the same hosts.
    pub workers: u16,
    /// Slots of the switch.
    pub slots: u16,
    /// Each rank rests between two tensors, so long and up to twice as long, in microseconds: nothing keeps jobs in step.
    pub rest_us: u64,
    /// Chunks of a tensor.
    pub tensor_chunks: u32,
    /// Time before counting begins, and time of counting, in microseconds.
    pub warm_up_us: u64,
    /// See `warm_up_us`.
    pub measured_us: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Hashed,
    Linear,
    Static,
}

impl Setting {
    /// Fewer jobs and less time, for tests.
    pub fn quicken(&mut self) {
        self.jobs = vec![1, 8];
        (self.warm_up_us, self.measured_us) = (self.warm_up_us / 2, self.measured_us / 2);
    }

    fn job(&self, scheme: Scheme, jobs: u32) -> anyhow::Result<JobSpec> {
        let hosts: Vec<usize> = (0..usize::from(self.workers)).collect();
        let (tree, server) = (one_switch(self.workers)?, usize::from(self.workers));
        let workload = Workload::Training {
            model_chunks: self.tensor_chunks,
            compute: Span::from_us(self.rest_us),
            jitter_ppm: 1_000_000,
            rounds: u32::MAX,
        };
        let part = (u32::from(self.slots) / jobs).max(1);
        if scheme == Scheme::Static {
            return Ok(self.cluster.partitioned_job(tree, hosts, server, part, workload));
        }
        let mut job = self.cluster.atp_job(tree, hosts, server, workload);
        if let Protocol::Atp { window_max, indexing, .. } = &mut job.protocol {
            *window_max = 1 << part.ilog2();
            *indexing = if scheme == Scheme::Linear { Indexing::Linear } else { Indexing::Hash };
        }
        Ok(job)
    }

    /// Gbit/s of sums that a worker of all jobs takes together, and packet arrivals.
    fn measure(&self, scheme: Scheme, jobs: u32) -> anyhow::Result<(f64, u64)> {
        let topology = Topology::one_switch(usize::from(self.workers) + 1);
        let mut world = self.cluster.world(topology, self.slots, self.seed);
        for _ in 0..jobs {
            world.add_job(self.job(scheme, jobs)?)?;
        }
        let begin = Time::ZERO + Span::from_us(self.warm_up_us);
        world.run_until(begin)?;
        let taken = |world: &crate::world::World| (0..jobs as usize).map(|job| world.taken_bytes(job)).sum::<f64>();
        let before = taken(&world);
        world.run_until(begin + Span::from_us(self.measured_us))?;
        Ok(((taken(&world) - before) * 8.0 / (self.measured_us as f64 * 1000.0), world.hops()))
    }

    /// Fig. 14.
    ///
    /// # Errors
    /// A setting that makes no sense, or a run that fails.
    pub fn run(&self) -> anyhow::Result<Findings> {
        let mut hops = 0;
        let mut rows = Vec::new();
        for &jobs in &self.jobs {
            let mut row = vec![f64::from(jobs)];
            for scheme in [Scheme::Hashed, Scheme::Linear, Scheme::Static] {
                let (gbps, more) = self.measure(scheme, jobs)?;
                row.push(gbps);
                hops += more;
            }
            rows.push(row);
        }
        let columns = ["jobs", "hashed (ATP), Gbit/s", "linear, Gbit/s", "static, Gbit/s"].map(String::from);
        let sheet = Sheet { name: "goodput".into(), columns: columns.into(), rows };
        Ok(self.findings(sheet, hops))
    }

    fn findings(&self, sheet: Sheet, hops: u64) -> Findings {
        let several = || sheet.rows.iter().filter(|row| row[0] > 1.0);
        let worst = |against: usize| several().map(|row| row[1] / row[against]).fold(f64::MAX, f64::min);
        let rows = vec![
            Row::new(
                "hashed / static, worst of all numbers of jobs",
                "matches",
                format!("{:.2}", worst(3)),
                worst(3) > 0.9,
            )
            .because("A hashed window is a power of two, a static share need not be."),
            Row::new(
                "hashed / linear, least advantage with several jobs",
                "greatly outperforms",
                format!("{:.2}", worst(2)),
                worst(2) > 1.2,
            ),
        ];
        let plot = Plot {
            name: "goodput".into(),
            title: "Aggregation throughput of all jobs (Fig. 14)".into(),
            x_label: "jobs".into(),
            y_label: "Gbit/s of sums".into(),
            is_x_log: false,
            lines: sheet.lines(),
        };
        Findings {
            experiment: "fig14".into(),
            title: "Hashed, linear and static slots for 1 to 8 jobs (§5.4.2, Fig. 14)".into(),
            place: super::SIMULATED.into(),
            rows,
            notes: vec![format!(
                "A link carries {:.2} Gbit/s of sums at most. Jobs share {} hosts and a server.",
                self.cluster.goodput_gbps_max(self.cluster.atp_packet),
                self.workers
            )],
            sheets: vec![sheet],
            plots: vec![plot],
            hops,
        }
    }
}
