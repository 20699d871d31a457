//! The registry, one story per test.

mod support;

use fanin_control::ErrorCode;
use fanin_control::proto::{JobState, LeaveRequest, LossReason, RemovalReason, notice};
use fanin_control::registry::{JoinAsk, Limits, Registry};
use fanin_control::tenants::Tenant;
use support::{WORKER, attach_all, join, leave, limits, registry, report, request, run_job, settle, tenant};

#[test]
fn the_last_rank_completes_the_job_and_all_get_the_same_answer() {
    let mut registry = registry();
    for rank in [2, 0, 1] {
        join(&mut registry, 0, request("j", rank, 4)).unwrap();
        assert!(settle(&mut registry, 0).installed.is_empty(), "rank {rank} is not the last");
    }
    join(&mut registry, 5, request("j", 3, 4)).unwrap();
    let outcome = settle(&mut registry, 5);
    assert_eq!(outcome.installed.len(), 1);
    assert_eq!(outcome.admitted.len(), 4);
    assert!(outcome.admitted.iter().all(|(_, assignment)| *assignment == outcome.installed[0]));
}

#[test]
fn ranks_agree_on_the_least_and_the_rest_is_freed() {
    let mut registry = registry();
    let mut big = request("j", 0, 2);
    (big.slots_per_lane_wanted, big.element_count_max) = (64, 512);
    join(&mut registry, 0, big).unwrap();
    let reserved = registry.capacity().slot_memory_bytes_free;
    let mut small = request("j", 1, 2);
    (small.slots_per_lane_wanted, small.element_count_max) = (9, 100);
    join(&mut registry, 0, small).unwrap();
    let assignment = settle(&mut registry, 0).installed.pop().unwrap();
    assert_eq!((assignment.slots_per_lane, assignment.element_count_max), (16, 100), "9 is rounded up to 16");
    assert!(registry.capacity().slot_memory_bytes_free > reserved);
}

#[test]
fn a_missing_rank_is_named_at_the_deadline_and_not_before() {
    let mut registry = registry();
    for rank in [0, 1, 3] {
        join(&mut registry, 0, request("j", rank, 4)).unwrap();
    }
    assert_eq!(registry.next_expiry_ms(), Some(3000));
    registry.expire(2999);
    assert!(settle(&mut registry, 2999).refused.is_empty());
    registry.expire(3000);
    let refused = settle(&mut registry, 3000).refused;
    assert_eq!(refused.len(), 3);
    for (_, error) in refused {
        assert_eq!((error.code, error.missing_ranks.as_slice()), (ErrorCode::MissingRanks, &[2][..]));
        assert!(error.message.contains("rank 2"), "{error}");
    }
    assert!(registry.is_idle(), "the reserved slots are free again");
}

#[test]
fn different_run_ids_are_named_as_the_cause() {
    let mut registry = registry();
    join(&mut registry, 0, request("j", 0, 2)).unwrap();
    let mut other = request("j", 1, 2);
    other.run_id = "run-2".into();
    other.wait_ms = 9000;
    join(&mut registry, 0, other).unwrap();
    registry.expire(3000);
    let (_, error) = settle(&mut registry, 3000).refused.pop().unwrap();
    assert!(error.hint.contains("run-2") && error.hint.contains("run-1"), "{error}");
}

#[test]
fn disagreement_names_both_ranks_and_values_and_refuses_all() {
    type Change = fn(&mut fanin_control::proto::JoinRequest);
    let changes: [(&str, Change, &str, &str); 3] = [
        ("world_size", |ask| ask.world_size = 4, "rank 0 says 3", "rank 1 says 4"),
        ("lane_count", |ask| ask.lane_count = 4, "rank 0 says 2", "rank 1 says 4"),
        ("wire_format", |ask| ask.wire_format = 2, "rank 0 says fanin v1", "rank 1 says p4app-switchML"),
    ];
    for (field, change, ours, theirs) in changes {
        let mut registry = registry();
        join(&mut registry, 0, request("j", 0, 3)).unwrap();
        let mut ask = request("j", 1, 3);
        change(&mut ask);
        let error = join(&mut registry, 0, ask).unwrap_err();
        assert_eq!(error.code, ErrorCode::RanksDisagree);
        for part in [field, ours, theirs] {
            assert!(error.message.contains(part), "`{part}` in `{error}`");
        }
        assert_eq!(settle(&mut registry, 0).refused[0].1, error, "the waiting rank hears the same at once");
        assert!(registry.is_idle());
    }
}

