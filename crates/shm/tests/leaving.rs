//! A rank that does not want to wait for those who have not come, and one that is told to stop.

mod common;

use std::cell::Cell;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use common::{all_reduce, small_windows, sum_floats, with_ranks};
use fanin_numeric::sum::Element;
use fanin_shm::{Call, Error, Group, Leave};

fn call(sequence: u64, values: &mut [f32]) -> Call {
    all_reduce(sequence, Element::Float32, values.as_mut_ptr().cast(), size_of_val(values))
}

/// Waits for nobody who has not come.
fn at_once(is_interrupted: &dyn Fn() -> bool) -> Option<Leave<'_>> {
    Some(Leave { after: Instant::now(), is_interrupted })
}

/// A collective's memory lives as long as the caller's vector.
fn run_or_leave(group: &mut Group, call: &Call, leave: Option<Leave<'_>>) -> Result<bool, Error> {
    // SAFETY: every caller here keeps the vector until the call has ended.
    unsafe { group.run_or_leave(call, None, leave) }
}

#[test]
fn a_collective_that_was_left_is_completed_later() {
    // In the first window, in windows of their own, and long enough to be summed where it lies if it were registered.
    for length in [1, 1000, 100_000] {
        let has_left = Barrier::new(2);
        with_ranks(2, small_windows, |mut group, rank| {
            for sequence in 0..3 {
                let mut values = vec![rank as f32 + 1.0; length];
                if rank == 1 {
                    has_left.wait();
                    sum_floats(&mut group, sequence, &mut values).expect("completes");
                } else {
                    let call = call(sequence, &mut values);
                    let late = run_or_leave(&mut group, &call, at_once(&|| false));
                    assert_eq!(late, Ok(false), "rank 1 has not come");
                    let late = run_or_leave(&mut group, &call, at_once(&|| false));
                    assert_eq!(late, Ok(false), "a second look changes nothing");
                    has_left.wait();
                    assert_eq!(run_or_leave(&mut group, &call, None), Ok(true));
                }
                assert!(values.iter().all(|&value| value == 3.0), "rank {rank}, {length} elements");
            }
        });
    }
}

#[test]
fn nothing_else_is_carried_out_before_what_was_left() {
    let has_left = Barrier::new(2);
    with_ranks(2, small_windows, |mut group, rank| {
        let mut values = vec![1f32; 10];
        let left = call(0, &mut values);
        if rank == 0 {
            assert_eq!(run_or_leave(&mut group, &left, at_once(&|| false)), Ok(false));
            let mut others = vec![1f32; 10];
            let error = run_or_leave(&mut group, &call(1, &mut others), None).expect_err("0 comes first");
            assert!(matches!(error, Error::Call(_)), "{error}");
        }
        has_left.wait();
        assert_eq!(run_or_leave(&mut group, &left, None), Ok(true), "the group is as good as before");
        assert_eq!(values, [2.0; 10]);
    });
}

#[test]
fn who_is_told_to_stop_in_the_middle_ends_it_for_all() {
    let (has_come, is_over) = (Barrier::new(2), Barrier::new(2));
    let errors = with_ranks(2, small_windows, |mut group, rank| {
        if rank == 1 {
            // It comes, and is then busy elsewhere: what it published is all that the other one gets.
            let mut short = vec![1f32; 100_000];
            let call = call(0, &mut short);
            assert_eq!(run_or_leave(&mut group, &call, at_once(&|| false)), Ok(false));
            has_come.wait();
            is_over.wait();
            return run_or_leave(&mut group, &call, None).expect_err("rank 0 was interrupted");
        }
        has_come.wait();
        let asked = Cell::new(0);
        let is_interrupted = || {
            asked.set(asked.get() + 1);
            asked.get() == 2
        };
        let leave = Leave { after: Instant::now() + Duration::from_secs(60), is_interrupted: &is_interrupted };
        let mut values = vec![1f32; 100_000];
        let error = run_or_leave(&mut group, &call(0, &mut values), Some(leave)).expect_err("it was interrupted");
        assert_eq!(asked.get(), 2);
        is_over.wait();
        error
    });
    for error in errors {
        assert_eq!(error, Error::Aborted { rank: 0, reason: "it was interrupted".to_owned() });
    }
}
