//! A job that goes on without a rank that was lost (ATP App. A.3).

use super::job::{JobPhase, MemberState, SettingUp};
use super::{Assignment, AtpAssignment, Boundary, Effect, Registry, Resumed, ServerOwner};
use crate::proto::{Admitted, LossReason, SetUpAgain, notice};

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
        self.begin_setting_up(job_id, left, Some((rank, detail)), None);
        None
    }

    /// Gives a job's new tree to the data plane. Replacements that were on their way go on with this one.
    pub(super) fn begin_setting_up(
        &mut self,
        job_id: u32,
        atp: AtpAssignment,
        lost: Option<(u16, String)>,
        joined: Option<Boundary>,
    ) {
        let token = self.new_token();
        let Some(job) = self.jobs.get_mut(&job_id) else { return };
        job.assignment.atp = Some(atp);
        let before = job.setting_up.take().and_then(|before| before.joined);
        job.setting_up = Some(SettingUp { token, lost, joined: joined.or(before) });
        // Reports keep the token that the job began with; packets get another, so that those of the old tree are known.
        let assignment = Assignment { job_token: token, ..job.assignment.clone() };
        self.effect(Effect::SetUpAgain(assignment));
    }

    /// The data plane has taken the job of an [`Effect::SetUpAgain`], or says why not. Tells the ranks that are left.
    pub fn set_up_again_done(&mut self, now_ms: u64, job_id: u32, packet_token: u32, outcome: Result<(), String>) {
        let Some(job) = self.jobs.get_mut(&job_id) else { return };
        // Another rank may have been lost meanwhile, whose turn comes.
        let is_last = |setting_up: &mut SettingUp| setting_up.token == packet_token;
        let Some(SettingUp { lost, joined, .. }) = job.setting_up.take_if(is_last) else { return };
        if let Err(why) = outcome {
            return self.cannot_be_set_up(now_ms, job_id, lost, &why);
        }
        let atp = job.assignment.atp.as_ref().map(AtpAssignment::to_proto);
        let (lost_rank, detail) = lost.map_or((None, String::new()), |(rank, detail)| (Some(rank.into()), detail));
        let set_up = SetUpAgain { lost_rank, detail, packet_token, atp: atp.clone() };
        job.set_up = Some(set_up.clone());
        let ranks: Vec<u16> = job.joining_ranks();
        let Some(boundary) = joined else {
            self.notify_attached(job_id, &notice::Kind::SetUpAgain(set_up));
            return self.admit_at_boundary(now_ms, job_id);
        };
        let sequence = boundary.sequence;
        if ranks.is_empty() {
            // They were lost on the way.
            self.notify_attached(job_id, &notice::Kind::SetUpAgain(set_up));
            let nobody = Admitted { sequence, ..Admitted::default() };
            return self.notify_attached(job_id, &notice::Kind::Admitted(nobody));
        }
        let joined = ranks.iter().map(|&rank| rank.into()).collect();
        let admitted = Admitted { sequence, ranks: joined, packet_token, atp, error: String::new() };
        self.notify_attached(job_id, &notice::Kind::Admitted(admitted));
        self.admit_replacements(now_ms, job_id, &Resumed { packet_token, boundary });
    }

    /// Nothing is left of the job at the data plane.
    fn cannot_be_set_up(&mut self, now_ms: u64, job_id: u32, lost: Option<(u16, String)>, why: &str) {
        let Some(job) = self.jobs.get_mut(&job_id) else { return };
        job.assignment.shape.absences.goes_on = false;
        let joining = job.joining_ranks().first().map(|&rank| (rank, "it was to be replaced".to_string()));
        let Some((rank, detail)) = lost.or(joining) else { return };
        let reason = format!("setting the job up again failed: {why}");
        job.phase = JobPhase::Broken { reason, remove_at_ms: now_ms.saturating_add(self.limits.broken_kept_ms) };
        self.refuse_replacements(job_id);
        let detail = format!("{detail}; setting the job up again failed: {why}");
        self.lose(now_ms, job_id, rank, LossReason::Unspecified, detail);
    }

    /// Ranks of the job that were lost.
    pub(super) fn lost_ranks(&self, job_id: u32) -> Vec<u16> {
        let members = self.jobs.get(&job_id).map(|job| &job.members[..]).unwrap_or_default();
        (0u16..).zip(members).filter(|(_, member)| member.state == MemberState::Lost).map(|(rank, _)| rank).collect()
    }
}
