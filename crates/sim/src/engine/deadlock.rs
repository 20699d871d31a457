//! Circles of pauses at the end of a run. With pauses nothing is lost, but where flows go around a circle of switches, each switch may wait for the next one
//! to have room, and nothing there moves any more.

use std::collections::{BTreeMap, BTreeSet};

use super::{LinkOutcome, Memory};
use crate::fabric::Fabric;

/// A pause is never so short-lived that less would tell.
const QUIET_PS_MIN: u64 = 1_000_000_000;

/// What is paused for so long waits for more than one switch to get rid of what it has: twice what the slowest link takes to send all that a switch may keep.
/// Nothing where no switch pauses.
pub fn quiet_ps(memory: Option<&Memory>, fabric: &Fabric) -> Option<u64> {
    let memory = memory.filter(|memory| memory.pause.is_some())?;
    let slowest_bps = fabric.cables.iter().flat_map(|cable| cable.links).map(|link| link.rate_bps).min().unwrap_or(1);
    let all_ps = u128::from(memory.bytes) * 8_000_000_000_000 / u128::from(slowest_bps.max(1));
    Some(u64::try_from(2 * all_ps).unwrap_or(u64::MAX).max(QUIET_PS_MIN))
}

/// Links in such circles at `end_ps`, by place: each is paused, has packets that wait, has sent nothing for `quiet_ps`, and others like it lead back to where it begins.
pub fn deadlocked(links: &[LinkOutcome], end_ps: u64, quiet_ps: u64) -> Vec<usize> {
    let is_quiet =
        |link: &LinkOutcome| link.stopped_since_ps.is_some_and(|since| since.saturating_add(quiet_ps) <= end_ps);
    let stopped: Vec<usize> = (0..links.len()).filter(|&place| is_quiet(&links[place])).collect();
    let mut next: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for link in stopped.iter().map(|&place| &links[place]) {
        next.entry(link.from).or_default().push(link.to);
    }
    stopped.into_iter().filter(|&place| leads(&next, links[place].to, links[place].from)).collect()
}

/// Whether stopped links lead from here to there.
fn leads(next: &BTreeMap<u32, Vec<u32>>, from: u32, to: u32) -> bool {
    let (mut seen, mut open) = (BTreeSet::from([from]), vec![from]);
    while let Some(node) = open.pop() {
        if node == to {
            return true;
        }
        open.extend(next.get(&node).into_iter().flatten().filter(|&&next| seen.insert(next)));
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::LinkCounters;

    #[test]
    fn only_circles_that_have_been_quiet_are_deadlocks() {
        let link = |(from, to, stopped_since_ps): (u32, u32, Option<u64>)| LinkOutcome {
            from,
            to,
            counters: LinkCounters::default(),
            started: 0,
            waiting: 1,
            corrupted: 0,
            stopped_since_ps,
        };
        let found = |links: &[(u32, u32, Option<u64>)]| {
            let links: Vec<LinkOutcome> = links.iter().copied().map(link).collect();
            deadlocked(&links, 100, 50)
        };
        let old = Some(50);
        // A host that waits for a circle is in none, nor is what waits behind it.
        assert_eq!(found(&[(0, 1, old), (1, 2, old), (2, 3, old), (3, 1, old), (3, 4, old)]), [1, 2, 3]);
        let two = [(1, 2, old), (2, 1, old), (2, 3, old), (3, 4, old), (4, 3, old)];
        assert_eq!(found(&two), [0, 1, 3, 4], "what leads from one circle to another is in none");
        assert!(found(&[(1, 2, old), (2, 3, old), (3, 1, Some(51))]).is_empty(), "one has just sent");
        assert!(found(&[(1, 2, old), (2, 3, old), (3, 1, None)]).is_empty(), "one goes on");
        assert!(found(&[(1, 2, old), (2, 3, old), (3, 4, old)]).is_empty(), "a line");
    }
}
