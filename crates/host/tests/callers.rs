//! A caller that waits for its collective carries the lane's packets itself, and the lane's thread whatever is left:
//! nothing may be lost or left lying when they take turns.

mod common;

use std::time::{Duration, Instant};

use common::{Path, World};
use fanin_host::{CollectiveKind, DataType, ErrorKind, Leave, ReduceOp, Request, Session, SessionConfig, Ticket};

const RANKS: u16 = 3;
/// Of every rank's sum, if rank r contributes r + 1.
const SUM: f32 = 6.0;

fn sum_in_place(values: &mut [f32]) -> Request {
    Request {
        kind: CollectiveKind::AllReduce,
        data_type: DataType::Float32,
        operator: ReduceOp::Sum,
        input: values.as_ptr().cast(),
        output: values.as_mut_ptr().cast(),
        element_count: values.len(),
        label: String::new(),
    }
}

/// Starts a sum in place.
///
/// # Safety
/// `values` must outlive the ticket.
unsafe fn start(session: &Session, values: &mut [f32]) -> Ticket {
    // SAFETY: the caller's promise.
    unsafe { session.submit(sum_in_place(values)) }.expect("a request like any other")
}

/// Starts a sum in place and carries it for `span`.
///
/// # Safety
/// `values` must outlive the ticket.
unsafe fn carry_for(session: &Session, span: Duration, values: &mut [f32]) -> Ticket {
    let leave = Leave { after: Instant::now() + span, is_interrupted: &|| false };
    // SAFETY: the caller's promise.
    unsafe { session.run_or_leave(sum_in_place(values), leave) }.expect("a request like any other")
}

/// Sums that are started and sums that are waited for at once, in one order.
fn take_turns(rank: u16, session: &Session) {
    let own = f32::from(rank + 1);
    for round in 0..40 {
        let (mut before, mut at_once) = (vec![own; 5000 + round], vec![own; 10 + 300 * round]);
        let mut after = vec![own; 700];
        // SAFETY: the tickets are waited for while the vectors live.
        let first = unsafe { start(session, &mut before) };
        session.all_reduce(&mut at_once, ReduceOp::Sum).expect("completes");
        if round % 2 == 0 {
            // Whoever starts a sum calls the lane's thread, which the other rounds do without.
            // SAFETY: as above.
            unsafe { start(session, &mut after) }.wait(None).expect("completes");
            assert!(after.iter().all(|&value| value == SUM), "rank {rank}, round {round}");
        }
        first.wait(None).expect("completes");
        for values in [&before, &at_once] {
            assert!(values.iter().all(|&value| value == SUM), "rank {rank}, round {round}");
        }
    }
}

#[test]
fn callers_and_the_lanes_threads_take_turns() {
    for path in [Path::Switch, Path::TwoHosts] {
        for lane_count in [1, 3] {
            let world = World::on(path, RANKS);
            let adjust = |config| SessionConfig { lane_count: Some(lane_count), element_count: Some(64), ..config };
            world.run(adjust, |rank, session| take_turns(rank, &session));
        }
    }
}

/// Then a later sum may be done while an earlier one waits for a resend, which the caller leaves to the lane's thread.
#[test]
fn what_a_caller_leaves_behind_is_carried_on() {
    let world = World::new(RANKS);
    let adjust = |config| SessionConfig { element_count: Some(64), loss: Some((0.02, 7)), ..config };
    world.run(adjust, |rank, session| take_turns(rank, &session));
}

/// The lane's thread has hardly ended one sum when the caller comes with the next and finds the lane taken, or not.
#[test]
fn a_caller_who_finds_the_lane_taken_is_served() {
    let world = World::new(2);
    world.run(
        |config| config,
        |rank, session| {
            for round in 0..2000 {
                let mut values = [f32::from(rank + 1)];
                // SAFETY: waited for while the array lives.
                unsafe { start(&session, &mut values) }.wait(None).expect("completes");
                session.all_reduce(&mut values, ReduceOp::Sum).expect("completes");
                assert_eq!(values, [6.0], "round {round}");
            }
        },
    );
}

#[test]
fn an_abort_ends_the_wait_of_a_caller_that_carries_packets() {
    let world = World::new(2);
    let start = Instant::now();
    world.run(
        |config| config,
        |rank, session| {
            if rank == 1 {
                std::thread::sleep(Duration::from_secs(1));
                return;
            }
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| session.all_reduce(&mut vec![1f32; 100_000], ReduceOp::Sum));
                std::thread::sleep(Duration::from_millis(200));
                session.abort("enough");
                let error = waiting.join().expect("no panic").expect_err("rank 1 does not call");
                assert_eq!(error.kind, ErrorKind::Aborted);
                let later = session.all_reduce(&mut [1f32], ReduceOp::Sum).expect_err("the session has failed");
                assert_eq!(later.kind, ErrorKind::Aborted);
            });
        },
    );
    assert!(start.elapsed() < Duration::from_secs(15), "long before the collective's own timeout");
}

#[test]
fn a_caller_that_carries_packets_learns_who_is_missing() {
    let world = World::new(2);
    let adjust = |config| SessionConfig { collective_timeout: Duration::from_millis(500), ..config };
    let errors = world.run(adjust, |rank, session| {
        if rank == 1 {
            std::thread::sleep(Duration::from_secs(3));
            return None;
        }
        session.all_reduce(&mut [1f32; 1000], ReduceOp::Sum).err()
    });
    let error = errors[0].as_ref().expect("rank 1 does not call");
    assert_eq!(error.kind, ErrorKind::TimedOut);
    assert!(error.message.contains("of rank 1"), "{}", error.message);
}

/// Who leaves at once and who stays, in turns, while another sum may still be in somebody's hands.
#[test]
fn what_a_caller_leaves_is_carried_on_by_the_sessions_threads() {
    for world in World::on_each_path(RANKS) {
        world.run(
            |config| config,
            |rank, session| {
                for round in 0..60u64 {
                    let own = f32::from(rank + 1);
                    let (mut first, mut second) = (vec![own; 3000], vec![own; 40_000]);
                    if (round + u64::from(rank)).is_multiple_of(5) {
                        std::thread::sleep(Duration::from_millis(3));
                    }
                    let span = Duration::from_micros([0, 300, 50_000][(round + u64::from(rank)) as usize % 3]);
                    // SAFETY: the tickets are waited for while the vectors live.
                    let tickets =
                        unsafe { [carry_for(&session, span, &mut first), carry_for(&session, span, &mut second)] };
                    for ticket in tickets {
                        ticket.wait(None).expect("completes");
                    }
                    for values in [&first, &second] {
                        assert!(values.iter().all(|&value| value == SUM), "{:?}, rank {rank}, {round}", world.path);
                    }
                }
            },
        );
    }
}

#[test]
fn a_caller_leaves_when_it_said_although_a_rank_is_missing() {
    for world in World::on_each_path(2) {
        let is_over = std::sync::Barrier::new(2);
        world.run(
            |config| config,
            |rank, session| {
                if rank == 1 {
                    is_over.wait();
                    return;
                }
                let mut values = [1f32; 1000];
                // SAFETY: the ticket is waited for while the array lives.
                let ticket = unsafe { carry_for(&session, Duration::from_millis(20), &mut values) };
                assert!(!ticket.is_done(), "{:?}: rank 1 has not called", world.path);
                session.begin_close();
                let error = ticket.wait(None).expect_err("the session is closed");
                assert!(matches!(error.kind, ErrorKind::Closed | ErrorKind::Aborted), "{:?}: {error}", world.path);
                is_over.wait();
            },
        );
    }
}
