//! How many ports each switch of a tree waits for where some workers may be left out (PANAMA §7, "partially synchronized").

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cmp::Reverse;

use super::fabric::Branch;

/// A switch of a tree.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    ports: u32,
    workers_beside: u32,
    workers_below: u32,
    left_out: u32,
}

impl Place {
    /// Workers behind a port, on the average, rounded.
    fn workers_per_port(&self) -> u32 {
        ((self.workers_below + self.ports / 2) / self.ports).max(1)
    }

    /// The one with most goes without a port more (Sainte-Laguë: 12 of 13 racks of 8 and 4 workers are each without one); 0 if it cannot.
    fn fairness(&self) -> u64 {
        let can_go_without = self.left_out + 1 < self.ports;
        let parts = 1 << 32;
        if can_go_without { parts * u64::from(self.ports) / u64::from(2 * self.left_out + 1) } else { 0 }
    }
}

/// By switch. The share is one of workers, rounded to the nearest number: of 16, 94 % leave out one and 88 % two, as in the
/// paper. These are spread evenly over the switches beside workers; what finds no place there, where each rack has one worker,
/// over the switches above, the lowest first. Of equal switches each `turn` begins where the one before it ended: trees leave out
/// workers of different racks.
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
        let beside = u32::from(is_host(branch.child));
        let below = if beside > 0 { 1 } else { places.get(&branch.child).map_or(0, |place| place.workers_below) };
        let place = places.entry(branch.parent).or_default();
        place.ports += 1;
        place.workers_beside += beside;
        place.workers_below += below;
    }
    let worker_count: u32 = places.values().map(|place| place.workers_beside).sum();
    let missing = (worker_count * (100 - u32::from(share_percent)) + 50) / 100;
    let (mut beside, mut above): (Vec<_>, Vec<_>) = places.values_mut().partition(|place| place.workers_beside > 0);
    let missing = leave_out(missing, &mut beside, turn);
    leave_out(missing, &mut above, turn);
    places.into_iter().map(|(switch, place)| (switch, (place.ports - place.left_out) as u8)).collect()
}

/// Returns how many workers could not be left out.
fn leave_out(mut missing: u32, places: &mut [&mut Place], turn: usize) -> u32 {
    if !places.is_empty() {
        places.rotate_left(turn * missing as usize % places.len());
    }
    loop {
        let fits = |place: &&mut &mut Place| place.fairness() > 0 && 2 * missing >= place.workers_per_port();
        let order = |place: &&mut &mut Place| (Reverse(place.workers_per_port()), place.fairness());
        // The first of those that are equal.
        let next = places.iter_mut().rev().filter(fits).max_by_key(order);
        let Some(place) = next.filter(|_| missing > 0) else { return missing };
        place.left_out += 1;
        missing = missing.saturating_sub(place.workers_per_port());
    }
}
