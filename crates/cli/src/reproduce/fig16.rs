//! ATP §5.5, Fig. 16b, on real sockets: an ATP job beside a TCP flow on one worker's link.

use std::time::{Duration, Instant};

use anyhow::Context;
use fanin_lab::findings::{Findings, Plot, Row, Sheet};
use serde::Deserialize;
use serde_json::Value;

use crate::bench::fleet::{Algorithm, Fleet, Job, Joined, Setting, Work};
use crate::bench::process::Process;
use crate::bench::units::parse_rate;
use crate::net::Link;

/// The built-in parameters.
const PARAMETERS: &str = include_str!("../../../../experiments/atp/fig16.toml");
/// For a process to say its first word.
const START_LIMIT: Duration = Duration::from_secs(10);
/// The flow's own start, which does not count.
const FLOW_WARM_UP: Duration = Duration::from_secs(2);
const SAMPLE_LIMIT: Duration = Duration::from_secs(5);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Parameters {
    workers: u16,
    link: String,
    mtu: u32,
    tensor_bytes: u64,
    seconds: u64,
}

/// One all-reduce, or one report of the flow's receiver.
#[derive(Clone, Copy)]
struct Sample {
    from_ns: u64,
    until_ns: u64,
    bits: f64,
}

/// Runs the three parts.
///
/// # Errors
/// Without root, or what a process complained about.
pub fn run(parameters: Option<&str>, is_quick: bool) -> anyhow::Result<Findings> {
    let mut parameters: Parameters = toml::from_str(parameters.unwrap_or(PARAMETERS)).context("parameters of fig16")?;
    if is_quick {
        (parameters.seconds, parameters.tensor_bytes) = (2, 1 << 20);
    }
    let rate_bps = parse_rate(&parameters.link).map_err(anyhow::Error::msg).context("parameters of fig16: link")?;
    let mut fleet = Fleet::start(&Setting {
        ranks: parameters.workers,
        timeout_ms: 60_000,
        spin_us: None,
        kernels: None,
        switch_flags: Vec::new(),
        has_server: true,
        link: Some(Link { rate_bps, mtu_bytes: parameters.mtu, takes_xdp: false }),
        baselines: None,
    })?;
    let job = fleet.join(&Job { algorithm: Algorithm::Atp, ..Job::default() })?;
    let alone = all_reduces(&mut fleet, &job, &parameters)?;
    let mut flow = Flow::start(&fleet)?;
    let flow_alone = flow.samples(Duration::from_secs(parameters.seconds))?;
    let beside = all_reduces(&mut fleet, &job, &parameters)?;
    let flow_beside = flow.samples_until(beside.last().map_or(0, |last| last.until_ns))?;
    Ok(findings(&parameters, rate_bps as f64, &alone, &flow_alone, &beside, &flow_beside))
}

/// All-reduces, one after another; every sum is checked.
fn all_reduces(fleet: &mut Fleet, job: &Joined, parameters: &Parameters) -> anyhow::Result<Vec<Sample>> {
    let (mut samples, start) = (Vec::new(), Instant::now());
    while start.elapsed() < Duration::from_secs(parameters.seconds) {
        let round = samples.len() as u32;
        let work = Work { bytes: parameters.tensor_bytes, dtype: "float32", round, repeat: 1 };
        let replies = fleet.round(job, &work)?;
        let numbers =
            |key: &str| replies.iter().filter_map(|reply| reply.get(key)?.get(0)?.as_u64()).collect::<Vec<_>>();
        let wrong: u64 = replies.iter().filter_map(|reply| reply.get("wrong_elements")?.as_u64()).sum();
        anyhow::ensure!(wrong == 0, "{wrong} elements were not the sum");
        samples.push(Sample {
            from_ns: numbers("starts_ns").into_iter().max().unwrap_or(0),
            until_ns: numbers("ends_ns").into_iter().max().unwrap_or(0),
            bits: parameters.tensor_bytes as f64 * 8.0,
        });
    }
    Ok(samples)
}

/// A TCP flow from worker 0 to the switch's host.
struct Flow {
    receiver: Process,
    _sender: Process,
    last: Option<(u64, u64)>,
}

impl Flow {
    fn start(fleet: &Fleet) -> anyhow::Result<Flow> {
        let listen = ["bench-flow", "--listen", fleet.switch_address()];
        let mut receiver = fleet.start_at_switch("the flow's receiver", &listen)?;
        let hello = receiver.as_mut().receive(START_LIMIT)?;
        let address = hello.get("address").and_then(Value::as_str).context("the receiver did not say its address")?;
        let sender = fleet.start_at_rank(0, "the flow's sender", &["bench-flow", "--connect", address])?;
        let mut flow = Flow { receiver, _sender: sender, last: None };
        flow.samples(FLOW_WARM_UP)?;
        Ok(flow)
    }

