//! What the switch is told that tensors are called, and what it tells of them.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use fanin_control::proto;
use fanin_control::registry::shortened_name;
use fanin_numeric::Telemetry;
use fanin_protocol::tensor_counts::{self, TensorCounts};

use crate::ticket::Collective;

/// Names that a session keeps: many times the tensors that a switch counts apart.
const NAMES_MAX: usize = 256;
/// Tensors of one key that are named.
const NAMES_OF_KEY_MAX: usize = 4;

/// What those are called that the switch does not count apart.
const OTHERS: &str = "other tensors";

/// By key, see [`tensor_counts`]: what has it, in the order in which it came.
#[derive(Clone, Debug, Default)]
pub(crate) struct TensorNames(BTreeMap<u16, Vec<String>>);

impl TensorNames {
    /// A collective was submitted whose sum the switch's accumulator makes. Of two tensors that have one key, both are named.
    pub fn note(&mut self, collective: &Collective) {
        self.learn(tensor_counts::key(collective.tag), &collective.description);
    }

    fn learn(&mut self, key: u16, description: &str) {
        let has_room = self.0.len() < NAMES_MAX;
        match self.0.get_mut(&key) {
            Some(known) if known.len() == NAMES_OF_KEY_MAX || known.iter().any(|known| known == description) => {}
            Some(known) => known.push(description.into()),
            None if has_room => drop(self.0.insert(key, vec![description.into()])),
            None => {}
        }
    }

    /// As the switch keeps them: cut where they are long, since every report has all of them.
    pub fn to_proto(&self) -> Vec<proto::TensorName> {
        let name = |names: &[String]| shortened_name(names.join(" or "));
        self.0.iter().map(|(&key, names)| proto::TensorName { key: key.into(), name: name(names) }).collect()
    }

    /// What people call an entry of the switch's answer; what this rank does not know, as the switch calls it.
    fn name(&self, of: &proto::TensorCounters) -> String {
        let Some(key) = of.key else { return OTHERS.into() };
        let own = u16::try_from(key).ok().and_then(|key| self.0.get(&key));
        match own {
            Some(names) => names.join(" or "),
            None if of.name.is_empty() => format!("tensor {key:#06x}"),
            None => of.name.clone(),
        }
    }
}

/// What the accumulator of the switch has met in a job's sums of floats, in additions and read-outs of all ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccumulatorCounts {
    /// In all of them.
    pub total: Telemetry,
    /// By tensor, the worst first, each name once. A tensor is what collectives have in common that have one kind, type, number of
    /// elements, operator and label. The switch counts so many apart; what is left to the total is "other tensors", and comes last.
    pub tensors: Vec<(String, Telemetry)>,
}

impl AccumulatorCounts {
    pub(crate) fn of(job: proto::JobStatus, names: &TensorNames) -> AccumulatorCounts {
        let total = job.counters.and_then(|counters| counters.accumulator).map(telemetry).unwrap_or_default();
        let tensor = |of: proto::TensorCounters| (names.name(&of), of.counters.map(telemetry).unwrap_or_default());
        AccumulatorCounts { total, tensors: by_name(job.tensors.into_iter().map(tensor)) }
    }
}

/// Two keys may have one name: labels that are cut alike, or names that other ranks gave.
fn by_name(rows: impl Iterator<Item = (String, Telemetry)>) -> Vec<(String, Telemetry)> {
    let mut sums: BTreeMap<String, Telemetry> = BTreeMap::new();
    rows.for_each(|(name, counts)| sums.entry(name).or_default().merge(&counts));
    let mut rows: Vec<_> = sums.into_iter().collect();
    let severity = |telemetry: Telemetry| TensorCounts { telemetry, ..TensorCounts::default() }.severity();
    rows.sort_by_key(|(name, counts)| (name == OTHERS, Reverse(severity(*counts))));
    rows
}

fn telemetry(counts: proto::AccumulatorCounters) -> Telemetry {
    Telemetry {
        overflow: counts.overflow,
        saturation: counts.saturation,
        overwrite: counts.overwrite,
        left_shift: counts.left_shift,
        flushed_to_zero: counts.flushed_to_zero,
        lost_bits: counts.lost_bits,
    }
}

#[cfg(test)]
mod tests;
