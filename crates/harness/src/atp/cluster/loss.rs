//! A job that goes on without a worker (ATP App. A.3), as the controller has it set up again.

use fanin_protocol::atp::{JobConfig, SetUp};
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
        plan.job_token = plan.job_token.wrapping_add(1);
        self.summary.set_up_again += 1;
        let plan = self.scenario.jobs[number].clone();
        for switch in &mut self.switches {
            let Some(level) = (plan.tree.level_count() - 1).checked_sub(switch.depth) else { continue };
            let (job_id, job_token, lane_count) = (plan.job_id, plan.job_token, plan.lane_count);
            switch.program.remove(job_id);
            let config = JobConfig { job_id, job_token, lane_count, level };
            switch.program.install(config).map_err(|error| format!("{error:?}"))?;
            // Children are numbered anew.
            switch.children.retain(|&(job_number, ..), _| job_number != job_id as u8);
        }
        let first: usize = self.scenario.jobs[..number].iter().map(|job| usize::from(job.lane_count)).sum();
        for server in first..first + usize::from(plan.lane_count) {
            self.servers[server].set_up_again(plan.job_token, plan.tree.clone());
        }
        let is_told = |job: usize, other: u16| job == number && other != rank;
        let told = (0..self.endpoints.len()).filter(|&at| is_told(self.endpoints[at].job, self.endpoints[at].rank));
        for worker in told.collect::<Vec<_>>() {
            let at = self.now + self.random.span_up_to(NEWS_DELAY_MAX);
            self.schedule(at, Event::TellWorker { worker });
        }
        Ok(())
    }

    pub(super) fn tell_worker(&mut self, number: usize) -> Result<(), String> {
        let endpoint = &mut self.endpoints[number];
        let plan = &self.scenario.jobs[endpoint.job];
        let set_up = SetUp {
            job_token: plan.job_token,
            way: *plan.tree.way(endpoint.rank),
            level_count: plan.tree.level_count(),
            lost_count: plan.tree.lost().count(),
            has_newcomer: false,
        };
        (endpoint.config.job_token, endpoint.config.way) = (set_up.job_token, set_up.way);
        endpoint.worker.set_up_again(self.now, set_up);
        self.at_worker(number, None)
    }

    pub(super) fn somebody_goes_on(&self) -> bool {
        self.scenario.jobs.iter().any(|job| job.goes_on_after.is_some())
    }
}
