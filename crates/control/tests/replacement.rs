//! Somebody in place of a lost rank: who is told what, and when.

mod support;

use fanin_control::proto::{Absences, BoundaryReached, JoinRequest, LeaveRequest, Report, WorkerState, notice};
use fanin_control::registry::{Assignment, Boundary, Registry, Ticket};
use fanin_control::{Algorithm, ControlError, ErrorCode};
use support::{attach_all, join, leave, registry, report, request, settle};

const WORLD_SIZE: u32 = 3;

fn going_on(rank: u32) -> JoinRequest {
    JoinRequest {
        algorithm: Algorithm::Atp.into(),
        absences: Some(Absences { goes_on: true, stragglers: None }),
        ..request("j", rank, WORLD_SIZE)
    }
}

/// A job of three with a server of its own, and the tickets of its ranks.
fn joined() -> (Registry, Assignment, Vec<Ticket>) {
    let mut registry = registry();
    registry.server_attached(1, vec!["127.0.0.1:4000".parse().unwrap()]);
    let tickets = (0..WORLD_SIZE).map(|rank| join(&mut registry, 0, going_on(rank)).expect("there is room")).collect();
    let job = settle(&mut registry, 0).installed.pop().expect("complete");
    (registry, job, tickets)
}

/// The same, all attached.
fn running_with_tickets() -> (Registry, Assignment, Vec<Ticket>) {
    let (mut registry, job, tickets) = joined();
    attach_all(&mut registry, 0, &job);
    (registry, job, tickets)
}

fn running() -> (Registry, Assignment) {
    let (registry, job, _) = running_with_tickets();
    (registry, job)
}

fn replace(registry: &mut Registry, now_ms: u64, rank: u32) -> Result<Ticket, ControlError> {
    join(registry, now_ms, JoinRequest { replace: true, ..going_on(rank) })
}

fn at_boundary(registry: &mut Registry, now_ms: u64, job: &Assignment, rank: u32, sequence: u64, wait_ms: u64) {
    let boundary = Boundary { sequence, chunks: vec![5 * sequence, 3] }.to_proto(wait_ms);
    let report = Report { boundary: Some(boundary), ..report(job, rank) };
    registry.report(now_ms, report, rank.into()).expect("it is attached");
}

/// Lets a replacement of rank 2 in, which is lost already. Returns its membership.
fn replaced(registry: &mut Registry, now_ms: u64, job: &Assignment) -> u64 {
    let ticket = replace(registry, now_ms, 2).expect("its place is free");
    (0..2).for_each(|rank| at_boundary(registry, now_ms, job, rank, 9, 0));
    assert_eq!(settle(registry, now_ms).admitted[0].0, ticket);
    ticket.0
}

/// What each rank was told about boundaries: who is replaced.
fn admitted(outcome: &support::Outcome) -> Vec<(u16, Vec<u32>)> {
    let told = |(rank, notice): &(u16, notice::Kind)| match notice {
        notice::Kind::Admitted(admitted) => Some((*rank, admitted.ranks.clone())),
        _ => None,
    };
    outcome.notices.iter().filter_map(told).collect()
}

#[test]
fn a_replacement_begins_where_the_others_meet() {
    let (mut registry, job) = running();
    registry.stream_closed(10, job.job_id, 2, 2);
    let without = settle(&mut registry, 10).installed.pop().expect("set up again");
    let ticket = replace(&mut registry, 20, 2).expect("its place is free");
    at_boundary(&mut registry, 30, &job, 0, 9, 1000);
    assert!(settle(&mut registry, 30).admitted.is_empty(), "rank 1 is elsewhere");
    let status = registry.status(job.job_id, 30).unwrap();
    assert_eq!(status.replacements.iter().map(|worker| worker.rank).collect::<Vec<_>>(), [2]);
    at_boundary(&mut registry, 40, &job, 1, 9, 0);
    let outcome = settle(&mut registry, 40);
    assert_eq!(admitted(&outcome), [(0, vec![2]), (1, vec![2])]);
    let (answered, assignment) = &outcome.admitted[0];
    assert_eq!((*answered, assignment.job_token), (ticket, job.job_token), "reports keep the job's token");
    let resumed = assignment.resumed.as_ref().expect("a replacement");
    assert_eq!(resumed.boundary, Boundary { sequence: 9, chunks: vec![45, 3] });
    let tokens = [job.job_token, without.job_token, resumed.packet_token];
    assert!(tokens[0] != tokens[1] && tokens[1] != tokens[2] && tokens[0] != tokens[2], "{tokens:?}");
    let tree = &assignment.atp.as_ref().unwrap().tree;
    assert_eq!((tree.left_count(), tree.worker_count()), (3, 3));
    // Its stream opens like any other's, and old reports about the boundary change nothing.
    registry.attach(50, &Report { membership: ticket.0, ..report(&job, 2) }, 7).expect("it is a member");
    at_boundary(&mut registry, 60, &job, 0, 9, 1000);
    assert!(admitted(&settle(&mut registry, 60)).is_empty());
}

