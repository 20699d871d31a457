//! What the threads' shares come to.

use anyhow::bail;

use super::shard::{Identity, Shard};
use super::{LinkOutcome, Outcome, RankSamples};
use crate::host::Host;
use crate::job::{Rank, Work};
use crate::link::Link;

/// Puts the shards' ends at `end_ps` together, in an order that does not depend on how the nodes were divided.
///
/// # Errors
/// Why a rank or a program could not go on.
pub fn outcome(shards: Vec<Shard>, end_ps: u64) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::default();
    let (mut links, mut hosts, mut switches) = (Vec::new(), Vec::new(), Vec::new());
    for shard in shards {
        let parts = shard.into_parts();
        if let Some(failure) = parts.failure {
            bail!("{failure}; this is a bug, please report it");
        }
        links.extend(parts.links);
        hosts.extend(parts.hosts);
        switches.extend(parts.switches);
    }
    hosts.sort_by_key(Host::index);
    for host in &mut hosts {
        outcome.flows.extend(host.drain_finished());
        outcome.unended.extend(host.unended(end_ps));
        outcome.hosts.push(*host.counters());
        outcome.samples.hosts.push(host.samples().to_vec());
        add_ranks(host.ranks(), &mut outcome)?;
    }
    outcome.flows.sort_unstable();
    outcome.unended.sort_unstable();
    outcome.iterations.sort_unstable();
    outcome.samples.ranks.sort_unstable();
    switches.sort_by_key(|(index, ..)| *index);
    for (index, switch, failure) in switches {
        if let Some(failure) = failure {
            bail!("switch {index}: {failure}");
        }
        outcome.switches.push(switch);
    }
    outcome.links = whole_links(links);
    Ok(outcome)
}

fn add_ranks(ranks: &[Rank], outcome: &mut Outcome) -> anyhow::Result<()> {
    for rank in ranks {
        if let Some(failure) = rank.failure() {
            bail!("{failure}");
        }
        outcome.iterations.extend_from_slice(rank.records());
        if rank.rank() != u16::MAX {
            let (job, rank, summed) = (rank.job(), rank.rank(), rank.samples().to_vec());
            outcome.samples.ranks.push(RankSamples { job, rank, summed });
        }
        if let Work::Endpoint { endpoint, .. } = &rank.work {
            let counters = endpoint.counters();
            outcome.endpoints.resent += counters.resent;
            outcome.endpoints.asked += counters.asked;
            outcome.endpoints.partial += counters.partial;
            outcome.endpoints.sums += counters.sums;
        }
    }
    Ok(())
}

/// One entry for both halves of a link between threads.
fn whole_links(mut links: Vec<(Identity, Link, u64)>) -> Vec<LinkOutcome> {
    // The two halves are next to each other then, the sending one first.
    links.sort_by_key(|(identity, ..)| (identity.place, !identity.is_sending));
    // An accelerator is one way round: nothing goes through the other direction of its cable.
    links.retain(|(identity, ..)| identity.nodes[0] != identity.nodes[1] || identity.place.is_multiple_of(2));
    let mut whole: Vec<LinkOutcome> = Vec::new();
    for (identity, link, corrupted) in links {
        if identity.is_sending {
            let [from, to] = identity.nodes;
            let (started, waiting) = (link.started_count(), link.waiting_count());
            let stopped_since_ps = link.stopped_since();
            whole.push(LinkOutcome {
                from,
                to,
                counters: link.counters(),
                started,
                waiting,
                corrupted,
                stopped_since_ps,
            });
        } else if let Some(last) = whole.last_mut() {
            last.started += link.started_count();
            last.corrupted += corrupted;
        }
    }
    whole
}
