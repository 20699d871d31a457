//! Plays the conformance vectors to the switch program, and shows that a
//! wrong one fails.

use fanin_harness::vectors::{Mismatch, ProgramTarget, Vector, replay, suite};

fn play(vector: &Vector) -> Result<usize, Mismatch> {
    replay("inline.toml", vector, &mut ProgramTarget::default())
}

#[test]
fn every_vector_passes_on_the_switch_program() {
    suite::replay_all(|_| true, ProgramTarget::default).assert_all_passed();
}

const SUM: &str = r#"
title = "a sum"
source = "this test"
[job]
worker_count = 2
[[step]]
send = { rank = 0, elements = [1, 2] }
expect = { verdict = "absorb" }
[[step]]
name = "last"
send = { rank = 1, elements = [10, 20] }
expect = { verdict = "multicast", elements = [11, 22] }
"#;

fn mismatch_of(right: &str, wrong: &str) -> String {
    let text = SUM.replace(right, wrong);
    assert_ne!(text, SUM, "the replacement must change the vector");
    play(&Vector::parse(&text).unwrap()).unwrap_err().to_string()
}

#[test]
fn a_wrong_vector_fails_and_says_where() {
    suite::assert_wrong_vectors_fail(ProgramTarget::default);
    assert_eq!(play(&Vector::parse(SUM).unwrap()), Ok(2));
    assert_eq!(
        mismatch_of("[11, 22]", "[11, 23]"),
        "inline.toml, step 2 (last), rank 1, chunk 0: elements of the answer to rank 0: expected [11, 23], got [11, 22]"
    );
    assert_eq!(
        mismatch_of("\"absorb\"", "\"drop\", reason = \"duplicate_contribution\""),
        "inline.toml, step 1, rank 0, chunk 0: verdict: expected drop, got absorb"
    );
    assert!(
        mismatch_of("22] ", "22], exponent_next = 3 ").contains("exponent_next of the answer to rank 0: expected 3")
    );
    assert!(mismatch_of("22] ", "22], to = [1] ").contains("to: expected [1], got [0, 1]"));
    assert!(
        mismatch_of("22] ", "22], payload_to = 1 ")
            .contains("element_count of the answer to rank 0: expected 0, got 2")
    );
}

#[test]
fn a_file_that_is_no_vector_is_not_taken() {
    let refused = |right: &str, wrong: &str| Vector::parse(&SUM.replace(right, wrong)).unwrap_err();
    assert!(refused("elements = [1, 2]", "element = [1, 2]").contains("element"));
    assert!(refused("\"absorb\"", "\"drop\"").contains("`reason` goes with"));
    assert!(refused("expect = { verdict = \"absorb\" }", "").contains("`send` and `expect`"));
}
