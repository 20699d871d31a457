//! A place in the order of collectives where all ranks meet, and where others can take lost ranks' places (ATP App. A.3).

use std::time::{Duration, Instant};

use fanin_control::proto;
use fanin_control::registry::{Assignment, AtpAssignment, Boundary};
use fanin_protocol::atp::SetUp;
use fanin_server::ServedJob;

use crate::config::OnPeerLoss;
use crate::lane::{Command, Trouble};
use crate::session::{Session, Shared};
use crate::{Error, ErrorKind};

/// How often a rank that waits looks whether its caller was interrupted.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Where this rank waits for the others.
pub(crate) struct AtBoundary {
    place: Boundary,
    /// Since this call, or since all ranks are here.
    pub since: Instant,
    /// From `since` on, beside the time for a collective: this rank's own wait, or that of the most patient one.
    pub patience: Duration,
    /// For replacements, once all are here: what this rank asks for.
    wait: Duration,
    /// All collectives before it have their results.
    is_reached: bool,
    /// Who has come, once the switch has said so.
    admitted: Option<Vec<u16>>,
}

impl AtBoundary {
    /// For the switch, once it is reached.
    pub fn to_proto(&self) -> Option<proto::Boundary> {
        let wait_ms = self.wait.as_millis().try_into().unwrap_or(u64::MAX);
        self.is_reached.then(|| self.place.to_proto(wait_ms))
    }
}

impl Session {
    /// Lets replacements take the places of lost ranks. All ranks call this at the same place in the order of their collectives;
    /// it waits until they have, and until the results of all earlier collectives are there. If every lost rank has a
    /// replacement by then, or `wait` after the last rank has come (the longest of all ranks' `wait`), all go on together. Returns the
    /// ranks that were replaced, the same on every rank; a replacement has its own [`Session::connect`] return at this place.
    ///
    /// `is_interrupted` is asked ten times a second; if it says so, the session fails.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] in a job that does not go on without lost ranks; [`ErrorKind::TimedOut`] naming the ranks that did
    /// not call it within `collective_timeout` and `wait`; [`ErrorKind::Mismatch`] if ranks call it at different places.
    pub fn admit(&self, wait: Duration, is_interrupted: &dyn Fn() -> bool) -> Result<Vec<u16>, Error> {
        let shared = &self.shared;
        if shared.config.on_peer_loss != OnPeerLoss::Continue {
            let why =
                "nobody can take a lost rank's place in this job: use the algorithm atp and on_peer_loss `continue`";
            return Err(Error::new(ErrorKind::Invalid, why));
        }
        shared.begin_boundary(wait)?;
        loop {
            if let Some(ranks) = shared.wait_at_boundary()? {
                return Ok(ranks);
            }
            if is_interrupted() {
                self.abort("interrupted in admit()");
            }
        }
    }
}

impl Shared {
    fn begin_boundary(&self, wait: Duration) -> Result<(), Error> {
        let mut state = self.lock();
        if let Some(error) = &state.failure {
            return Err(error.clone());
        }
        if state.boundary.is_some() {
            return Err(Error::new(ErrorKind::Invalid, "another thread is in admit()"));
        }
        let place = Boundary { sequence: state.sequence_next, chunks: state.chunks.clone() };
        state.sequence_next += 1;
        let since = Instant::now();
        state.boundary = Some(AtBoundary { place, since, patience: wait, wait, is_reached: false, admitted: None });
        Ok(())
    }

    /// A turn of waiting: for the collectives before, then for the switch's word.
    fn wait_at_boundary(&self) -> Result<Option<Vec<u16>>, Error> {
        let state = self.lock();
        let is_waiting = |state: &mut crate::session::State| {
            let is_ready = |at: &AtBoundary| at.admitted.is_some() || !at.is_reached && state.running.is_empty();
            state.failure.is_none() && !state.boundary.as_ref().is_some_and(is_ready)
        };
        let waited = self.changed.wait_timeout_while(state, LOOK_EVERY, is_waiting);
        let (mut state, _) = waited.unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(error) = &state.failure {
            let error = error.clone();
            state.boundary = None;
            return Err(error);
        }
        if let Some(ranks) = state.boundary.as_mut().and_then(|at| at.admitted.take()) {
            state.boundary = None;
            return Ok(Some(ranks));
        }
        let is_over = state.running.is_empty();
        if let Some(at) = state.boundary.as_mut().filter(|at| is_over && !at.is_reached) {
            at.is_reached = true;
            drop(state);
            // The watcher outlives the session's calls.
            let _ = self.trouble.send(Trouble::AtBoundary);
        }
        Ok(None)
    }

    /// All ranks are here, and the switch lets them go on after `wait` at the latest, which may be another rank's.
    pub fn wait_at_reached(&self, sequence: u64, wait: Duration) {
        if let Some(at) = self.lock().boundary.as_mut().filter(|at| at.place.sequence == sequence) {
            (at.since, at.patience) = (Instant::now(), wait);
        }
    }

    /// The switch has said who has come.
    pub fn leave_boundary(&self, sequence: u64, ranks: Vec<u16>) {
        if let Some(at) = self.lock().boundary.as_mut().filter(|at| at.place.sequence == sequence) {
            at.admitted = Some(ranks);
        }
        self.changed.notify_all();
    }

    /// The job goes on in another tree: this rank's server first, then its lanes.
    pub fn go_on_in(&self, packet_token: u32, atp: Option<&AtpAssignment>, has_newcomer: bool) -> Result<(), Error> {
        let impossible = "the switch has set the job up again in an impossible tree";
        let atp = atp.ok_or_else(|| Error::new(ErrorKind::Control, impossible))?;
        if self.lock().packet_token == packet_token {
            return Ok(());
        }
        let job = &self.admission.assignment;
        let assignment = Assignment { job_token: packet_token, atp: Some(atp.clone()), ..job.clone() };
        let served = ServedJob::of_rank(&assignment, self.config.rank);
        if let (Some(server), Some(job)) = (&self.server, served) {
            server.serve(&job).map_err(|error| Error::new(ErrorKind::Network, error.to_string()))?;
        }
        {
            let mut state = self.lock();
            (state.packet_token, state.lost_ranks) = (packet_token, lost_ranks(atp));
        }
        let set_up = SetUp {
            job_token: packet_token,
            way: *atp.tree.way(self.place.host),
            level_count: atp.tree.level_count(),
            lost_count: atp.tree.lost().count(),
            has_newcomer,
        };
        self.lanes.iter().for_each(|lane| lane.tell(Command::SetUpAgain(set_up)));
        Ok(())
    }
}

/// Ranks that a job goes on without.
pub(crate) fn lost_ranks(atp: &AtpAssignment) -> Vec<u16> {
    (0..atp.tree.worker_count()).filter(|&rank| atp.tree.lost().contains(rank)).collect()
}