    fn samples(&mut self, time: Duration) -> anyhow::Result<Vec<Sample>> {
        let (mut samples, start) = (Vec::new(), Instant::now());
        while start.elapsed() < time {
            samples.extend(self.sample()?);
        }
        Ok(samples)
    }

    /// All reports up to a time of the clock that all processes share.
    fn samples_until(&mut self, until_ns: u64) -> anyhow::Result<Vec<Sample>> {
        let mut samples = Vec::new();
        while self.last.is_none_or(|(at_ns, _)| at_ns < until_ns) {
            samples.extend(self.sample()?);
        }
        Ok(samples)
    }

    fn sample(&mut self) -> anyhow::Result<Option<Sample>> {
        let report = self.receiver.as_mut().receive(SAMPLE_LIMIT)?;
        let number = |key| report.get(key).and_then(Value::as_u64).context("the flow's receiver reports no numbers");
        let (until_ns, bytes) = (number("at_ns")?, number("bytes")?);
        let before = self.last.replace((until_ns, bytes));
        Ok(before.map(|(from_ns, earlier)| Sample { from_ns, until_ns, bits: (bytes - earlier) as f64 * 8.0 }))
    }
}

/// Bits per second between the first start and the last end.
fn goodput(samples: &[Sample]) -> f64 {
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else { return 0.0 };
    let bits: f64 = samples.iter().map(|sample| sample.bits).sum();
    bits * 1e9 / (last.until_ns - first.from_ns).max(1) as f64
}

fn findings(
    parameters: &Parameters,
    rate_bps: f64,
    alone: &[Sample],
    flow_alone: &[Sample],
    beside: &[Sample],
    flow_beside: &[Sample],
) -> Findings {
    let [own, flow, shared, flow_shared] = [alone, flow_alone, beside, flow_beside].map(goodput);
    let share = |bps: f64| format!("{:.2} of the link", bps / rate_bps);
    let both = shared + flow_shared;
    let fairness = shared / both.max(1.0);
    let rows = vec![
        Row::new("the job alone", "above its fair share", share(own), own > rate_bps / 2.0),
        Row::new("the flow alone", "the line rate", share(flow), flow > 0.8 * rate_bps),
        Row::new(
            "the job beside the flow",
            "near the fair share, 0.5",
            share(shared),
            (0.35..0.65).contains(&fairness),
        ),
        Row::new("both together", "close to the line rate", share(both), both > 0.8 * rate_bps),
    ];
    let origin_ns = alone.first().map_or(0, |first| first.from_ns);
    let line = |samples: &[Sample]| -> Vec<(f64, f64)> {
        let point = |sample: &Sample| {
            let seconds = |at_ns: u64| at_ns.saturating_sub(origin_ns) as f64 / 1e9;
            let time = seconds(sample.until_ns) - seconds(sample.from_ns);
            (seconds(sample.until_ns), sample.bits / time.max(1e-9) / 1e6)
        };
        samples.iter().map(point).collect()
    };
    let lines = vec![
        ("ATP".to_owned(), [line(alone), line(beside)].concat()),
        ("TCP".to_owned(), [line(flow_alone), line(flow_beside)].concat()),
    ];
    let sheet = |(name, points): &(String, Vec<(f64, f64)>)| Sheet {
        name: name.to_lowercase(),
        columns: vec!["seconds".into(), "goodput_mbps".into()],
        rows: points.iter().map(|&(seconds, mbps)| vec![seconds, mbps]).collect(),
    };
    Findings {
        experiment: "fig16".into(),
        title: "an ATP job beside a TCP flow on one worker's link (§5.5)".into(),
        place: format!(
            "real processes: {} workers, a switch and a parameter server in network namespaces, links of {}",
            parameters.workers, parameters.link
        ),
        rows,
        notes: vec![
            "Goodput is elements for the job and TCP payload for the flow; the headers' 9 and 3 % are not in it.".into(),
            "The paper's flow shares the link with a worker of six and a line of 100 Gbit/s; here the queue that both share is \
             the worker's own host's, where the switch's marks do not reach: the job yields to lost packets."
                .into(),
        ],
        sheets: lines.iter().map(sheet).collect(),
        plots: vec![Plot {
            name: "goodput".into(),
            title: "An ATP job beside a TCP flow".into(),
            x_label: "seconds".into(),
            y_label: "Mbit/s".into(),
            is_x_log: false,
            lines,
        }],
        hops: 0,
    }
}
