//! `[[traffic]]`: what hosts send.

use std::sync::Arc;

use anyhow::{Context, ensure};
use fanin_link::Random;
use serde::Deserialize;

use crate::workload::{Flow, Poisson, SizeTable, Sizes, Source};

/// One kind of traffic.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Traffic {
    /// Every host starts flows to hosts drawn by lot, with exponential gaps.
    Poisson {
        /// Share of the host's link that the payload takes on the average.
        load: f64,
        /// Sizes of the flows.
        sizes: SizesName,
    },
    /// Host i sends to host i + n/2 of n, one flow that lasts to the end.
    Permutation {},
    /// Hosts 1 to `senders` each send one flow to host 0 at the same time.
    Incast {
        /// How many.
        senders: u32,
        /// Payload of each; without, the flows last to the end.
        bytes: Option<u64>,
        /// When, microseconds.
        #[serde(default)]
        start_us: f64,
    },
    /// Flows one by one: `[source, destination, bytes, start in microseconds]`.
    List {
        /// The flows.
        flows: Vec<(u16, u16, u64, f64)>,
    },
}

/// Sizes of flows.
#[derive(Clone, Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "bytes, \"websearch\", \"datamining\", or points as [[bytes, share of flows no longer], ...]"
)]
pub enum SizesName {
    /// All alike, bytes.
    Fixed(u64),
    /// A published table.
    Named(String),
    /// Points of one's own: bytes, and the share of flows that are no longer.
    Points(Vec<(f64, f64)>),
}

impl SizesName {
    fn build(&self) -> anyhow::Result<Sizes> {
        Ok(match self {
            SizesName::Fixed(bytes) => {
                ensure!(*bytes > 0, "sizes = 0: a flow has at least a byte");
                Sizes::Fixed(*bytes)
            }
            SizesName::Named(name) => Sizes::Table(Arc::new(SizeTable::named(name)?)),
            SizesName::Points(points) => Sizes::Table(Arc::new(SizeTable::new(points.clone())?)),
        })
    }
}

/// Every host's sources; `access_bps` are the rates of the hosts' links.
pub fn sources(traffic: &[Traffic], seed: u64, access_bps: &[u64], end_ps: u64) -> anyhow::Result<Vec<Vec<Source>>> {
    let mut sources = vec![Vec::new(); access_bps.len()];
    let mut seeds = Random::new(seed);
    for (index, kind) in traffic.iter().enumerate() {
        let mut random = seeds.split();
        add(kind, &mut sources, &mut random, access_bps, end_ps)
            .with_context(|| format!("[[traffic]] {}", index + 1))?;
    }
    Ok(sources)
}

fn add(
    kind: &Traffic,
    sources: &mut [Vec<Source>],
    random: &mut Random,
    access_bps: &[u64],
    end_ps: u64,
) -> anyhow::Result<()> {
    let host_count = sources.len() as u32;
    match kind {
        Traffic::Poisson { load, sizes } => {
            ensure!(*load > 0.0 && *load <= 1.0, "load = {load}: a share of the link, above 0, at most 1");
            let sizes = sizes.build()?;
            for ((host, own), &bps) in sources.iter_mut().enumerate().zip(access_bps) {
                let gap_mean_ps = sizes.mean_bytes() * 8.0 / (load * bps as f64) * 1e12;
                let poisson = Poisson::new(host as u16, host_count, sizes.clone(), gap_mean_ps, end_ps, random);
                own.push(Source::Poisson(Box::new(poisson)));
            }
            Ok(())
        }
        Traffic::Permutation {} => {
            let half = host_count / 2;
            let flows = (0..host_count).map(|host| (host, (host + half) % host_count, u64::MAX, 0));
            list(flows, sources, random)
        }
        Traffic::Incast { senders, bytes, start_us } => {
            ensure!(*senders > 0 && *senders < host_count, "senders = {senders}: from 1 to {}", host_count - 1);
            ensure!(*bytes != Some(0), "bytes = 0: a flow has at least a byte; without bytes it lasts to the end");
            let at_ps = picoseconds(*start_us)?;
            list((1..=*senders).map(|host| (host, 0, bytes.unwrap_or(u64::MAX), at_ps)), sources, random)
        }
        Traffic::List { flows } => {
            let flow = |&(source, destination, bytes, start_us): &(u16, u16, u64, f64)| {
                ensure!(bytes > 0, "a flow of no bytes");
                Ok((u32::from(source), u32::from(destination), bytes, picoseconds(start_us)?))
            };
            list(flows.iter().map(flow).collect::<anyhow::Result<Vec<_>>>()?.into_iter(), sources, random)
        }
    }
}

fn picoseconds(us: f64) -> anyhow::Result<u64> {
    ensure!(us.is_finite() && us >= 0.0, "start {us} µs: it must be 0 or later");
    Ok((us * 1e6) as u64)
}

/// Flows as source, destination, bytes and start.
fn list(
    flows: impl Iterator<Item = (u32, u32, u64, u64)>,
    sources: &mut [Vec<Source>],
    random: &mut Random,
) -> anyhow::Result<()> {
    let mut listed: Vec<Vec<Flow>> = vec![Vec::new(); sources.len()];
    for (source, destination, bytes, at_ps) in flows {
        let hosts = sources.len() as u32;
        ensure!(
            source < hosts && destination < hosts,
            "a flow from {source} to {destination}: hosts are 0 to {}",
            hosts - 1
        );
        ensure!(source != destination, "a flow from host {source} to itself");
        let flow = Flow { at_ps, destination: destination as u16, bytes, hash: random.bits() as u16 };
        listed[source as usize].push(flow);
    }
    for (own, mut flows) in sources.iter_mut().zip(listed).filter(|(_, flows)| !flows.is_empty()) {
        // The latest first: they are taken from the end. Stable, so that equal starts keep the file's order.
        flows.reverse();
        flows.sort_by_key(|flow| std::cmp::Reverse(flow.at_ps));
        own.push(Source::Listed(flows));
    }
    Ok(())
}
