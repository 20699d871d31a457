use super::*;

fn counters(tensors: &[(u16, u64, u64)], total: (u64, u64)) -> TrafficCounters {
    let telemetry = |(overwrite, lost_bits)| Telemetry { overwrite, lost_bits, ..Telemetry::default() };
    let tensor = |&(key, overwrite, lost_bits): &(u16, u64, u64)| TensorCounts {
        key,
        telemetry: telemetry((overwrite, lost_bits)),
    };
    TrafficCounters {
        tensors: tensors.iter().map(tensor).collect(),
        telemetry: telemetry(total),
        ..TrafficCounters::default()
    }
}

#[test]
fn the_worst_come_first_and_all_is_told() {
    let found = entries(&counters(&[(1, 0, 900), (2, 5, 0), (3, 0, 7)], (5, 907)));
    let keys: Vec<_> = found.iter().map(|entry| entry.key).collect();
    assert_eq!(
        keys,
        [Some(2), Some(1), Some(3)],
        "an overwrite is worse than any number of bits, and nothing is left over"
    );
}

#[test]
fn rows_that_are_ahead_of_the_counts_leave_nothing_over() {
    let found = entries(&counters(&[(1, 6, 900)], (5, 907)));
    let other = found.last().and_then(|entry| entry.counters).map(|counts| (counts.overwrite, counts.lost_bits));
    assert_eq!((found.len(), other), (2, Some((0, 7))));
}

#[test]
fn what_has_no_row_is_told_together() {
    let tensors: Vec<_> = (0..100).map(|key| (key, 1, u64::from(key))).collect();
    let found = entries(&counters(&tensors, (1_000, 10_000)));
    assert_eq!(found.len(), TENSORS_MAX + 1);
    assert!(
        found[..TENSORS_MAX].iter().all(|entry| entry.key >= Some(100 - TENSORS_MAX as u32)),
        "the worst have rows"
    );
    let sum = |read: fn(&fanin_control::proto::AccumulatorCounters) -> u64| -> u64 {
        found.iter().map(|entry| read(entry.counters.as_ref().unwrap())).sum()
    };
    assert_eq!((found[TENSORS_MAX].key, sum(|it| it.overwrite), sum(|it| it.lost_bits)), (None, 1_000, 10_000));
}
