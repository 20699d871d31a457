use super::*;

fn told(key: u32, name: &str) -> TensorName {
    TensorName { key, name: name.into() }
}

#[test]
fn later_names_replace_earlier_ones() {
    let mut names = TensorNames::default();
    names.learn(vec![told(7, "a"), told(8, "b")]);
    names.learn(vec![told(7, "a or c")]);
    assert_eq!([names.get(7), names.get(8), names.get(9)], [Some("a or c"), Some("b"), None]);
}

#[test]
fn a_worker_cannot_make_the_switch_remember_more_than_its_room() {
    let mut names = TensorNames::default();
    names.learn((0..100_000).map(|key| told(key, "é".repeat(1000).as_str())).collect());
    assert_eq!(names.0.len(), NAMES_MAX);
    assert!(names.0.values().all(|name| name.len() <= NAME_BYTES_MAX && !name.is_empty()));
    names.learn(vec![told(3, "new")]);
    assert_eq!(names.get(3), Some("new"), "a name that is known can change all the same");
}
