//! The checks of `fields.toml` refuse what they should.

use super::Spec;

const REAL: &str = include_str!("../../../../spec/fields.toml");

fn refusal(from: &str, to: &str) -> String {
    assert!(REAL.contains(from), "the test no longer matches fields.toml: {from}");
    let error = Spec::parse(&REAL.replacen(from, to, 1)).expect_err("a contradiction must be refused");
    format!("{error:#}")
}

#[test]
fn the_real_file_is_accepted() {
    Spec::parse(REAL).unwrap();
}

#[test]
fn a_gap_between_fields_is_refused() {
    assert!(refusal("offset = 12\nbytes = 2", "offset = 13\nbytes = 2").contains("worker_rank is at 13"));
}

#[test]
fn a_header_of_another_length_is_refused() {
    assert!(refusal("bytes = 40", "bytes = 44").contains("fill 40 bytes"));
}

#[test]
fn overlapping_parts_are_refused() {
    assert!(refusal("shift = 0, bits = 15", "shift = 0, bits = 16").contains("slot_index"));
}

#[test]
fn bits_without_a_name_are_refused() {
    assert!(refusal("shift = 0, bits = 8", "shift = 4, bits = 4").contains("leave bits unnamed"));
}

#[test]
fn a_code_used_twice_is_refused() {
    assert!(refusal("name = \"Max\", code = 1", "name = \"Max\", code = 0").contains("codes of Operator"));
}

#[test]
fn a_constant_too_large_for_its_type_is_refused() {
    assert!(refusal("value = 16352", "value = 65536").contains("does not fit u16"));
}

#[test]
fn a_gap_in_the_drop_codes_is_refused() {
    assert!(refusal("code = 20", "code = 21").contains("must have code 20"));
}

#[test]
fn an_unknown_key_is_refused() {
    assert!(refusal("signed = true", "singed = true").contains("singed"));
}