#[test]
fn a_rank_claimed_twice_is_refused_and_named_when_another_is_missing() {
    let mut registry = registry();
    join(&mut registry, 0, request("j", 1, 2)).unwrap();
    let error = join(&mut registry, 0, request("j", 1, 2)).unwrap_err();
    assert_eq!(error.code, ErrorCode::DuplicateRank);
    assert!(error.message.contains("host1/1"), "{error}");
    registry.expire(3000);
    let (_, error) = settle(&mut registry, 3000).refused.pop().unwrap();
    assert!(error.hint.contains("claimed rank 1"), "{error}");
}

#[test]
fn a_worker_of_an_ended_run_is_told_so() {
    let mut registry = registry();
    let assignment = run_job(&mut registry, 0, "j", 2);
    let duplicate = join(&mut registry, 0, request("j", 0, 2)).unwrap_err();
    assert_eq!(duplicate.code, ErrorCode::DuplicateRank, "while the run is alive");
    for rank in 0..2 {
        registry.leave(&leave(&assignment, rank)).unwrap();
    }
    assert_eq!(join(&mut registry, 0, request("j", 0, 2)).unwrap_err().code, ErrorCode::StaleRun);
    assert_eq!(registry.report(0, report(&assignment, 0), 0).unwrap_err().code, ErrorCode::UnknownJob);
}

#[test]
fn bad_requests_name_field_value_and_bounds() {
    type Change = fn(&mut fanin_control::proto::JoinRequest);
    let changes: [(&str, Change); 9] = [
        ("world_size is 0", |ask| ask.world_size = 0),
        ("world_size is 257", |ask| ask.world_size = 257),
        ("rank is 2", |ask| ask.rank = 2),
        ("lane_count is 0", |ask| ask.lane_count = 0),
        ("element_count_max is 0", |ask| ask.element_count_max = 0),
        ("slots_per_lane_wanted is 16385", |ask| ask.slots_per_lane_wanted = 16385),
        ("wire format number 9", |ask| ask.wire_format = 9),
        ("job_name has 0 bytes", |ask| ask.job_name.clear()),
        ("element_count_max is 100", |ask| (ask.wire_format, ask.element_count_max) = (2, 100)),
    ];
    for (part, change) in changes {
        let mut ask = request("j", 0, 2);
        change(&mut ask);
        let error = JoinAsk::check(ask, &limits(), WORKER).unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidRequest);
        assert!(error.message.contains(part) && !error.hint.is_empty(), "`{part}` in `{error}`");
    }
    let mut old = request("j", 0, 2);
    old.protocol_version = 7;
    assert_eq!(JoinAsk::check(old, &limits(), WORKER).unwrap_err().code, ErrorCode::VersionMismatch);
}

#[test]
fn a_full_switch_says_what_is_free_and_who_uses_it() {
    let mut registry = registry();
    let mut big = request("big", 0, 1);
    big.slots_per_lane_wanted = 256; // 2 lanes × 256 slots × 2 × 256 × 4 B = 1 MiB: all there is
    join(&mut registry, 0, big).unwrap();
    settle(&mut registry, 0);
    let error = join(&mut registry, 0, request("late", 0, 1)).unwrap_err();
    assert_eq!(error.code, ErrorCode::SwitchFull);
    assert!(error.message.contains("`big` 1.0 MiB") && error.message.contains("0 B of 1.0 MiB"), "{error}");
    let capacity = error.capacity.unwrap();
    assert_eq!((capacity.slot_memory_bytes_free, capacity.users[0].job_name.as_str()), (0, "big"));
    assert_eq!(capacity.slot_memory_bytes_wanted, 2 * 16 * 2 * 256 * 4);
}

#[test]
fn a_job_that_leaves_the_choice_gets_what_fits() {
    let mut registry = registry();
    let mut filler = request("filler", 0, 1);
    (filler.slots_per_lane_wanted, filler.lane_count) = (64, 7); // 7/8 of 512 KiB … 128 KiB + 512 KiB left
    join(&mut registry, 0, filler).unwrap();
    settle(&mut registry, 0);
    let free = registry.capacity().slot_memory_bytes_free;
    let mut flexible = request("flexible", 0, 1);
    flexible.slots_per_lane_wanted = 0;
    join(&mut registry, 0, flexible).unwrap();
    let assignment = settle(&mut registry, 0).installed.pop().unwrap();
    assert_eq!(assignment.slots_per_lane, 32, "the default 128 does not fit into {free} bytes");
}

