//! The overflow experiment on recorded gradients: how often their sums leave 32 bits, what that costs, and Table 1.

use std::sync::Arc;

use super::cluster::BLOCK_ELEMENTS;
use super::overflow::{SCALE, Setting, threshold};
use crate::findings::Row;
use crate::recording::Recording;

/// Packets of recorded gradients by what becomes of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    packets: u64,
    /// Their sum leaves 32 bits.
    overflows: u64,
    /// They hold a value beyond the threshold, and their sum would have fitted.
    false_positives: u64,
}

impl Setting {
    /// Rows of one recording, and packet arrivals.
    pub(super) fn recorded(&self, recording: &Recording) -> anyhow::Result<(Vec<Row>, u64)> {
        let ranks = recording.rank_count();
        let counts = self.count(recording, ranks).unwrap_or_default();
        let (throughput, float_blocks, hops) = self.throughput(recording)?;
        let table: Vec<(u32, f64)> = self
            .table_workers
            .iter()
            .filter_map(|&workers| Some((workers, per_million(self.count(recording, workers as usize)?))))
            .collect();
        let show = |numbers: Vec<String>| numbers.join(", ");
        let workers = show(table.iter().map(|(workers, _)| workers.to_string()).collect());
        let found = show(table.iter().map(|(_, found)| format!("{found:.0}")).collect());
        let label = &recording.label;
        let rows = vec![
            Row::new(
                format!("{label}: sums of {ranks} ranks' gradients that leave 32 bits"),
                "hardly any (§5.3)",
                format!(
                    "{} of {} packets at {} steps; the largest gradient is {:.3}",
                    counts.overflows,
                    counts.packets,
                    recording.steps.len(),
                    recording.largest()
                ),
                counts.overflows * 1000 <= counts.packets,
            ),
            Row::new(
                format!("{label}: throughput with the step that has most of them, 1 = none"),
                "no deterioration (§3.8)",
                format!("{throughput:.3}, {float_blocks} chunks summed as floats, every sum right"),
                throughput > 0.95,
            ),
            Row::new(
                format!("{label}: false positives of the proactive way, {workers} workers (Table 1)"),
                "more as workers double",
                format!("{found} per million packets"),
                table.windows(2).all(|pair| pair[0].1 <= pair[1].1),
            )
            .because("Workers beyond the recorded ranks are the same ranks at the steps that follow."),
        ];
        Ok((rows, hops))
    }

    /// All packets of a job of so many workers; `None` if the recording has too few steps for it.
    fn count(&self, recording: &Recording, workers: usize) -> Option<Counts> {
        let steps_each = workers.div_ceil(recording.rank_count());
        let mut counts = Counts::default();
        for steps in recording.steps.chunks_exact(steps_each) {
            let gradients: Vec<&[f32]> = steps.iter().flat_map(|step| &step.ranks).map(Vec::as_slice).collect();
            self.count_step(&gradients[..workers], &mut counts);
        }
        (counts.packets > 0).then_some(counts)
    }

    fn count_step(&self, gradients: &[&[f32]], counts: &mut Counts) {
        let elements = self.elements_of_packet();
        let threshold = threshold(gradients.len() as u32);
        for first in (0..gradients[0].len()).step_by(elements) {
            let range = first..(first + elements).min(gradients[0].len());
            let overflows = range.clone().any(|place| !fits(gradients, place));
            let is_flagged = gradients.iter().any(|worker| exceeds(&worker[range.clone()], threshold));
            counts.packets += 1;
            counts.overflows += u64::from(overflows);
            counts.false_positives += u64::from(is_flagged && !overflows);
        }
    }

    /// Throughput with the step whose packets overflow most often against the same without any overflow, chunks summed as
    /// floats, and packet arrivals.
    fn throughput(&self, recording: &Recording) -> anyhow::Result<(f64, u64, u64)> {
        let tensors = recording.steps.iter().map(|step| self.representatives(&step.ranks));
        let overflows = |tensor: &Vec<Vec<f32>>| {
            let gradients: Vec<&[f32]> = tensor.iter().map(Vec::as_slice).collect();
            (0..tensor[0].len()).filter(|&place| !fits(&gradients, place)).count()
        };
        let worst = tensors.max_by_key(overflows).unwrap_or_default();
        let none = vec![vec![0.0; worst[0].len()]; worst.len()];
        let (best, _, first) = self.measure(Arc::new(none))?;
        let (gbps, float_blocks, second) = self.measure(Arc::new(worst))?;
        Ok((gbps / best, float_blocks, first + second))
    }

    /// Two elements stand for the 62 of a packet: those whose sums are the largest.
    fn representatives(&self, ranks: &[Vec<f32>]) -> Vec<Vec<f32>> {
        let elements = self.elements_of_packet();
        let sum = |place: usize| ranks.iter().map(|rank| f64::from(rank[place])).sum::<f64>().abs();
        let mut chosen = vec![Vec::new(); ranks.len()];
        for first in (0..ranks[0].len()).step_by(elements).take(self.tensor_chunks as usize) {
            let mut places: Vec<usize> = (first..(first + elements).min(ranks[0].len())).collect();
            places.sort_by(|&a, &b| sum(b).total_cmp(&sum(a)));
            for (rank, chosen) in ranks.iter().zip(&mut chosen) {
                let place = |index: usize| places.get(index).map_or(0.0, |&place| rank[place]);
                chosen.extend((0..usize::from(BLOCK_ELEMENTS)).map(place));
            }
        }
        chosen
    }

    fn elements_of_packet(&self) -> usize {
        self.cluster.atp_packet.payload_bytes as usize / 4
    }
}

/// Whether the fixed-point sum of one element stays in 32 bits all the way, in the order of the workers.
fn fits(gradients: &[&[f32]], place: usize) -> bool {
    let mut sum = 0.0;
    gradients.iter().all(|worker| {
        sum += (f64::from(worker[place]) * SCALE).round_ties_even();
        // Not so for what is not a number.
        sum.abs() < 2f64.powi(31)
    })
}

fn exceeds(values: &[f32], threshold: f64) -> bool {
    values.iter().any(|value| f64::from(value.abs()) > threshold)
}

fn per_million(counts: Counts) -> f64 {
    counts.false_positives as f64 * 1e6 / counts.packets as f64
}
