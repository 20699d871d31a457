//! What the threads' shares come to.

use super::shard::Shard;
use super::{LinkOutcome, Outcome};
use crate::host::HostCounters;

/// Puts the shards' ends together, in an order that does not depend on how the nodes were divided.
pub fn outcome(shards: Vec<Shard>) -> Outcome {
    let mut outcome = Outcome::default();
    let (mut links, mut hosts) = (Vec::new(), Vec::new());
    for shard in shards {
        let (own_links, own_hosts) = shard.into_parts();
        links.extend(own_links);
        for mut host in own_hosts {
            outcome.flows.extend(host.drain_finished());
            hosts.push((host.index(), *host.counters()));
        }
    }
    // The two halves of a link between threads are next to each other then, the sending one first.
    links.sort_by_key(|(identity, _)| (identity.place, !identity.is_sending));
    for (identity, link) in links {
        if identity.is_sending {
            let [from, to] = identity.nodes;
            let (started, waiting) = (link.started_count(), link.waiting_count());
            outcome.links.push(LinkOutcome { from, to, counters: link.counters(), started, waiting });
        } else if let Some(whole) = outcome.links.last_mut() {
            whole.started += link.started_count();
        }
    }
    hosts.sort_by_key(|(index, _): &(u16, HostCounters)| *index);
    outcome.flows.sort_unstable();
    outcome.hosts = hosts.into_iter().map(|(_, counters)| counters).collect();
    outcome
}
