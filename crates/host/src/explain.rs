//! Sentences that say what a rank waits for and who is missing.

use std::fmt::Write;

use fanin_control::proto::{InspectResponse, WorkerState, WorkerStatus};

use crate::session::Shared;
use crate::ticket::Collective;

/// Longest list of ranks that is written out.
const RANKS_SHOWN_MAX: usize = 16;

pub(crate) struct Explainer<'a> {
    shared: &'a Shared,
}

impl<'a> Explainer<'a> {
    pub fn new(shared: &'a Shared) -> Explainer<'a> {
        Explainer { shared }
    }

    /// `what`, with the rank, the job and the collective in progress.
    pub fn sentence(&self, what: &str) -> String {
        let mut text = format!("{}: {what}", self.who());
        let running = self.shared.lock().running.front().cloned();
        if let Some(collective) = running {
            let _ = write!(text, "; in progress: {}", name(&collective));
        }
        text
    }

    fn own_rank(&self) -> u32 {
        u32::from(self.shared.config.rank)
    }

    fn who(&self) -> String {
        let config = &self.shared.config;
        format!("rank {} of {} in job {:?}", config.rank, config.world_size, config.job_name)
    }

    /// Where a packet belongs.
    pub fn place(&self, lane: u16, chunk_index: u32, slot_index: Option<u16>, collective: Option<u64>) -> String {
        let mut text = match slot_index {
            Some(slot_index) => format!("chunk {chunk_index} (lane {lane}, slot {slot_index})"),
            None => format!("chunk {chunk_index} (lane {lane})"),
        };
        if let Some(sequence) = collective.map(|lane_sequence| self.shared.outer_sequence(lane_sequence)) {
            let state = self.shared.lock();
            match state.running.iter().find(|running| running.sequence == sequence) {
                Some(collective) => text += &format!(" of {}", name(collective)),
                None => text += &format!(" of collective #{sequence}"),
            }
        }
        text
    }

    /// Ranks call different collectives.
    pub fn mismatch(&self, place: &str, answer: Option<&InspectResponse>) -> String {
        let mut text = format!(
            "{}: the ranks do not call the same collectives in the same order: {place} does not match what other \
             ranks contributed",
            self.who()
        );
        self.add_others(&mut text, answer);
        text += ". Every rank must call the same collective with the same size, data type and operator";
        text
    }

    /// Ranks that do not come to [`crate::Session::admit`].
    pub fn boundary(&self, answer: Option<&InspectResponse>) -> String {
        let waited = self.shared.config.collective_timeout.as_secs_f64();
        let mut text = format!("{}: admit() has waited for {waited:.1} s", self.who());
        let workers = answer.and_then(|answer| answer.job.as_ref()).map(|job| &job.workers[..]);
        let Some(workers) = workers else { return text + "; the switch does not answer: check that it runs" };
        let is_elsewhere = |worker: &&WorkerStatus| {
            let is_here = matches!(worker.state(), WorkerState::Joined | WorkerState::Attached);
            is_here && worker.last_report.as_ref().is_none_or(|report| report.boundary.is_none())
        };
        let elsewhere: Vec<u32> = workers.iter().filter(is_elsewhere).map(|worker| worker.rank).collect();
        match elsewhere[..] {
            [] => text += ": all ranks are there, and the switch has not answered",
            _ => {
                let _ = write!(text, ": ranks {elsewhere:?} have not called it. Every rank must, at the same place");
            }
        }
        text
    }

    /// A collective that did not complete in time.
    pub fn timeout(&self, collective: &Collective, answer: Option<&InspectResponse>) -> String {
        let mut text = format!(
            "{}: {} timed out after {:.1} s with {} done",
            self.who(),
            name(collective),
            self.shared.config.collective_timeout.as_secs_f64(),
            collective.progress()
        );
        self.add_own_oldest(&mut text);
        match answer {
            None => text += "; the switch does not answer: check that it runs and can be reached",
            // Without packets of its own this rank waits for what the others do.
            Some(answer) if !self.shared.place.contributes() => self.add_others(&mut text, Some(answer)),
            Some(answer) => self.add_switch_view(&mut text, answer),
        }
        text
    }

    fn add_own_oldest(&self, text: &mut String) {
        let lanes = self.shared.lanes.iter().enumerate();
        let waiting = lanes.filter_map(|(lane, handle)| Some((lane, handle.read_stats().outstanding?)));
        for (lane, oldest) in waiting {
            let count = oldest.outstanding_count.map(|count| format!("{count} chunks, first ")).unwrap_or_default();
            let slot =
                oldest.slot.map(|(index, parity)| format!("slot {index}, parity {parity}, ")).unwrap_or_default();
            let _ = write!(
                text,
                "; lane {lane} waits for {count}chunk {} ({slot}sent {} times)",
                oldest.chunk_index, oldest.attempt_count
            );
        }
    }

    fn add_switch_view(&self, text: &mut String, answer: &InspectResponse) {
        let mut named = false;
        let mut waiting = answer.lanes.iter().filter_map(|lane| lane.oldest_incomplete.as_ref());
        let own_missing = waiting.any(|slot| slot.missing_ranks.contains(&self.own_rank()));
        for lane in &answer.lanes {
            let Some(slot) = &lane.oldest_incomplete else { continue };
            named = true;
            let (at, place) = match self.shared.admission.assignment.atp {
                Some(_) => ("parameter server", String::new()),
                None => ("switch", format!(", slot {}, parity {}", slot.slot_index, slot.slot_parity)),
            };
            let _ = write!(
                text,
                "; at the {at} chunk {} (lane {}{place}) lacks the contribution of {}",
                slot.chunk_index,
                lane.lane,
                ranks(&slot.missing_ranks)
            );
        }
        for remark in answer.lanes.iter().flat_map(|lane| &lane.remarks) {
            named = true;
            let _ = write!(text, "; {remark}");
        }
        // The switch waits for what this rank has sent, or for nothing: then
        // the other ranks are not to blame.
        if !named || own_missing {
            *text += "; so packets are lost between the switch and this rank: check for a firewall or a failing link";
        }
        self.add_others(text, Some(answer));
    }

    /// What the other ranks last said they do.
    fn add_others(&self, text: &mut String, answer: Option<&InspectResponse>) {
        let Some(job) = answer.and_then(|answer| answer.job.as_ref()) else { return };
        let own = self.own_rank();
        for worker in job.workers.iter().filter(|worker| worker.rank != own).take(RANKS_SHOWN_MAX) {
            let _ = write!(text, "; rank {} {}", worker.rank, activity(worker));
        }
    }
}

fn activity(worker: &WorkerStatus) -> String {
    match worker.state() {
        WorkerState::Lost => return "is lost".into(),
        WorkerState::Left => return "has left".into(),
        WorkerState::Joining | WorkerState::Joined => return "has joined but not started".into(),
        _ => {}
    }
    match worker.last_report.as_ref().and_then(|report| report.collective.as_ref()) {
        None => "is in no collective".into(),
        Some(collective) => format!("is in #{} ({})", collective.sequence, collective.description),
    }
}

fn name(collective: &Collective) -> String {
    format!("collective #{} ({})", collective.sequence, collective.description)
}

fn ranks(missing: &[u32]) -> String {
    let shown: Vec<String> = missing.iter().take(RANKS_SHOWN_MAX).map(u32::to_string).collect();
    let more = missing.len().saturating_sub(RANKS_SHOWN_MAX);
    let list = shown.join(", ");
    match (missing.len(), more) {
        (1, _) => format!("rank {list}"),
        (_, 0) => format!("ranks {list}"),
        _ => format!("ranks {list} and {more} more"),
    }
}
