//! How long a step takes over a network.

use fanin_wire::generated::{ELEMENT_COUNT_DEFAULT, HEADER_BYTES};
use serde::Serialize;

use super::profile::Profile;

/// Ethernet with preamble and gap 38, IPv4 20, TCP with time stamps 32: beside the payload of a segment.
const TCP_OVERHEAD_BYTES: f64 = 90.0;
const TCP_SEGMENT_BYTES: f64 = 1448.0;
/// Ethernet with preamble and gap 38, IPv4 20, UDP 8.
const UDP_OVERHEAD_BYTES: f64 = 66.0;
/// An index beside each value that is sent.
const SPARSE_BYTES_PER_ELEMENT: f64 = 8.0;
/// Waiting below this share of a step is not worth a word.
const NEGLIGIBLE: f64 = 0.01;
/// Share of the time from the first byte to the last in which the link is busy when it, not the order of gradients, is what
/// the step waits for.
const SATURATED: f64 = 0.95;

/// How gradients are summed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheme {
    /// All-reduce by a ring, at its theoretical best: `2 (n - 1) / n` of the elements, each way, in full TCP segments.
    Ring {
        /// 4, or 2 (gradients of 16 bits, or DDP's hooks that compress them).
        element_bytes: u32,
    },
    /// Summed in the switch, elements of so many bytes on the wire, in fanin's packets.
    Switch {
        /// 4, 2 (float16, bfloat16) or 1 (int8).
        element_bytes: u32,
    },
    /// The largest elements only, gathered from all by all. What choosing them costs is left out: a bound from above.
    TopK {
        /// Share of the elements, above 0, up to 1.
        share: f64,
    },
}

/// The network and the machines.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Question {
    /// Of each server's link, each way, bits per second.
    pub rate_bps: f64,
    /// Servers that sum.
    pub workers: u32,
    /// From server to server, one way, seconds.
    pub latency_seconds: f64,
    /// All computing is so many times as fast as in the profile (SwitchML's alpha, §2.2).
    pub compute_speedup: f64,
}

/// What a step waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// Computing: the network costs next to nothing.
    Compute,
    /// The link is busy from the first bucket to the last.
    Link,
    /// The buckets that are ready last; the link idles between the earlier ones.
    LastBuckets,
}

/// A step over a network.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// The whole step, seconds.
    pub step_seconds: f64,
    /// Time in which the link is busy with this server's gradients, seconds.
    pub communication_seconds: f64,
    /// What the step takes longer than without a network, seconds.
    pub waiting_seconds: f64,
    /// Why.
    pub bound: Bound,
}

impl Scheme {
    /// Seconds from the moment when all servers have a bucket until all have its sum.
    pub fn seconds(self, bytes: u64, question: &Question) -> f64 {
        let (bytes, workers) = (bytes as f64, f64::from(question.workers));
        let others = workers - 1.0;
        let (sent, latencies) = match self {
            Scheme::Ring { element_bytes } => {
                let sent = bytes / 4.0 * f64::from(element_bytes) / tcp_goodput();
                (2.0 * others / workers * sent, 2.0 * others)
            }
            // Up and down at once: only the last packet's way is waited for.
            Scheme::Switch { element_bytes } => (bytes / 4.0 * switch_bytes_per_element(element_bytes), 1.0),
            Scheme::TopK { share } => (others * share * bytes / 4.0 * SPARSE_BYTES_PER_ELEMENT / tcp_goodput(), others),
        };
        sent * 8.0 / question.rate_bps + latencies * question.latency_seconds
    }
}

/// Share of a link's bits that are payload.
fn tcp_goodput() -> f64 {
    TCP_SEGMENT_BYTES / (TCP_SEGMENT_BYTES + TCP_OVERHEAD_BYTES)
}

/// All headers of a packet shared out among its elements.
fn switch_bytes_per_element(element_bytes: u32) -> f64 {
    // Narrow elements travel in packets of as many bytes.
    let payload = 4.0 * f64::from(ELEMENT_COUNT_DEFAULT);
    let overhead = UDP_OVERHEAD_BYTES + HEADER_BYTES as f64;
    f64::from(element_bytes) * (payload + overhead) / payload
}

impl Question {
    /// A step of `profile` with its gradients summed by `scheme`: buckets go one after the other, each when it is ready on all servers.
    pub fn predict(&self, profile: &Profile, scheme: Scheme) -> Prediction {
        let mut free_seconds = 0.0_f64;
        let mut first_seconds = f64::INFINITY;
        let mut communication_seconds = 0.0;
        for bucket in &profile.buckets {
            let start = free_seconds.max(bucket.ready_seconds / self.compute_speedup);
            let seconds = scheme.seconds(bucket.bytes, self);
            first_seconds = first_seconds.min(start);
            communication_seconds += seconds;
            free_seconds = start + seconds;
        }
        let last_ready_seconds = profile.last_ready_seconds() / self.compute_speedup;
        let waiting_seconds = free_seconds - last_ready_seconds;
        let step_seconds = free_seconds + profile.tail_seconds / self.compute_speedup;
        let bound = if waiting_seconds < NEGLIGIBLE * step_seconds {
            Bound::Compute
        } else if communication_seconds > SATURATED * (free_seconds - first_seconds) {
            Bound::Link
        } else {
            Bound::LastBuckets
        };
        Prediction { step_seconds, communication_seconds, waiting_seconds, bound }
    }

