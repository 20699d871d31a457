//! Sums that leave 32 bits: what their correction costs, and why it is not prevented (ATP §3.8, §5.3, App. B.2, Table 1).

use std::sync::Arc;

use fanin_link::Random;
use fanin_protocol::atp::Scale;
use serde::{Deserialize, Serialize};

use super::cluster::{BLOCK_ELEMENTS, Cluster};
use super::gradients::Run;
use crate::findings::{Findings, Plot, Row, Sheet};
use crate::recording::Recording;

/// Fixed point counts units of one over this.
pub(super) const SCALE: f64 = fanin_wire::generated::ATP_SCALE as f64;

/// `experiments/atp/overflow.toml`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// Seed of the gradients.
    pub seed: u64,
    /// The network.
    pub cluster: Cluster,
    /// Workers of the job whose sums overflow.
    pub workers: u16,
    /// Slots of the switch.
    pub slots: u16,
    /// Chunks of the tensor, and how often it is summed.
    pub tensor_chunks: u32,
    /// See `tensor_chunks`.
    pub rounds: u32,
    /// Shares of chunks whose sum overflows, in parts per million.
    pub overflow_ppm: Vec<u32>,
    /// Numbers of workers of Table 1.
    pub table_workers: Vec<u32>,
    /// Packets that are tried for each of them.
    pub table_packets: u32,
    /// Magnitudes of Table 1's gradients are spread log-normally: the median, and the deviation of the natural logarithm.
    pub median: f64,
    /// See `median`.
    pub deviation: f64,
}

impl Setting {
    /// Smaller, for tests.
    pub fn quicken(&mut self) {
        self.overflow_ppm = vec![1000, 10_000];
        (self.tensor_chunks, self.table_packets) = (self.tensor_chunks / 2, self.table_packets / 10);
        self.table_workers.truncate(2);
    }

    /// §5.3 and Table 1, on made gradients and on recorded ones.
    ///
    /// # Errors
    /// A setting that makes no sense, or a run that fails.
    pub fn run(&self, recordings: &[Recording]) -> anyhow::Result<Findings> {
        let (correction, mut hops) = self.correction()?;
        let columns = ["workers", "threshold B", "false positives, per million packets"].map(String::from);
        let false_positives = Sheet {
            name: "false-positives".into(),
            columns: columns.into(),
            rows: self.table_workers.iter().map(|&workers| self.false_positives(workers)).collect(),
        };
        let plot = Plot {
            name: "correction".into(),
            title: "Throughput with sums that overflow (§3.8)".into(),
            x_label: "sums that overflow, %".into(),
            y_label: "1 = none".into(),
            is_x_log: true,
            lines: correction.lines().into_iter().take(1).collect(),
        };
        let mut rows = rows(&correction, &false_positives);
        for recording in recordings {
            let (more, arrivals) = self.recorded(recording)?;
            rows.extend(more);
            hops += arrivals;
        }
        Ok(Findings {
            experiment: "overflow".into(),
            title: "Sums that leave 32 bits (§3.8, §5.3, App. B.2, Table 1)".into(),
            place: super::SIMULATED.into(),
            rows,
            notes: [vec![
                "No gradients of the paper's models are at hand: but for rows of recorded gradients, overflowing values are placed, and \
                 Table 1's are drawn log-normally, so that its counts show a trend only."
                    .into(),
            ], recordings.iter().flat_map(Recording::labelled_notes).collect()]
            .concat(),
            sheets: vec![correction, false_positives],
            plots: vec![plot],
            hops,
        })
    }

    fn correction(&self) -> anyhow::Result<(Sheet, u64)> {
        let (best, _, mut hops) = self.measure(self.gradients(0))?;
        let mut rows = Vec::new();
        for &ppm in &self.overflow_ppm {
            let (gbps, float_blocks, more) = self.measure(self.gradients(ppm))?;
            hops += more;
            rows.push(vec![f64::from(ppm) / 1e4, gbps / best, float_blocks as f64]);
        }
        let columns = ["sums that overflow, %", "throughput, 1 = none", "chunks summed as floats"].map(String::from);
        Ok((Sheet { name: "correction".into(), columns: columns.into(), rows }, hops))
    }

