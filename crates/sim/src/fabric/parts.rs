//! Parts of a network of any shape, for threads to divide among them. The outcome does not depend on them.

use std::cmp::Reverse;

use super::Cable;

/// More parts would be of use to more threads only than gain from a network.
const PART_COUNT_MAX: usize = 16;

/// By node, its part: racks in a row with their hosts, as neighbours in a file are mostly neighbours in the network, and every other switch with
/// those to which most of its cables lead.
pub fn divide(host_count: u32, switch_count: u32, cables: &[Cable]) -> Vec<u32> {
    let node_count = (host_count + switch_count) as usize;
    let mut neighbours: Vec<Vec<usize>> = vec![Vec::new(); node_count];
    for [one, other] in cables.iter().map(|cable| cable.ends.map(|end| end as usize)) {
        neighbours[one].push(other);
        neighbours[other].push(one);
    }
    let hosts = host_count as usize;
    let mut racks: Vec<usize> = (0..hosts).filter_map(|host| neighbours[host].first().copied()).collect();
    racks.sort_unstable();
    racks.dedup();
    let part_count = racks.len().clamp(1, PART_COUNT_MAX);
    let mut parts: Vec<Option<usize>> = vec![None; node_count];
    for (place, &rack) in racks.iter().enumerate() {
        parts[rack] = Some(place * part_count / racks.len());
    }
    join(&mut parts, hosts, part_count, &neighbours);
    for host in 0..hosts {
        parts[host] = neighbours[host].first().and_then(|&rack| parts[rack]);
    }
    parts.into_iter().map(|part| part.unwrap_or(0) as u32).collect()
}

/// Switches without a part join one, tier by tier; of equals, the one that fewest have joined.
fn join(parts: &mut [Option<usize>], hosts: usize, part_count: usize, neighbours: &[Vec<usize>]) {
    let mut joined = vec![0u32; part_count];
    loop {
        let known = parts.to_vec();
        for node in (hosts..parts.len()).filter(|&node| known[node].is_none()) {
            let mut votes = vec![0u32; part_count];
            neighbours[node].iter().filter_map(|&other| known[other]).for_each(|part| votes[part] += 1);
            let best = (0..part_count).max_by_key(|&part| (votes[part], Reverse(joined[part]), Reverse(part)));
            if let Some(part) = best.filter(|&part| votes[part] > 0) {
                joined[part] += 1;
                parts[node] = Some(part);
            }
        }
        if known == parts {
            return;
        }
    }
}
