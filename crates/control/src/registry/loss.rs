//! A job that goes on without a rank that was lost (ATP App. A.3).

use super::job::JobPhase;
use super::{Assignment, AtpAssignment, Effect, Registry, ServerOwner};
use crate::proto::{LossReason, SetUpAgain, notice};

impl Registry {
    /// Has the job set up again without the rank. Returns why the rank was lost where the job cannot go on.
    pub(super) fn go_on_without(&mut self, job_id: u32, rank: u16, detail: String) -> Option<String> {
        let goes_on = |job: &&super::Job| job.assignment.shape.absences.goes_on && job.phase == JobPhase::Running;
        let Some(job) = self.jobs.get(&job_id).filter(goes_on) else { return Some(detail) };
        let Some(atp) = &job.assignment.atp else { return Some(detail) };
        if atp.servers.iter().any(|lane| lane.owner == ServerOwner::Rank(rank)) {
            return Some(format!(
                "{detail}; the job cannot go on without it, because it ran the parameter server: have `fanin server` run \
                 beside the switch"
            ));
        }
        let left = atp.without(rank, &self.limits.topology);
        let Some(left) = left.filter(|_| !job.is_deserted()) else { return Some(detail) };
        let token = self.new_token();
        let job = self.jobs.get_mut(&job_id)?;
        job.assignment.atp = Some(left);
        job.setting_up = Some((token, rank, detail));
        // Reports keep the token that the job began with; packets get another, so that those of the old tree are known.
        let assignment = Assignment { job_token: token, ..job.assignment.clone() };
        self.effect(Effect::SetUpAgain(assignment));
        None
    }

    /// The data plane has taken the job of an [`Effect::SetUpAgain`], or says why not. Tells the ranks that are left.
    pub fn set_up_again_done(&mut self, now_ms: u64, job_id: u32, packet_token: u32, outcome: Result<(), String>) {
        let Some(job) = self.jobs.get_mut(&job_id) else { return };
        // Another rank may have been lost meanwhile, whose turn comes.
        let is_last = |(token, ..): &mut (u32, u16, String)| *token == packet_token;
        let Some((packet_token, rank, detail)) = job.setting_up.take_if(is_last) else { return };
        match outcome {
            Ok(()) => {
                let atp = job.assignment.atp.as_ref().map(AtpAssignment::to_proto);
                let set_up = SetUpAgain { lost_rank: rank.into(), detail, packet_token, atp };
                job.set_up = Some(set_up.clone());
                self.notify_attached(job_id, &notice::Kind::SetUpAgain(set_up));
            }
            Err(why) => {
                job.assignment.shape.absences.goes_on = false;
                let detail = format!("{detail}; setting the job up again failed: {why}");
                self.lose(now_ms, job_id, rank, LossReason::Unspecified, detail);
            }
        }
    }
}
