use super::*;

fn names(told: &[(u16, &str)]) -> TensorNames {
    let mut names = TensorNames::default();
    told.iter().for_each(|(key, description)| names.learn(*key, description));
    names
}

fn row(key: Option<u32>, name: &str, overwrite: u64, lost_bits: u64) -> proto::TensorCounters {
    let counters = proto::AccumulatorCounters { overwrite, lost_bits, ..Default::default() };
    proto::TensorCounters { key, name: name.into(), counters: Some(counters) }
}

#[test]
fn of_two_tensors_of_one_key_both_are_named_once() {
    let known = names(&[(7, "win or lose"), (7, "b"), (7, "win or lose"), (7, "b"), (7, "lose")]);
    assert_eq!(known.name(&row(Some(7), "", 0, 0)), "win or lose or b or lose");
    let many: Vec<(u16, String)> = (0..100).map(|index| (7, format!("tensor {index}"))).collect();
    let many = names(&many.iter().map(|(key, name)| (*key, name.as_str())).collect::<Vec<_>>());
    assert_eq!(many.name(&row(Some(7), "", 0, 0)).matches(" or ").count(), NAMES_OF_KEY_MAX - 1);
}

#[test]
fn no_more_names_are_kept_than_there_is_room() {
    let mut known = TensorNames::default();
    (0..1000).for_each(|key| known.learn(key, "a"));
    assert_eq!(known.to_proto().len(), NAMES_MAX);
}

#[test]
fn reports_have_short_names() {
    let long = format!("a{}", "é".repeat(300));
    let known = names(&[(1, &long), (2, "short")]);
    let told = known.to_proto();
    assert_eq!((told[0].name.len(), told[0].name.ends_with('é'), told[1].name.as_str()), (159, true, "short"));
    assert_eq!(known.name(&row(Some(1), "", 0, 0)), long, "this rank's own have their whole length");
}

#[test]
fn rows_of_one_name_are_one_and_the_worst_comes_first() {
    let known = names(&[(1, "a"), (2, "b")]);
    let tensors = vec![row(Some(1), "", 5, 0), row(Some(2), "", 3, 0), row(Some(3), "b", 4, 1), row(None, "", 100, 0)];
    let job = proto::JobStatus { tensors, ..Default::default() };
    let counts = AccumulatorCounts::of(job, &known);
    let rows: Vec<_> = counts.tensors.iter().map(|(name, met)| (name.as_str(), met.overwrite, met.lost_bits)).collect();
    assert_eq!(rows, [("b", 7, 1), ("a", 5, 0), ("other tensors", 100, 0)]);
}