#[test]
fn ranks_wait_for_replacements_as_long_as_the_most_patient() {
    let (mut registry, job) = running();
    registry.stream_closed(10, job.job_id, 2, 2);
    settle(&mut registry, 10);
    at_boundary(&mut registry, 20, &job, 0, 4, 0);
    at_boundary(&mut registry, 20, &job, 1, 4, 500);
    let told = settle(&mut registry, 20);
    assert!(admitted(&told).is_empty());
    let reached = notice::Kind::BoundaryReached(BoundaryReached { sequence: 4, wait_ms: 500 });
    assert_eq!(told.notices, [(0, reached.clone()), (1, reached)], "nobody gives up before");
    at_boundary(&mut registry, 30, &job, 0, 4, 0);
    assert!(settle(&mut registry, 30).notices.is_empty(), "said once");
    assert!(registry.next_expiry_ms().is_some_and(|at_ms| at_ms <= 520));
    registry.expire(519);
    assert!(admitted(&settle(&mut registry, 519)).is_empty());
    registry.expire(520);
    assert_eq!(admitted(&settle(&mut registry, 520)), [(0, vec![]), (1, vec![])]);
    // The next boundary, with somebody there.
    replace(&mut registry, 600, 2).unwrap();
    (0..2).for_each(|rank| at_boundary(&mut registry, 610, &job, rank, 5, 0));
    assert_eq!(admitted(&settle(&mut registry, 610)), [(0, vec![2]), (1, vec![2])]);
}

#[test]
fn a_rank_that_is_lost_at_the_boundary_does_not_hold_it_up() {
    let (mut registry, job) = running();
    registry.stream_closed(10, job.job_id, 2, 2);
    settle(&mut registry, 10);
    replace(&mut registry, 15, 2).unwrap();
    at_boundary(&mut registry, 20, &job, 0, 4, 0);
    settle(&mut registry, 20);
    registry.stream_closed(30, job.job_id, 1, 1);
    let outcome = settle(&mut registry, 30);
    let left = &outcome.admitted[0].1.atp.as_ref().unwrap().tree;
    assert_eq!(left.left_count(), 2, "rank 0 and the replacement go on");
    assert_eq!(admitted(&outcome), [(0, vec![2])]);
}

#[test]
fn a_replacement_that_gives_up_on_the_way_is_lost_again() {
    let (mut registry, job) = running();
    registry.stream_closed(10, job.job_id, 2, 2);
    settle(&mut registry, 10);
    let ticket = replace(&mut registry, 15, 2).unwrap();
    (0..2).for_each(|rank| at_boundary(&mut registry, 20, &job, rank, 4, 0));
    // The data plane has not answered yet.
    registry.cancel(21, ticket);
    let outcome = settle(&mut registry, 22);
    assert!(outcome.admitted.is_empty());
    assert_eq!(admitted(&outcome), [(0, vec![]), (1, vec![])], "both go on, without it");
    let set_up = outcome.notices.iter().filter(|(_, notice)| matches!(notice, notice::Kind::SetUpAgain(_))).count();
    assert_eq!(set_up, 2, "and know the tree");
}

/// Rank 2 is lost, and the others wait for a replacement until 520.
fn waiting_at_boundary() -> (Registry, Assignment) {
    let (mut registry, job) = running();
    registry.stream_closed(10, job.job_id, 2, 2);
    settle(&mut registry, 10);
    (0..2).for_each(|rank| at_boundary(&mut registry, 20, &job, rank, 4, 500));
    settle(&mut registry, 20);
    assert_eq!(registry.next_expiry_ms(), Some(520));
    (registry, job)
}

#[test]
fn the_clock_sleeps_after_the_end_of_a_boundary_in_a_broken_job() {
    let (mut registry, _) = waiting_at_boundary();
    registry.server_detached(30, 1, "gone");
    settle(&mut registry, 30);
    registry.expire(600);
    assert!(admitted(&settle(&mut registry, 600)).is_empty());
    assert!(registry.next_expiry_ms().is_some_and(|at_ms| at_ms > 600), "{:?}", registry.next_expiry_ms());
}

#[test]
fn the_clock_sleeps_while_a_job_at_a_boundary_is_set_up_again() {
    let (mut registry, job) = waiting_at_boundary();
    registry.stream_closed(30, job.job_id, 1, 1);
    // The data plane takes its time.
    registry.expire(600);
    assert!(registry.next_expiry_ms().is_some_and(|at_ms| at_ms > 600), "{:?}", registry.next_expiry_ms());
    // The boundary's time is over then.
    assert_eq!(admitted(&settle(&mut registry, 600)), [(0, vec![])]);
}

