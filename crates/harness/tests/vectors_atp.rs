//! Plays ATP's conformance vectors to the switch program and the server, and shows that wrong ones fail.

use fanin_harness::vectors::atp::{AtpProgramTarget, Vector, replay};
use fanin_harness::vectors::{Mismatch, suite};

#[test]
fn every_vector_passes_on_the_programs() {
    suite::replay_all_atp(&[], AtpProgramTarget::default).assert_all_passed();
}

const TRIP: &str = r#"
title = "a sum and its way back"
source = "this test"
[job]
racks = [2]
beside = 1
[[step]]
send = { rank = 0, elements = [1, 2] }
expect = { verdict = "absorb" }
[[step]]
name = "last"
send = { rank = 1, elements = [10, 20] }
expect = { verdict = "up", elements = [11, 22], contributed = [3, 1, 0, 0], worker_rank = 65535 }
[[step]]
send = { ranks = [0, 1, 2], elements = [7], destination = 2 }
expect = { verdict = "multicast", elements = [7] }
[[step]]
name = "down"
send = { relay = true, at = "root" }
expect = { verdict = "down", to = [0, 1], payload_to = 1 }
"#;

fn play(text: &str) -> Result<usize, Mismatch> {
    replay("inline.toml", &Vector::parse(text).unwrap(), &mut AtpProgramTarget::default())
}

/// Each replacement makes the vector wrong, and must be found where and as what it is.
fn mismatch_of(right: &str, wrong: &str) -> String {
    let text = TRIP.replace(right, wrong);
    assert_ne!(text, TRIP, "the replacement must change the vector");
    play(&text).unwrap_err().to_string()
}

#[test]
#[cfg(not(feature = "canary"))]
fn a_wrong_vector_fails_and_says_where() {
    assert_eq!(play(TRIP), Ok(4));
    assert_eq!(
        mismatch_of("elements = [11, 22]", "elements = [11, 23]"),
        "inline.toml, step 2 (last), rank 1, chunk 0: elements of what leaves to Up: expected [11, 23], got [11, 22]"
    );
    assert_eq!(
        mismatch_of("\"absorb\"", "\"drop\", reason = \"duplicate_contribution\""),
        "inline.toml, step 1, rank 0, chunk 0: verdict: expected drop, got absorb"
    );
    assert_eq!(
        mismatch_of("down\", to = [0, 1]", "down\", to = [1]"),
        "inline.toml, step 4 (down), chunk 0: to: expected [Child(1)], got [Child(0), Child(1)]"
    );
    assert!(mismatch_of("payload_to = 1", "payload_to = 0").contains("element_count of what leaves to Child(0)"));
}

/// Every field of what leaves can be wrong, those that a file cannot give too.
#[test]
#[cfg(not(feature = "canary"))]
fn every_field_is_compared() {
    let of_the_sum = [
        ("worker_rank", "worker_rank = 65535", "worker_rank = 1"),
        ("contributed", "[3, 1, 0, 0]", "[3, 1, 1, 0]"),
        ("flags", "contributed", "flags = [\"ecn\"], contributed"),
        ("slot_index_next", "contributed", "slot_index_next = 3, contributed"),
        ("slot_index", "contributed", "slot_index = 3, contributed"),
        ("element_format", "contributed", "element_format = \"fixed32\", contributed"),
        ("detail", "contributed", "detail = 3, contributed"),
        ("element_count", "contributed", "element_count = 3, contributed"),
    ];
    for (field, right, wrong) in of_the_sum {
        let found = mismatch_of(right, wrong);
        assert!(found.contains(&format!(": {field} of what leaves to Up")), "{found}");
    }
    let reason = mismatch_of("verdict = \"multicast\",", "verdict = \"multicast\", reason = \"stale_chunk\",");
    assert!(reason.contains("reason: expected stale_chunk, got none"), "{reason}");
}

#[test]
fn a_file_that_is_no_vector_is_not_taken() {
    let refused = |right: &str, wrong: &str| Vector::parse(&TRIP.replace(right, wrong)).unwrap_err();
    assert!(refused("elements = [1, 2]", "element = [1, 2]").contains("element"));
    assert!(refused("\"absorb\"", "\"drop\"").contains("need a `reason`"));
    assert!(refused("\"absorb\"", "\"absorb\", reason = \"stale_chunk\"").contains("`reason` goes with"));
    assert!(refused("expect = { verdict = \"absorb\" }", "").contains("`send` and `expect`"));
    assert!(refused("relay = true,", "relay = true, rank = 1,").contains("`relay` sends"));
    assert!(refused("at = \"root\"", "at = \"spine\"").contains("no node is called spine"));
    assert!(refused("relay = true", "flags = [\"late\"]").contains("no flag is called late"));
}
