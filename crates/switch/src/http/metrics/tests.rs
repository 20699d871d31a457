use fanin_control::proto::{AccumulatorCounters, TensorCounters};

use super::*;

#[test]
fn tensors_without_a_name_are_among_the_others() {
    let tensor = |key, name: &str, overwrite| TensorCounters {
        key,
        name: name.into(),
        counters: Some(AccumulatorCounters { overwrite, ..Default::default() }),
    };
    let unnamed = (10..1_000).map(|key| tensor(Some(key), "", 1));
    let named = [tensor(Some(1), "a", 5), tensor(Some(2), "a", 6), tensor(None, "", 7)];
    let job = JobStatus { tensors: named.into_iter().chain(unnamed).collect(), ..Default::default() };
    let samples = tensor_samples(&job);
    let name = |labels: &Labels| labels.iter().find(|(label, _)| *label == "tensor").unwrap().1.clone();
    let found: Vec<_> = samples.iter().map(|(labels, count)| (name(labels), *count)).collect();
    assert_eq!(found, [("a".into(), 11.0), ("other tensors".into(), 997.0)]);
}
