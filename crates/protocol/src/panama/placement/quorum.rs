//! How many ports each switch of a tree waits for where some workers may be left out (PANAMA §7, "partially synchronized").

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cmp::Reverse;

use super::fabric::Branch;

/// A switch of a tree.
#[derive(Clone, Debug, Default)]
struct Place {
    /// Workers behind each port, the most first: which ports are late nobody knows, so the first ones may be.
    workers: Vec<u32>,
    left_out: usize,
}

impl Place {
    /// Workers that one port more may leave out; none if only one port is left.
    fn cost(&self) -> Option<u32> {
        self.workers.get(self.left_out).copied().filter(|_| self.left_out + 1 < self.workers.len())
    }

    /// Sainte-Laguë's: 12 that are left out of 13 racks of 8 and 4 workers are of 12 racks.
    fn claim(&self) -> u64 {
        ((self.workers.len() as u64) << 32) / (2 * self.left_out as u64 + 1)
    }
}

/// By switch. The share is one of workers, rounded to the nearest number: of 16, 94 % leave out one and 88 % two, as in the
/// paper. No more than these are left out, whichever ports are late; fewer, if no switch can do with fewer ports. They are spread
/// evenly, first over ports with the fewest workers behind them: those of racks. Of equal switches each `turn` begins where the one
/// before it ended, so that trees leave out workers of different racks.
///
/// `branches` are those of one tree, parents before their children.
pub(super) fn quorums(
    branches: &[Branch],
    is_host: impl Fn(u32) -> bool,
    share_percent: u8,
    turn: usize,
) -> BTreeMap<u32, u8> {
    let mut places: BTreeMap<u32, Place> = BTreeMap::new();
    for branch in branches.iter().rev() {
        let below = match places.get(&branch.child) {
            Some(switch) if !is_host(branch.child) => switch.workers.iter().sum(),
            _ => 1,
        };
        places.entry(branch.parent).or_default().workers.push(below);
    }
    places.values_mut().for_each(|place| place.workers.sort_unstable_by_key(|&workers| Reverse(workers)));
    let worker_count = branches.iter().filter(|branch| is_host(branch.child)).count() as u32;
    leave_out((worker_count * (100 - u32::from(share_percent)) + 50) / 100, &mut places, turn);
    places.into_iter().map(|(switch, place)| (switch, (place.workers.len() - place.left_out) as u8)).collect()
}

fn leave_out(mut missing: u32, places: &mut BTreeMap<u32, Place>, turn: usize) {
    // Racks, that is the cheapest, are those that take turns.
    let mut places: Vec<&mut Place> = places.values_mut().collect();
    places.sort_by_key(|place| place.cost());
    let cheapest = places.iter().filter_map(|place| place.cost()).min();
    let first = places.iter().position(|place| place.cost().is_some()).unwrap_or(places.len());
    let racks = places[first..].iter().take_while(|place| place.cost() == cheapest).count();
    places[first..first + racks].rotate_left(turn * missing as usize % racks.max(1));
    loop {
        let order = |place: &&mut &mut Place| place.cost().map(|cost| (Reverse(cost), place.claim()));
        let fits = |place: &&mut &mut Place| place.cost().is_some_and(|cost| cost <= missing);
        // The first of those that are equal.
        let Some(place) = places.iter_mut().rev().filter(fits).max_by_key(order) else { return };
        missing -= place.cost().unwrap_or(missing);
        place.left_out += 1;
    }
}
