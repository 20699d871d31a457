//! What must hold at any time, looked at now and then while a run goes on.

use super::{Shard, Switch};
use crate::engine::buffers::Buffers;
use crate::engine::corruption::Corruption;

impl Shard {
    /// Looks at all switches between two windows. False if something was wrong: the run is to end then, with what it was.
    pub fn check(&mut self, now_ps: u64) -> bool {
        let found = (0..self.switches.len()).find_map(|index| {
            let wrong = self.wrong_packets(index).or_else(|| self.wrong_queue(index, now_ps));
            let wrong = wrong.or_else(|| self.switches[index].programs.check());
            wrong.map(|wrong| format!("switch {} at {now_ps} ps: {wrong}", self.switches[index].index))
        });
        self.failure = self.failure.take().or(found);
        self.failure.is_none()
    }

    /// What has come in whole, or from a program, has been taken by one, or offered to a queue that took or dropped it.
    fn wrong_packets(&self, index: usize) -> Option<String> {
        let Switch { ports, outcome, .. } = &self.switches[index];
        let of_switch = ports.first as usize..(ports.first + ports.count) as usize;
        let lost = |link: u32| self.corruption.get(link as usize)?.as_ref().map(Corruption::lost);
        let arrived = |&link: &u32| self.links[link as usize].arrived_count() - lost(link).unwrap_or(0);
        let offered = |&link: &u32| {
            let link = &self.links[link as usize];
            link.accepted_count() + link.counters().dropped
        };
        let came: u64 = self.inlets[of_switch.clone()].iter().map(arrived).sum::<u64>() + outcome.emitted;
        let went: u64 = self.outlets[of_switch].iter().map(offered).sum::<u64>() + outcome.taken;
        (came != went).then(|| format!("{came} packets came and {went} went"))
    }

    /// A queue has bytes if it has packets, and no more than it may have.
    fn wrong_queue(&mut self, index: usize, now_ps: u64) -> Option<String> {
        let Switch { ports, buffers, accelerator, .. } = &self.switches[index];
        let shared = buffers.as_ref().map(Buffers::memory_bytes);
        let own_port = accelerator.as_ref().map(|accelerator| usize::from(accelerator.way_in()));
        for port in 0..ports.count as usize {
            let link = &mut self.links[self.outlets[ports.first as usize + port] as usize];
            let class = &self.classes[usize::from(link.class)];
            link.start_until(class, now_ps.saturating_sub(1));
            let (packets, bytes) = (link.waiting_count(), link.queued_bytes());
            let bytes_max = shared.filter(|_| own_port != Some(port)).unwrap_or(class.queue_bytes_max());
            if (packets == 0) != (bytes == 0) || bytes > bytes_max {
                return Some(format!("{packets} packets of {bytes} bytes wait at port {port}"));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::engine::pace::Pace;
    use crate::engine::shard::build;
    use crate::engine::{Work, gather};
    use crate::scenario::Scenario;
    use crate::transport::Transport;

    const TEXT: &str = "duration_ms = 1\n[topology]\nshape = 'star'\nhosts = 4\n[links]\ncorruption = 0.01\n[[traffic]]\nkind = 'incast'\nsenders = 3";

    fn fresh() -> (Shard, Transport) {
        let plan = Scenario::parse(TEXT).unwrap().plan().unwrap();
        let transport = plan.transport;
        (build(plan, 1).unwrap().remove(0), transport)
    }

    fn shard() -> Shard {
        let (mut shard, transport) = fresh();
        (0..300).for_each(|window| shard.run_window(window * 1_000_000, (window + 1) * 1_000_000, &transport));
        shard
    }

    #[test]
    fn a_run_in_order_passes() {
        let mut shard = shard();
        assert!(shard.corruption.iter().flatten().any(|link| link.lost() > 0), "a weak test");
        assert!(shard.check(300_000_000), "{:?}", shard.failure);
    }

    #[test]
    fn what_is_wrong_at_the_end_fails_the_run() {
        let (mut shard, transport) = fresh();
        shard.switches[0].outcome.emitted += 1;
        let (pace, mail) = (Pace::new(1), [Mutex::default(), Mutex::default()]);
        // Fewer windows than there are between two checks.
        let work = Work {
            index: 0,
            shard_count: 1,
            window_ps: 1_000_000,
            duration_ps: 400_000_000,
            sample_ps: u64::MAX,
            transport: &transport,
            pace: &pace,
            mail: &mail,
        };
        let shard = work.run(shard, |_| true);
        let said = gather::outcome(vec![shard], 400_000_000).unwrap_err().to_string();
        assert!(said.contains("switch 0 at 400000000 ps") && said.contains("this is a bug"), "{said}");
    }

    #[test]
    fn packets_out_of_nowhere_and_queues_that_are_too_long_are_found() {
        let mut shard = shard();
        shard.switches[0].outcome.emitted += 1;
        assert!(!shard.check(300_000_000));
        assert!(shard.failure.is_some_and(|failure| failure.contains("packets came and")));
        let mut shard = self::shard();
        let short = shard.classes.iter().map(|class| class.with_queue_bytes_max(1)).collect();
        shard.classes = short;
        assert!(!shard.check(300_000_000));
        assert!(shard.failure.is_some_and(|failure| failure.contains("bytes wait at port 0")));
    }
}
