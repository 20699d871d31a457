//! A job that goes on without a worker, or with another one in its place (ATP App. A.3), as the controller has it set up again.

use fanin_protocol::atp::{SetUp, Worker};
use fanin_protocol::time::Span;

use super::{Cluster, Event};

/// Workers hear of it this much later than one another.
const NEWS_DELAY_MAX: Span = Span::from_ms(10);

impl Cluster {
    /// At the switches and the servers; the workers that are left hear of it one by one.
    pub(super) fn set_up_again(&mut self, number: usize) -> Result<(), String> {
        let plan = &mut self.scenario.jobs[number];
        let (rank, _) = plan.death.ok_or("a job is set up again that has lost nobody")?;
        plan.tree = plan.tree.without(rank).map_err(|error| format!("{error:?}"))?;
        self.summary.set_up_again += 1;
        self.install_again(number)?;
        self.tell_all(number);
        // Where nothing comes before it.
        self.admit_at_boundary(number)
    }

    /// Once all that are left have the results of what comes before, somebody takes the lost worker's place.
    pub(super) fn admit_at_boundary(&mut self, number: usize) -> Result<(), String> {
        let plan = &mut self.scenario.jobs[number];
        let (Some((dead, _)), Some(replacement)) = (plan.death, &mut plan.replacement) else { return Ok(()) };
        let token = plan.job_token;
        let is_there = |endpoint: &super::Endpoint| {
            endpoint.completed == replacement.after as u64 && endpoint.config.job_token == token
        };
        let left = self.endpoints.iter().filter(|endpoint| endpoint.job == number && endpoint.rank != dead);
        if replacement.has_come || !plan.tree.lost().contains(dead) || !left.into_iter().all(is_there) {
            return Ok(());
        }
        replacement.has_come = true;
        plan.tree = replacement.tree.clone();
        let before = &plan.collectives[..replacement.after];
        let position = before.iter().map(|submission| u64::from(submission.block_count)).sum();
        let after = replacement.after as u64;
        self.summary.replaced += 1;
        self.install_again(number)?;
        let plan = &self.scenario.jobs[number];
        for endpoint in self.endpoints.iter_mut().filter(|it| it.job == number && it.rank == dead) {
            endpoint.config = super::worker_config(plan, dead, endpoint.lane, self.scenario.slot_count);
            endpoint.worker = Worker::starting_at(endpoint.config, position, 0);
            (endpoint.is_alive, endpoint.is_replacement, endpoint.completed) = (true, true, after);
        }
        self.tell_all(number);
        Ok(())
    }

    /// Another token and tree, at the switches and the servers.
    fn install_again(&mut self, number: usize) -> Result<(), String> {
        let plan = &mut self.scenario.jobs[number];
        plan.job_token = plan.job_token.wrapping_add(1);
        let plan = self.scenario.jobs[number].clone();
        for switch in &mut self.switches {
            let Some(level) = (plan.tree.level_count() - 1).checked_sub(switch.depth) else { continue };
            switch.program.remove(plan.job_id);
            switch.program.install(plan.at_switch(level)).map_err(|error| format!("{error:?}"))?;
            // Children are numbered anew.
            switch.children.retain(|&(job_number, ..), _| job_number != plan.job_id as u8);
        }
        let first: usize = self.scenario.jobs[..number].iter().map(|job| usize::from(job.lane_count)).sum();
        for server in first..first + usize::from(plan.lane_count) {
            self.servers[server].set_up_again(plan.job_token, plan.tree.clone());
        }
        Ok(())
    }

    /// Those that are in the job hear of it one by one.
    fn tell_all(&mut self, number: usize) {
        let lost = *self.scenario.jobs[number].tree.lost();
        let is_told = |endpoint: &super::Endpoint| endpoint.job == number && !lost.contains(endpoint.rank);
        let told: Vec<usize> = (0..self.endpoints.len()).filter(|&at| is_told(&self.endpoints[at])).collect();
        for worker in told {
            let at = self.now + self.random.span_up_to(NEWS_DELAY_MAX);
            self.schedule(at, Event::TellWorker { worker });
        }
    }

    pub(super) fn tell_worker(&mut self, number: usize) -> Result<(), String> {
        let endpoint = &mut self.endpoints[number];
        let plan = &self.scenario.jobs[endpoint.job];
        let set_up = SetUp {
            job_token: plan.job_token,
            way: *plan.tree.way(endpoint.rank),
            level_count: plan.tree.level_count(),
            lost_count: plan.tree.lost().count(),
            has_newcomer: plan.replacement.as_ref().is_some_and(|replacement| replacement.has_come),
        };
        (endpoint.config.job_token, endpoint.config.way) = (set_up.job_token, set_up.way);
        endpoint.worker.set_up_again(self.now, set_up);
        if let Some(replacement) = plan.replacement.as_ref().filter(|replacement| replacement.has_come) {
            plan.collectives[replacement.after..].iter().for_each(|&submission| endpoint.worker.submit(submission));
        }
        self.at_worker(number, None)
    }

    pub(super) fn somebody_goes_on(&self) -> bool {
        self.scenario.jobs.iter().any(|job| job.goes_on_after.is_some())
    }
}
