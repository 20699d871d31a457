//! Circles of pauses at the end of a run. With pauses nothing is lost, but where flows go around a circle of switches, each switch may wait for the next one
//! to have room, and nothing there moves any more.

use std::collections::BTreeSet;

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

/// Links in such circles at `end_ps`, by place: each is paused, has packets that wait, has sent nothing for `quiet_ps`, and leads to a switch with another one.
pub fn deadlocked(links: &[LinkOutcome], end_ps: u64, quiet_ps: u64) -> Vec<usize> {
    let is_quiet =
        |link: &LinkOutcome| link.stopped_since_ps.is_some_and(|since| since.saturating_add(quiet_ps) <= end_ps);
    let mut stopped: Vec<usize> = (0..links.len()).filter(|&place| is_quiet(&links[place])).collect();
    loop {
        let count = stopped.len();
        // What no stopped link leads to, or what leads to none, is in no circle.
        let from: BTreeSet<u32> = stopped.iter().map(|&place| links[place].from).collect();
        let to: BTreeSet<u32> = stopped.iter().map(|&place| links[place].to).collect();
        stopped.retain(|&place| from.contains(&links[place].to) && to.contains(&links[place].from));
        if stopped.len() == count {
            return stopped;
        }
    }
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
        assert!(found(&[(1, 2, old), (2, 3, old), (3, 1, Some(51))]).is_empty(), "one has just sent");
        assert!(found(&[(1, 2, old), (2, 3, old), (3, 1, None)]).is_empty(), "one goes on");
        assert!(found(&[(1, 2, old), (2, 3, old), (3, 4, old)]).is_empty(), "a line");
    }
}
