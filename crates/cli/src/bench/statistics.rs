//! Medians, percentiles and ratios of the same rounds.

use anyhow::Context;
use serde::Serialize;
use serde_json::Value;

/// More samples than this are summed up only: a file of results stays readable.
const SAMPLES_KEPT_MAX: usize = 256;

/// What the samples of one contender say.
#[derive(Clone, Debug, Serialize)]
pub struct Times {
    /// Fastest sample.
    pub min_ns: u64,
    /// Median of the samples.
    pub p50_ns: u64,
    /// 99th percentile, nearest rank.
    pub p99_ns: u64,
    /// Slowest sample.
    pub max_ns: u64,
    /// Samples.
    pub count: usize,
    /// Median of each round, in order: what ratios compare.
    pub rounds_ns: Vec<u64>,
    /// All of them, unless they are many.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub all_ns: Vec<u64>,
}

impl Times {
    /// From the samples of each round.
    pub fn of_rounds(rounds: &[Vec<u64>]) -> Times {
        let all: Vec<u64> = rounds.iter().flatten().copied().collect();
        let [min_ns, p50_ns, p99_ns, max_ns] = [0, 50, 99, 100].map(|percent| percentile(&all, percent));
        let rounds_ns = rounds.iter().map(|round| percentile(round, 50)).collect();
        let count = all.len();
        let all_ns = if count > SAMPLES_KEPT_MAX { Vec::new() } else { all };
        Times { min_ns, p50_ns, p99_ns, max_ns, count, rounds_ns, all_ns }
    }
}

/// The time of each all-reduce of a round: from the last rank's entering it
/// to the last rank's leaving it, all on one clock. What a rank waits for
/// late ones, which the barrier before lets go at different times, is not the
/// collective's.
pub fn last_in_to_last_out(replies: &[Value]) -> anyhow::Result<Vec<u64>> {
    let latest = |key: &str| {
        let mut latest: Vec<u64> = Vec::new();
        for reply in replies {
            let times = reply.get(key).and_then(Value::as_array).with_context(|| format!("no {key} from a rank"))?;
            latest.resize(times.len(), 0);
            for (latest, time) in latest.iter_mut().zip(times) {
                *latest = (*latest).max(time.as_u64().with_context(|| format!("{key} are no numbers"))?);
            }
        }
        Ok::<_, anyhow::Error>(latest)
    };
    let (entered, left) = (latest("starts_ns")?, latest("ends_ns")?);
    Ok(left.iter().zip(&entered).map(|(left, entered)| left.saturating_sub(*entered)).collect())
}

/// Nearest-rank percentile; 0 is the minimum.
pub fn percentile(values: &[u64], percent: usize) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(0)
}

/// Median; of an even number, the mean of the middle two. 0 of none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

/// Median, over the rounds, of `times` divided by `reference` in the same
/// round: what remains when the machine's speed drifts from round to round.
pub fn median_ratio(times: &[u64], reference: &[u64]) -> f64 {
    let ratio = |(time, reference): (&u64, &u64)| *time as f64 / (*reference).max(1) as f64;
    median(&times.iter().zip(reference).map(ratio).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_sample_is_from_the_last_in_to_the_last_out() {
        let early = json!({ "starts_ns": [100, 1_000], "ends_ns": [190, 1_090] });
        let late = json!({ "starts_ns": [150, 1_010], "ends_ns": [180, 1_100] });
        assert_eq!(last_in_to_last_out(&[early.clone(), late]).unwrap(), [40, 90]);
        assert!(last_in_to_last_out(&[early, json!({ "starts_ns": [1] })]).is_err());
    }

    #[test]
    fn percentiles_are_measured_values() {
        let values = [50, 10, 40, 20, 30];
        assert_eq!([0, 50, 99, 100].map(|percent| percentile(&values, percent)), [10, 30, 50, 50]);
        assert_eq!(percentile(&[7], 50), 7);
        assert_eq!(percentile(&[], 50), 0);
    }

    #[test]
    fn the_ratio_is_of_the_same_rounds() {
        assert_eq!(median_ratio(&[10, 40, 90], &[10, 10, 10]), 4.0);
        assert_eq!(median_ratio(&[10, 30], &[10, 10]), 2.0);
    }

    #[test]
    fn many_samples_are_summed_up() {
        let few = Times::of_rounds(&[vec![3, 1, 2], vec![5, 4, 6]]);
        assert_eq!((few.min_ns, few.p50_ns, few.max_ns, few.rounds_ns), (1, 3, 6, vec![2, 5]));
        assert_eq!(few.all_ns.len(), 6);
        assert!(Times::of_rounds(&vec![vec![1; 100]; 3]).all_ns.is_empty());
    }
}
