//! The one moment that no test from outside can hit on purpose.

use std::thread;

use fanin_numeric::sum::{Element, Operation};

use super::*;

fn all_reduce(region: &Region) -> Call {
    Call {
        sequence: 0,
        tag: 0,
        description: "all_reduce".to_owned(),
        operation: Operation::Sum,
        element: Element::Int32,
        divisor: 1.0,
        bytes: region.len(),
        contributes: 0..region.len(),
        receives: 0..region.len(),
        input: region.as_ptr(),
        output: region.as_ptr(),
        windows_done: Arc::default(),
    }
}

/// Rank 1 has told all and gives up; its memory may change from now on. Rank 0 finds every count that it waits for.
#[test]
fn a_sum_of_inputs_whose_owner_gave_up_is_no_success() {
    let key = format!("gave-up-{}", std::process::id());
    let form = |rank| Group::form(&Config::new(key.as_str(), rank, 2)).expect("the group forms");
    let (mut reader, owner) = thread::scope(|scope| {
        let owner = scope.spawn(|| form(1));
        (form(0), owner.join().expect("no panic"))
    });
    let regions = [&reader, &owner].map(|group| group.allocate(DIRECT_BYTES_MIN).expect("there is memory"));

    let call = all_reduce(&regions[1]);
    let place = owner.book.find(call.input, call.bytes);
    owner.shared.write_descriptor(0, &call.describe(place, place));
    owner.shared.progress().publish_staged();
    owner.shared.progress().publish_reduced_and_done();
    owner.aborter().abort("out of patience");

    // SAFETY: the region has as many bytes.
    let outcome = unsafe { reader.run(&all_reduce(&regions[0]), None) };
    assert_eq!(outcome, Err(Error::Aborted { rank: 1, reason: "out of patience".to_owned() }));
}