#[test]
fn the_job_limit_is_kept() {
    let mut registry = Registry::new(Limits { job_count_max: 2, ..limits() }, support::counting_entropy());
    for name in ["a", "b"] {
        run_job(&mut registry, 0, name, 1);
    }
    let error = join(&mut registry, 0, request("c", 0, 1)).unwrap_err();
    assert_eq!(error.code, ErrorCode::SwitchFull);
    assert!(error.message.contains("2 of 2 jobs"), "{error}");
}

#[test]
fn a_quota_binds_its_tenant_only() {
    let mut registry = registry();
    let small = Tenant { slot_memory_bytes_max: 32 << 10, job_count_max: 9, ..tenant("small") };
    let ask = |name: &str| JoinAsk::check(request(name, 0, 1), &limits(), WORKER).unwrap(); // 64 KiB
    let error = registry.join(0, &small, ask("a")).unwrap_err();
    assert_eq!(error.code, ErrorCode::QuotaExceeded);
    assert_eq!(error.capacity.unwrap().slot_memory_bytes_total, 32 << 10);
    let one_job = Tenant { job_count_max: 1, ..tenant("one") };
    registry.join(0, &one_job, ask("a")).unwrap();
    assert_eq!(registry.join(0, &one_job, ask("b")).unwrap_err().code, ErrorCode::QuotaExceeded);
    registry.join(0, &tenant("other"), ask("b")).unwrap();
}

#[test]
fn tenants_do_not_share_job_names() {
    let mut registry = registry();
    let ask = |rank| JoinAsk::check(request("j", rank, 2), &limits(), WORKER).unwrap();
    registry.join(0, &tenant("a"), ask(0)).unwrap();
    registry.join(0, &tenant("b"), ask(1)).unwrap();
    assert!(settle(&mut registry, 0).installed.is_empty());
}

#[test]
fn a_closed_stream_breaks_the_job_and_tells_the_others_why() {
    let mut registry = registry();
    let assignment = run_job(&mut registry, 0, "j", 3);
    attach_all(&mut registry, 0, &assignment);
    registry.stream_closed(10, assignment.job_id, 1, 1);
    let notices = settle(&mut registry, 10).notices;
    assert_eq!(notices.iter().map(|(rank, _)| *rank).collect::<Vec<_>>(), [0, 2]);
    for (_, notice) in notices {
        let notice::Kind::PeerLost(lost) = notice else { panic!("{notice:?}") };
        assert_eq!((lost.rank, lost.reason()), (1, LossReason::StreamClosed));
    }
    let status = registry.status(assignment.job_id, 10).unwrap();
    assert_eq!(status.state(), JobState::Broken);
    assert!(status.broken_reason.contains("rank 1 (host1/1)"), "{}", status.broken_reason);
}

#[test]
fn an_older_stream_that_ends_late_does_not_end_its_successor() {
    let mut registry = registry();
    let assignment = run_job(&mut registry, 0, "j", 1);
    registry.attach(0, &report(&assignment, 0), 7).unwrap();
    registry.attach(1, &report(&assignment, 0), 8).unwrap();
    registry.stream_closed(2, assignment.job_id, 0, 7);
    assert_eq!(registry.status(assignment.job_id, 2).unwrap().state(), JobState::Running);
    registry.report(3, report(&assignment, 0), 8).unwrap();
    assert!(registry.report(3, report(&assignment, 0), 7).is_err());
}

#[test]
fn a_silent_worker_is_lost_after_its_lease_and_reports_renew_it() {
    let mut registry = registry();
    let assignment = run_job(&mut registry, 0, "j", 2);
    attach_all(&mut registry, 0, &assignment);
    registry.report(900, report(&assignment, 0), 0).unwrap();
    registry.expire(999);
    assert!(settle(&mut registry, 999).notices.is_empty());
    registry.expire(1000);
    let outcome = settle(&mut registry, 1000);
    let (receiver, notice::Kind::PeerLost(lost)) = &outcome.notices[0] else { panic!("{outcome:?}") };
    assert_eq!((*receiver, lost.rank, lost.reason()), (0, 1, LossReason::LeaseExpired));
    assert_eq!(outcome.closed, [1], "the silent stream is ended");
}