/// A host that has stalled wakes when its rank has another process.
#[test]
fn a_process_that_was_replaced_changes_nothing() {
    let (mut registry, job, tickets) = running_with_tickets();
    (1..=2).for_each(|at| (0..2).for_each(|rank| registry.report(at * 900, report(&job, rank), rank.into()).unwrap()));
    registry.expire(1800);
    settle(&mut registry, 1800);
    let membership = replaced(&mut registry, 1810, &job);
    // It has said so since it joined; a worker of an older release has not.
    for old in [tickets[2].0, 0] {
        for is_attached in [false, true] {
            if is_attached {
                registry.attach(1820, &Report { membership, ..report(&job, 2) }, 7).expect("it is the rank");
                settle(&mut registry, 1820);
            }
            let late = Report { membership: old, ..report(&job, 2) };
            let late_leave = LeaveRequest { membership: old, ..leave(&job, 2) };
            let errors = [
                registry.leave(&late_leave).unwrap_err(),
                registry.attach(1830, &late, 8).unwrap_err(),
                registry.report(1830, late.clone(), 2).unwrap_err(),
            ];
            for error in errors {
                assert_eq!(error.code, ErrorCode::JobBroken);
                assert!(error.message.contains("rank 2 was declared lost and replaced"), "{error}");
            }
            registry.stream_closed(1830, job.job_id, 2, 2);
            let outcome = settle(&mut registry, 1830);
            assert!(outcome.notices.is_empty() && outcome.closed.is_empty(), "nobody is told: {outcome:?}");
        }
        registry.report(1840, Report { membership, ..report(&job, 2) }, 7).expect("its stream is as it was");
    }
    let status = registry.status(job.job_id, 1840).unwrap();
    assert_eq!(status.workers[2].state(), WorkerState::Attached);
    // Its own leave is one.
    registry.leave(&LeaveRequest { membership, ..leave(&job, 2) }).unwrap();
    assert_eq!(settle(&mut registry, 1850).closed, [2]);
}

/// It has joined and been lost before its stream opened.
#[test]
fn a_late_attach_does_not_take_over_a_replacement() {
    let (mut registry, job, tickets) = joined();
    for rank in 0..2 {
        registry.attach(0, &report(&job, rank), rank.into()).unwrap();
    }
    registry.report(900, report(&job, 0), 0).unwrap();
    registry.report(900, report(&job, 1), 1).unwrap();
    registry.expire(1000);
    settle(&mut registry, 1000);
    let membership = replaced(&mut registry, 1010, &job);
    let late = Report { membership: tickets[2].0, ..report(&job, 2) };
    assert!(registry.attach(1020, &late, 2).unwrap_err().message.contains("was declared lost and replaced"));
    registry.attach(1030, &Report { membership, ..report(&job, 2) }, 7).expect("its place is free");
}

#[test]
fn what_is_wrong_is_said() {
    let (mut registry, job) = running();
    let unlike = JoinRequest { replace: true, lane_count: 1, ..going_on(2) };
    assert_eq!(join(&mut registry, 0, unlike).unwrap_err().code, ErrorCode::RanksDisagree);
    let other_run = JoinRequest { replace: true, run_id: "run-2".into(), ..going_on(2) };
    assert!(join(&mut registry, 0, other_run).unwrap_err().message.contains("nobody to replace"));
    let small = JoinRequest { replace: true, element_count_max: 32, ..going_on(2) };
    assert!(join(&mut registry, 0, small).unwrap_err().message.contains("have up to 32"));
    replace(&mut registry, 0, 2).expect("its loss may not have been noticed yet");
    assert_eq!(replace(&mut registry, 0, 2).unwrap_err().code, ErrorCode::DuplicateRank);
    registry.expire(900);
    for (rank, at_ms) in
        [(0, 900), (1, 900), (2, 900), (0, 1800), (1, 1800), (2, 1800), (0, 2700), (1, 2700), (2, 2700)]
    {
        registry.report(at_ms, report(&job, rank), rank.into()).unwrap();
    }
    registry.expire(3000);
    let refused = settle(&mut registry, 3000).refused;
    assert_eq!(refused[0].1.code, ErrorCode::DuplicateRank, "the rank is still there: {}", refused[0].1);
    registry.stream_closed(3100, job.job_id, 2, 2);
    settle(&mut registry, 3100);
    at_boundary(&mut registry, 3200, &job, 0, 4, 0);
    at_boundary(&mut registry, 3200, &job, 1, 6, 0);
    let told = settle(&mut registry, 3200).notices;
    let wrong = |(_, notice): &(u16, notice::Kind)| matches!(notice, notice::Kind::Admitted(admitted) if admitted.error.contains("#4") && admitted.error.contains("#6"));
    assert_eq!(told.iter().filter(|told| wrong(told)).count(), 2, "{told:?}");
}

#[test]
fn a_job_that_ends_with_a_lost_rank_takes_nobody() {
    let mut registry = registry();
    support::run_job(&mut registry, 0, "j", 2);
    let ask = JoinRequest { replace: true, ..request("j", 1, 2) };
    let error = join(&mut registry, 0, ask).unwrap_err();
    assert!(error.message.contains("ends with a lost rank"), "{error}");
}

#[test]
fn replacements_are_answered_when_the_job_ends() {
    let (mut registry, job) = running();
    registry.stream_closed(10, job.job_id, 2, 2);
    replace(&mut registry, 15, 2).unwrap();
    registry.server_detached(20, 1, "gone");
    let refused = settle(&mut registry, 20).refused;
    assert_eq!(refused[0].1.code, ErrorCode::StaleRun);
    assert!(refused[0].1.message.contains("parameter server"), "{}", refused[0].1);
}
