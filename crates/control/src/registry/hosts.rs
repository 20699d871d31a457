//! Which ranks sum among themselves before one of them contributes to the switch.

use std::collections::BTreeMap;

/// Most ranks that share one memory.
const RANKS_PER_HOST_MAX: usize = 64;

/// Numbers the hosts in the order of their first ranks. Empty unless every rank names its host and some share one: then
/// all contribute for themselves.
pub(super) fn number<'a>(keys: impl Iterator<Item = Option<&'a str>>) -> Vec<u16> {
    let Some(keys) = keys.collect::<Option<Vec<&str>>>() else { return Vec::new() };
    let mut numbers = BTreeMap::new();
    let hosts: Vec<u16> = keys
        .iter()
        .map(|key| {
            let next = numbers.len() as u16;
            *numbers.entry(*key).or_insert(next)
        })
        .collect();
    let rank_count_max =
        (0..numbers.len() as u16).map(|host| hosts.iter().filter(|other| **other == host).count()).max();
    let all_fit = rank_count_max.is_some_and(|count| (2..=RANKS_PER_HOST_MAX).contains(&count));
    if all_fit { hosts } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn hosts_are_numbered_by_their_first_ranks() {
        assert_eq!(number([Some("b"), Some("a"), Some("b"), Some("a")].into_iter()), [0, 1, 0, 1]);
        assert_eq!(number([Some("x"), Some("x")].into_iter()), [0, 0]);
    }

    #[test]
    fn nothing_is_grouped_without_every_rank_or_without_need() {
        assert!(number([Some("a"), None, Some("a")].into_iter()).is_empty());
        assert!(number([Some("a"), Some("b")].into_iter()).is_empty());
        assert!(number([Some("a")].into_iter()).is_empty());
        assert!(number([Some("a"); 65].into_iter()).is_empty(), "more than one memory holds");
    }
}