    /// Gbit/s of sums at a worker, chunks that came as floats, packet arrivals. `gradients`: by worker, elements of its
    /// tensor, a whole number of blocks.
    pub(super) fn measure(&self, gradients: Arc<Vec<Vec<f32>>>) -> anyhow::Result<(f64, u64, u64)> {
        let Setting { cluster, slots, seed, rounds, .. } = self;
        let (slots, seed, rounds) = (*slots, *seed, *rounds);
        let run = Run { cluster, slots, seed, rounds, scale: Scale::Static, gradients };
        run.measure().map(|measured| (measured.gbps, measured.float_blocks, measured.hops))
    }

    /// Small gradients, and in some chunks one that is too large for a sum of all ranks.
    fn gradients(&self, overflow_ppm: u32) -> Arc<Vec<Vec<f32>>> {
        let mut random = Random::new(self.seed);
        let large: Vec<bool> = (0..self.tensor_chunks).map(|_| random.chance(overflow_ppm)).collect();
        let elements = self.tensor_chunks as usize * usize::from(BLOCK_ELEMENTS);
        let mut value = |element: usize| {
            let (chunk, place) = (element / usize::from(BLOCK_ELEMENTS), element % usize::from(BLOCK_ELEMENTS));
            let small = random.within(0, 20_000) as f32 / 1e6 - 0.01;
            if large[chunk] && place == 0 { 20.0 } else { small }
        };
        Arc::new((0..self.workers).map(|_| (0..elements).map(&mut value).collect()).collect())
    }

    /// Table 1: the number of workers, the threshold, and how many of a million packets hold a value beyond it although their
    /// sum would have fitted.
    fn false_positives(&self, workers: u32) -> Vec<f64> {
        let mut random = Random::new(self.seed ^ u64::from(workers) << 32);
        let (n, threshold) = (f64::from(workers), threshold(workers));
        let elements = self.cluster.atp_packet.payload_bytes / 4;
        let mut found = 0u32;
        for _ in 0..self.table_packets {
            let (mut is_flagged, mut overflows) = (false, false);
            for _ in 0..elements {
                let values = (0..workers).map(|_| self.gradient(&mut random));
                let (sum, largest) =
                    values.fold((0.0, 0.0f64), |(sum, largest), value| (sum + value, largest.max(value.abs())));
                is_flagged |= largest > threshold;
                overflows |= f64::abs(sum) * SCALE >= 2f64.powi(31);
            }
            found += u32::from(is_flagged && !overflows);
        }
        vec![n, threshold, f64::from(found) * 1e6 / f64::from(self.table_packets)]
    }

    fn gradient(&self, random: &mut Random) -> f64 {
        // Twelve uniform numbers are normal enough within six deviations.
        let normal = (0..12).map(|_| random.bits() as f64 / 2f64.powi(64)).sum::<f64>() - 6.0;
        let magnitude = self.median * f64::exp(self.deviation * normal);
        if random.flip() { magnitude } else { -magnitude }
    }
}

/// The largest value of which `workers` may be summed without leaving 32 bits, whatever the others are (App. B.2).
pub(super) fn threshold(workers: u32) -> f64 {
    let n = f64::from(workers);
    (2f64.powi(31) - n) / (n * SCALE)
}

fn rows(correction: &Sheet, false_positives: &Sheet) -> Vec<Row> {
    let rare = correction.rows.iter().filter(|row| row[0] <= 0.1).map(|row| row[1]).fold(1.0, f64::min);
    let last = correction.rows.last().cloned().unwrap_or_default();
    let counts: Vec<f64> = false_positives.rows.iter().map(|row| row[2]).collect();
    let show = |counts: &[f64]| counts.iter().map(|count| format!("{count:.0}")).collect::<Vec<_>>().join(", ");
    vec![
        Row::new(
            "throughput with at most 0.1 % of sums that overflow, 1 = none",
            "no deterioration (§3.8)",
            format!("{rare:.3}"),
            rare > 0.95,
        )
        .because("An overflow is found at the sum's end, and later chunks wait a window for its floats; the paper took this from its losses."),
        Row::new(
            format!("the same with {} %", last[0]),
            "(some are summed as floats)",
            format!("{:.3}, {:.0} chunks summed as floats, every sum right", last[1], last[2]),
            last[2] > 0.0,
        ),
        Row::new(
            "false positives of the proactive way as workers double (Table 1)",
            "37,002, 231,528, 1,156,126, 14,602,998 an epoch of ResNet50",
            format!("{} per million packets", show(&counts)),
            counts.windows(2).all(|pair| pair[0] < pair[1]),
        )
        .because("Drawn gradients: the trend is the paper's, the counts are not comparable."),
    ]
}