#[test]
fn a_worker_that_never_attaches_is_lost_too_and_everything_is_freed() {
    let mut registry = registry();
    let assignment = run_job(&mut registry, 0, "j", 2);
    registry.expire(1000);
    assert_eq!(settle(&mut registry, 1000).removed, [assignment.job_id]);
    assert!(registry.is_idle());
    assert_eq!(registry.capacity().slot_memory_bytes_free, limits().slot_memory_bytes);
}

#[test]
fn a_broken_job_is_kept_for_questions_and_then_removed() {
    let mut registry = registry();
    let assignment = run_job(&mut registry, 0, "j", 2);
    attach_all(&mut registry, 0, &assignment);
    registry.stream_closed(0, assignment.job_id, 1, 1);
    for now_ms in (500..5000).step_by(500) {
        registry.report(now_ms, report(&assignment, 0), 0).unwrap();
        registry.expire(now_ms);
    }
    assert!(settle(&mut registry, 4999).removed.is_empty());
    registry.expire(5000);
    let outcome = settle(&mut registry, 5000);
    assert_eq!(outcome.removed, [assignment.job_id]);
    let removed = outcome.notices.iter().find_map(|(_, notice)| match notice {
        notice::Kind::JobRemoved(removed) => Some(removed.reason()),
        _ => None,
    });
    assert_eq!(removed, Some(RemovalReason::Broken));
}

#[test]
fn a_broken_job_gives_way_to_its_restart() {
    let mut registry = registry();
    let assignment = run_job(&mut registry, 0, "j", 2);
    attach_all(&mut registry, 0, &assignment);
    registry.stream_closed(0, assignment.job_id, 1, 1);
    settle(&mut registry, 0);
    let mut restart = request("j", 0, 2);
    restart.run_id = "run-2".into();
    join(&mut registry, 1, restart).unwrap();
    assert_eq!(settle(&mut registry, 1).removed, [assignment.job_id]);
}

#[test]
fn the_slots_are_freed_when_the_last_rank_leaves() {
    let mut registry = registry();
    let assignment = run_job(&mut registry, 0, "j", 2);
    attach_all(&mut registry, 0, &assignment);
    registry.leave(&leave(&assignment, 0)).unwrap();
    registry.leave(&leave(&assignment, 0)).expect("leaving twice is no error");
    let outcome = settle(&mut registry, 0);
    assert!(outcome.removed.is_empty());
    assert!(matches!(outcome.notices[..], [(1, notice::Kind::PeerLeft(left))] if left.rank == 0), "{outcome:?}");
    registry.stream_closed(0, assignment.job_id, 0, 0);
    assert!(settle(&mut registry, 0).notices.is_empty(), "a stream that ends after a leave is no loss");
    registry.leave(&leave(&assignment, 1)).unwrap();
    assert_eq!(settle(&mut registry, 0).removed, [assignment.job_id]);
}

#[test]
fn a_wrong_job_token_opens_nothing() {
    let mut registry = registry();
    let assignment = run_job(&mut registry, 0, "j", 1);
    let mut forged = report(&assignment, 0);
    forged.job_token ^= 1;
    assert_eq!(registry.attach(0, &forged, 0).unwrap_err().code, ErrorCode::WrongJobToken);
    let left = registry.leave(&LeaveRequest { job_token: forged.job_token, ..leave(&assignment, 0) });
    assert_eq!(left.unwrap_err().code, ErrorCode::WrongJobToken);
}

#[test]
fn a_data_plane_that_refuses_leaves_nothing_behind() {
    let mut registry = registry();
    let ticket = join(&mut registry, 0, request("j", 0, 1)).unwrap();
    let job_id = registry.job_ids()[0];
    while registry.poll_effect().is_some() {}
    registry.install_done(0, job_id, Err("no thread".into()));
    let refused = settle(&mut registry, 0).refused;
    assert_eq!((refused[0].0, refused[0].1.code), (ticket, ErrorCode::InstallFailed));
    assert!(registry.is_idle());
    join(&mut registry, 0, request("j", 0, 1)).expect("the same run may try again");
}

