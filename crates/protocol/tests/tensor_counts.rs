//! What a job's accumulator met, tensor by tensor.

use fanin_numeric::Telemetry;
use fanin_protocol::tensor_counts::{TENSORS_MAX, TensorTable, key, tag};
use fanin_wire::Accumulator;

fn lost(bits: u64) -> Telemetry {
    Telemetry { lost_bits: bits, ..Telemetry::default() }
}

fn overwritten(count: u64) -> Telemetry {
    Telemetry { overwrite: count, ..Telemetry::default() }
}

fn table() -> TensorTable {
    TensorTable::new(Accumulator::FpisaA, false)
}

fn of(table: &TensorTable, wanted: u16) -> Option<Telemetry> {
    table.rows().iter().find(|row| row.key == wanted).map(|row| row.telemetry)
}

#[test]
fn a_key_is_what_collectives_on_one_tensor_share() {
    assert_eq!([key(tag(0xbeef, 0)), key(tag(0xbeef, 0xffff)), key(tag(0, 7))], [0xbeef, 0xbeef, 0]);
    assert_ne!(tag(0xbeef, 1), tag(0xbeef, 2));
}

#[test]
fn what_chunks_meet_is_counted_for_their_tensor() {
    let mut table = table();
    // Two collectives of one tensor and one of another, their chunks mixed as they are on the wire.
    for (tag, met) in
        [(tag(1, 10), lost(2)), (tag(2, 11), overwritten(5)), (tag(1, 12), lost(3)), (tag(2, 11), lost(1))]
    {
        table.note(tag, &met);
    }
    table.note(tag(3, 13), &Telemetry::default());
    assert_eq!(of(&table, 1), Some(lost(5)));
    assert_eq!(of(&table, 2), Some(Telemetry { overwrite: 5, lost_bits: 1, ..Telemetry::default() }));
    assert_eq!(of(&table, 3), None, "a tensor that has met nothing takes no row");
}

#[test]
fn the_table_never_grows() {
    let mut table = table();
    for number in 0..10_000u16 {
        table.note(tag(number, 0), &lost(1));
    }
    assert_eq!(table.rows().len(), TENSORS_MAX);
}

#[test]
fn the_least_severe_row_is_given_up_and_the_others_stay_whole() {
    let mut table = table();
    for number in 0..TENSORS_MAX as u16 {
        table.note(tag(number, 0), &if number == 9 { lost(1_000_000) } else { overwritten(1) });
    }
    // Far more bits than overwrites, but bits are the lesser harm.
    table.note(tag(100, 0), &overwritten(2));
    assert_eq!((of(&table, 9), of(&table, 100)), (None, Some(overwritten(2))));
    // The next newcomers contend for one place.
    for round in 0..50u16 {
        table.note(tag(200 + round % 2, 0), &lost(1));
    }
    let whole = (0..TENSORS_MAX as u16).filter(|number| of(&table, *number) == Some(overwritten(1)));
    assert_eq!(whole.count(), TENSORS_MAX - 2, "one was replaced by 100, one by those that come and go");
    assert!(of(&table, 100).is_some());
}

#[test]
fn a_job_that_counts_nothing_has_no_rows() {
    for (accumulator, is_atp) in [(Accumulator::BlockFixed, false), (Accumulator::StaticFixed, true)] {
        let mut table = TensorTable::new(accumulator, is_atp);
        table.note(tag(1, 1), &lost(1));
        assert!(table.rows().is_empty());
    }
}