    /// How many times as fast a step is with `scheme` as with a ring of elements of so many bytes.
    pub fn speedup(&self, profile: &Profile, scheme: Scheme, ring_element_bytes: u32) -> f64 {
        let ring = Scheme::Ring { element_bytes: ring_element_bytes };
        self.predict(profile, ring).step_seconds / self.predict(profile, scheme).step_seconds
    }
}

/// The highest link rate, bits per second, at which `scheme` makes a step at least `gain` times as fast as a ring does; `None` if it
/// does at none from 100 Mbit/s to 10 Tbit/s.
pub fn rate_worth_it(
    question: &Question,
    profile: &Profile,
    scheme: Scheme,
    ring_element_bytes: u32,
    gain: f64,
) -> Option<f64> {
    const LOWEST: f64 = 1e8;
    const STEPS: i32 = 500;
    let rate = |k: i32| LOWEST * 1e5_f64.powf(f64::from(k) / f64::from(STEPS));
    // Not monotonous: on slow links both wait, on fast ones neither does.
    let is_worth_it =
        |k: &i32| Question { rate_bps: rate(*k), ..*question }.speedup(profile, scheme, ring_element_bytes) >= gain;
    (0..=STEPS).rev().find(is_worth_it).map(rate)
}

#[cfg(test)]
mod tests {
    use super::super::profile::Bucket;
    use super::*;

    const RING: Scheme = Scheme::Ring { element_bytes: 4 };
    const SWITCH: Scheme = Scheme::Switch { element_bytes: 4 };

    fn question(rate_bps: f64, workers: u32) -> Question {
        Question { rate_bps, workers, latency_seconds: 0.0, compute_speedup: 1.0 }
    }

    fn buckets(ready_seconds: &[f64]) -> Profile {
        let buckets = ready_seconds.iter().map(|at| Bucket { bytes: 125_000_000, ready_seconds: *at }).collect();
        Profile::new("test", 8, buckets, 0.25)
    }

    #[test]
    fn one_bucket_at_the_end_waits_for_all_of_its_communication() {
        let profile = buckets(&[1.0]);
        // 1 Gbit at 1 Gbit/s: a second, and the headers'.
        let prediction = question(1e9, 8).predict(&profile, SWITCH);
        let seconds = (1024.0 + 66.0 + 40.0) / 1024.0;
        assert!((prediction.communication_seconds - seconds).abs() < 1e-9, "{prediction:?}");
        assert!((prediction.waiting_seconds - seconds).abs() < 1e-9);
        assert!((prediction.step_seconds - (1.25 + seconds)).abs() < 1e-9);
        assert_eq!(prediction.bound, Bound::Link);
        let ring = question(1e9, 8).predict(&profile, RING);
        assert!((ring.communication_seconds - 1.75 * 1538.0 / 1448.0).abs() < 1e-9, "{ring:?}");
    }

    #[test]
    fn what_overlaps_with_computing_costs_nothing() {
        let profile = buckets(&[1.0, 5.0, 9.0]);
        let prediction = question(100e9, 8).predict(&profile, SWITCH);
        assert_eq!(prediction.bound, Bound::Compute);
        assert!((question(100e9, 8).speedup(&profile, SWITCH, 4) - 1.0).abs() < 0.01);
        // At 1 Gbit/s the early buckets are through before the last is ready.
        assert_eq!(question(1e9, 8).predict(&profile, SWITCH).bound, Bound::LastBuckets);
    }

    #[test]
    fn two_servers_gain_nothing_but_narrower_elements() {
        let profile = buckets(&[0.0]);
        let two = question(1e9, 2);
        assert!(two.speedup(&profile, SWITCH, 4) < 1.0, "fanin's headers are larger than TCP's");
        let half = Scheme::Switch { element_bytes: 2 };
        assert!(two.speedup(&profile, half, 4) > 1.5);
        assert!(two.speedup(&profile, half, 2) < 1.0, "a ring of 16-bit elements is as narrow");
    }

    #[test]
    fn faster_computing_makes_the_network_matter_up_to_faster_links() {
        let profile = buckets(&[0.5]);
        let slow = question(1e9, 8);
        let fast = Question { compute_speedup: 10.0, ..slow };
        assert!(fast.speedup(&profile, SWITCH, 4) > slow.speedup(&profile, SWITCH, 4));
        let rates = [slow, fast].map(|question| rate_worth_it(&question, &profile, SWITCH, 4, 1.05).unwrap());
        assert!(rates[1] > 5.0 * rates[0], "{rates:?}");
        let at = Question { rate_bps: rates[0], ..slow };
        assert!(at.speedup(&profile, SWITCH, 4) >= 1.05);
        assert_eq!(rate_worth_it(&question(1e9, 2), &profile, SWITCH, 4, 1.05), None);
    }

    #[test]
    fn latencies_count_per_step_of_a_ring_and_once_at_the_switch() {
        let question = Question { latency_seconds: 0.1, ..question(1e12, 8) };
        let seconds = |scheme: Scheme| scheme.seconds(4, &question);
        assert!((seconds(RING) - 1.4).abs() < 1e-6);
        assert!((seconds(SWITCH) - 0.1).abs() < 1e-6);
        assert!((seconds(Scheme::TopK { share: 0.01 }) - 0.7).abs() < 1e-6);
    }
}
