//! One worker that loses packets: ATP against SwitchML (ATP §5.2.3, Fig. 10), and both without loss.

use fanin_protocol::atp::CongestionControl;
use fanin_protocol::time::{Span, Time};
use serde::{Deserialize, Serialize};

use super::cluster::{Cluster, one_switch};
use crate::findings::{Findings, Plot, Row, Sheet};
use crate::world::{JobSpec, PacketSize, Protocol, Topology, Workload};

/// `experiments/atp/fig10.toml`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// Seed of the losses.
    pub seed: u64,
    /// The network.
    pub cluster: Cluster,
    /// Workers; the first one loses packets, both ways.
    pub workers: u16,
    /// Chunks that an ATP worker has out, whatever is lost; one that is stuck does not keep others of the cluster's
    /// `window_max` from being sent.
    pub window: u32,
    /// Slots of the switch, all for this job.
    pub slots: u16,
    /// Shares of packets that are lost, in parts per million.
    pub loss_ppm: Vec<u32>,
    /// Chunks of the tensor, in ATP's packets.
    pub tensor_chunks: u32,
    /// Tensors summed one after another. Time counts from the first one's end, when chunks have found their slots.
    pub rounds: u32,
}

impl Setting {
    /// Fewer losses and chunks, for tests.
    pub fn quicken(&mut self) {
        self.loss_ppm = vec![1000, 10_000];
        self.tensor_chunks /= 2;
    }

    fn atp(&self) -> anyhow::Result<JobSpec> {
        let server = usize::from(self.workers);
        let workload = self.workload(self.cluster.atp_packet);
        let mut job = self.cluster.atp_job(one_switch(self.workers)?, (0..server).collect(), server, workload);
        if let Protocol::Atp { congestion_control, .. } = &mut job.protocol {
            // §5.2.3: windows are not to follow losses that have nothing to do with queues.
            *congestion_control = CongestionControl::Fixed { window: self.window };
        }
        Ok(job)
    }

    fn switchml(&self, size: PacketSize) -> JobSpec {
        let cluster = Cluster { static_packet: size, ..self.cluster.clone() };
        let hosts = (0..usize::from(self.workers)).collect();
        cluster.static_job(u32::from(self.slots), hosts, self.workload(size))
    }

    fn workload(&self, size: PacketSize) -> Workload {
        let bytes = f64::from(self.tensor_chunks) * self.cluster.atp_packet.payload_bytes as f64;
        let model_chunks = self.cluster.chunks(bytes, size);
        Workload::Training { model_chunks, compute: Span::ZERO, jitter_ppm: 0, rounds: self.rounds }
    }

    /// Gbit/s of sums at a worker, and packet arrivals.
    fn measure(&self, job: JobSpec, loss_ppm: u32) -> anyhow::Result<(f64, u64)> {
        let topology = Topology::one_switch(usize::from(self.workers) + 1);
        let mut world = self.cluster.world(topology, self.slots, self.seed);
        world.set_host_links(0, |link| link.loss_ppm = loss_ppm);
        world.add_job(job)?;
        world.run_to_the_end(Time::ZERO + Span::from_ms(600_000))?;
        let round = world.progress(0)[0].round_ns(0).ok_or_else(|| anyhow::anyhow!("`rounds` must be 2 or more"))?;
        Ok((world.taken_bytes(0) * 8.0 / f64::from(self.rounds) / round, world.hops()))
    }

    /// Fig. 10.
    ///
    /// # Errors
    /// A setting that makes no sense, or a run that fails.
    pub fn run(&self) -> anyhow::Result<Findings> {
        let (own, same) = (self.cluster.static_packet, self.cluster.atp_packet);
        let mut hops = 0;
        let mut measure = |job: JobSpec, loss_ppm| {
            let (gbps, more) = self.measure(job, loss_ppm)?;
            hops += more;
            anyhow::Ok(gbps)
        };
        let base = [measure(self.atp()?, 0)?, measure(self.switchml(own), 0)?, measure(self.switchml(same), 0)?];
        let mut rows = Vec::new();
        for &loss_ppm in &self.loss_ppm {
            let atp = measure(self.atp()?, loss_ppm)?;
            let switchml = measure(self.switchml(own), loss_ppm)?;
            rows.push(vec![f64::from(loss_ppm) / 1e4, atp / base[0], switchml / base[1]]);
        }
        let columns = ["loss, %", "ATP, 1 = no loss", "SwitchML, 1 = no loss"].map(String::from);
        let sheet = Sheet { name: "loss".into(), columns: columns.into(), rows };
        Ok(self.findings(sheet, base, hops))
    }

    fn findings(&self, sheet: Sheet, [atp, switchml, same]: [f64; 3], hops: u64) -> Findings {
        let worst = sheet.rows.last().cloned().unwrap_or_default();
        let small: Vec<_> = sheet.rows.iter().filter(|row| row[0] < 0.1).collect();
        let least = small.iter().map(|row| row[1]).fold(1.0, f64::min);
        let rows = vec![
            Row::new(
                "time of ATP / SwitchML, no loss, both with ATP's packets",
                "(goal: at most 1.05)",
                format!("{:.3}", same / atp),
                same / atp < 1.05,
            )
            .because("The goal is ours; the paper compares packets of 306 and 180 bytes."),
            Row::new(
                "speed of ATP / SwitchML, no loss, packets of 306 and 180 bytes",
                "up to 1.5 (§5.2.1)",
                format!("{:.2}", atp / switchml),
                atp > switchml,
            )
            .because("A link's rate bounds both here; the paper's hosts were bound by packets a second."),
            Row::new(
                "ATP with less than 0.1 % of loss, 1 = no loss",
                "no deterioration (§3.8)",
                format!("{least:.2}"),
                least > 0.9,
            ),
            Row::new(
                format!("ATP and SwitchML with {} % of loss, 1 = no loss", worst[0]),
                "ATP degrades less",
                format!("{:.2} and {:.2}", worst[1], worst[2]),
                worst[1] > worst[2],
            ),
        ];
        let plot = Plot {
            name: "loss".into(),
            title: "Throughput under loss at one worker (Fig. 10)".into(),
            x_label: "loss, %".into(),
            y_label: "1 = no loss".into(),
            is_x_log: true,
            lines: sheet.lines(),
        };
        let note = "fanin's SwitchML finds a loss when later packets have overtaken it by a round trip, not by its 1 ms timer alone.";
        Findings {
            experiment: "fig10".into(),
            title: "Loss at one worker, ATP against SwitchML (§5.2.3, Fig. 10)".into(),
            place: super::SIMULATED.into(),
            rows,
            notes: vec![note.into()],
            sheets: vec![sheet],
            plots: vec![plot],
            hops,
        }
    }
}
