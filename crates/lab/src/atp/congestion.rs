//! Congestion control on and off where half the slots are missing (ATP §5.5, Fig. 15).

use fanin_protocol::atp::CongestionControl;
use fanin_protocol::time::Time;
use serde::{Deserialize, Serialize};

use super::cluster::{Cluster, one_switch};
use super::sharing::mean;
use crate::findings::{Findings, Plot, Row, Sheet};
use crate::world::{Protocol, Topology, Workload};

/// `experiments/atp/fig15.toml`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// Seed of the runs.
    pub seed: u64,
    /// The network.
    pub cluster: Cluster,
    /// Share of a link's rate that the server takes (§5.5: 60 of 100 Gbit/s).
    pub server_share: f64,
    /// Workers.
    pub workers: u16,
    /// Slots of the switch.
    pub slots: u16,
    /// Chunks of a tensor.
    pub tensor_chunks: u32,
    /// Time between two samples, in microseconds.
    pub sample_us: u64,
    /// Samples, and how many of them are not counted in means.
    pub samples: u64,
    /// See `samples`.
    pub warm_up: usize,
}

struct Course {
    gbps: Vec<f64>,
    dropped: u64,
    hops: u64,
}

impl Setting {
    /// Fewer samples, for tests.
    pub fn quicken(&mut self) {
        self.samples = self.samples.div_ceil(3);
        self.warm_up = self.warm_up.div_ceil(3);
    }

    fn measure(&self, control: CongestionControl) -> anyhow::Result<Course> {
        let server = usize::from(self.workers);
        let mut world = self.cluster.world(Topology::one_switch(server + 1), self.slots, self.seed);
        world.set_host_links(server, |link| link.gbps *= self.server_share);
        let workload = Workload::Endless { tensor_chunks: self.tensor_chunks };
        let mut job = self.cluster.atp_job(one_switch(self.workers)?, (0..server).collect(), server, workload);
        if let Protocol::Atp { congestion_control, .. } = &mut job.protocol {
            *congestion_control = control;
        }
        world.add_job(job)?;
        let mut before = 0.0;
        let mut gbps = Vec::new();
        for sample in 1..=self.samples {
            world.run_until(Time::from_ns(sample * self.sample_us * 1000))?;
            let taken = world.taken_bytes_of(0, 0);
            gbps.push((taken - std::mem::replace(&mut before, taken)) * 8.0 / (self.sample_us as f64 * 1000.0));
        }
        Ok(Course { gbps, dropped: world.dropped(), hops: world.hops() })
    }

    /// Fig. 15.
    ///
    /// # Errors
    /// A setting that makes no sense, or a run that fails.
    pub fn run(&self) -> anyhow::Result<Findings> {
        anyhow::ensure!(
            (self.warm_up as u64) < self.samples,
            "warm_up = {} leaves none of {} samples: make it smaller",
            self.warm_up,
            self.samples
        );
        let with = self.measure(self.cluster.congestion_control())?;
        let without = self.measure(CongestionControl::Off)?;
        let [on, off] = [&with, &without].map(|course| &course.gbps[self.warm_up..]);
        let ratio = mean(off) / mean(on);
        let rows = vec![
            Row::new(
                "goodput without congestion control / with",
                "0.35 (23.2 / 66.8 images/s)",
                format!("{ratio:.2}"),
                ratio < 0.8,
            ),
            Row::new(
                "standard deviation / mean of goodput, with and without",
                "stable; between 0 and half of it",
                format!("{:.2} and {:.2}", variation(on), variation(off)),
                variation(on) < variation(off),
            ),
            Row::new(
                "packets dropped at full queues, with and without",
                "few; many",
                format!("{} and {}", with.dropped, without.dropped),
                with.dropped < without.dropped,
            ),
        ];
        let time = |sample: usize| (sample + 1) as f64 * self.sample_us as f64 / 1000.0;
        let columns = ["time, ms", "with congestion control, Gbit/s", "without, Gbit/s"].map(String::from);
        let sheet = Sheet {
            name: "goodput".into(),
            columns: columns.into(),
            rows: (0..with.gbps.len())
                .map(|sample| vec![time(sample), with.gbps[sample], without.gbps[sample]])
                .collect(),
        };
        let plot = Plot {
            name: "goodput".into(),
            title: "Goodput with half the slots (Fig. 15)".into(),
            x_label: "time, ms".into(),
            y_label: "Gbit/s of sums at a worker".into(),
            is_x_log: false,
            lines: sheet.lines(),
        };
        Ok(Findings {
            experiment: "fig15".into(),
            title: "Congestion control with half the slots (§5.5, Fig. 15)".into(),
            place: super::SIMULATED.into(),
            rows,
            notes: vec![
                "The job always has data to send; the paper's trains VGG16. Images a second stand for its goodput."
                    .into(),
            ],
            sheets: vec![sheet],
            plots: vec![plot],
            hops: with.hops + without.hops,
        })
    }
}

fn variation(values: &[f64]) -> f64 {
    let mean = mean(values);
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64;
    variance.sqrt() / mean
}