#[test]
fn a_rank_that_gives_up_makes_room_for_its_retry() {
    let mut registry = registry();
    let ticket = join(&mut registry, 0, request("j", 0, 2)).unwrap();
    registry.cancel(0, ticket);
    assert!(registry.is_idle());
    join(&mut registry, 0, request("j", 0, 2)).unwrap();
}

#[test]
fn draining_refuses_new_jobs_and_lets_running_ones_finish() {
    let mut registry = registry();
    let assignment = run_job(&mut registry, 0, "j", 1);
    attach_all(&mut registry, 0, &assignment);
    join(&mut registry, 0, request("waits", 0, 2)).unwrap();
    registry.drain(700);
    let outcome = settle(&mut registry, 0);
    assert_eq!(outcome.refused[0].1.code, ErrorCode::Draining);
    assert!(matches!(outcome.notices[..], [(0, notice::Kind::Draining(draining))] if draining.deadline_ms == 700));
    assert_eq!(join(&mut registry, 0, request("new", 0, 1)).unwrap_err().code, ErrorCode::Draining);
    registry.report(0, report(&assignment, 0), 0).unwrap();
    registry.leave(&leave(&assignment, 0)).unwrap();
    assert!(registry.is_idle());
}

#[test]
fn a_freed_job_number_rests_while_others_are_free() {
    let mut registry = registry();
    let first = run_job(&mut registry, 0, "a", 1);
    registry.leave(&leave(&first, 0)).unwrap();
    let second = run_job(&mut registry, 0, "b", 1);
    assert_ne!(first.job_id & 0xff, second.job_id & 0xff);
}

fn from_host(rank: u32, world_size: u32, host_key: &str) -> fanin_control::proto::JoinRequest {
    fanin_control::proto::JoinRequest { host_key: host_key.into(), ..request("j", rank, world_size) }
}

#[test]
fn ranks_of_a_host_contribute_as_one() {
    let mut registry = registry();
    for (rank, host) in ["a", "b", "a", "b"].into_iter().enumerate() {
        join(&mut registry, 0, from_host(rank as u32, 4, host)).unwrap();
    }
    let assignment = settle(&mut registry, 0).installed.pop().unwrap();
    assert_eq!(assignment.host_of_rank, [0, 1, 0, 1]);
    assert_eq!(assignment.contributor_count(), 2);
    assert!(assignment.slots_per_lane > 1, "two hosts meet at the switch");
    let job = &registry.statuses(0)[0];
    assert_eq!((job.world_size, job.host_of_rank.as_slice()), (4, &[0, 1, 0, 1][..]));
}

#[test]
fn a_job_on_one_host_takes_next_to_no_slots() {
    let mut registry = registry();
    let before = registry.capacity().slot_memory_bytes_free;
    for rank in 0..4 {
        join(&mut registry, 0, from_host(rank, 4, "a")).unwrap();
    }
    let assignment = settle(&mut registry, 0).installed.pop().unwrap();
    assert_eq!((assignment.contributor_count(), assignment.slots_per_lane), (1, 1));
    assert!(before - registry.capacity().slot_memory_bytes_free < 100);
}

#[test]
fn one_rank_that_names_no_host_keeps_all_for_themselves() {
    let mut registry = registry();
    join(&mut registry, 0, from_host(0, 3, "a")).unwrap();
    join(&mut registry, 0, from_host(1, 3, "a")).unwrap();
    join(&mut registry, 0, from_host(2, 3, "")).unwrap();
    let assignment = settle(&mut registry, 0).installed.pop().unwrap();
    assert_eq!((assignment.host_of_rank.len(), assignment.contributor_count()), (0, 3));
}

#[test]
fn a_job_goes_without_checksums_only_if_switch_and_all_ranks_can() {
    for (switch_wants, last_can, has_checksum) in [(true, true, true), (false, false, true), (false, true, false)] {
        let limits = Limits { has_checksum: switch_wants, ..limits() };
        let mut registry = Registry::new(limits, support::counting_entropy());
        join(&mut registry, 0, request("j", 0, 2)).unwrap();
        let last = fanin_control::proto::JoinRequest { checksum_optional: last_can, ..request("j", 1, 2) };
        join(&mut registry, 0, last).unwrap();
        let assignment = settle(&mut registry, 0).installed.pop().unwrap();
        assert_eq!(assignment.has_checksum, has_checksum, "switch {switch_wants}, last rank {last_can}");
        assert_eq!(registry.statuses(0)[0].checksum, Some(has_checksum));
    }
}
