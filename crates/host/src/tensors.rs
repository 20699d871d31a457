//! What the switch is told that tensors are called, and what it tells of them.

use std::collections::BTreeMap;

use fanin_control::proto;
use fanin_numeric::Telemetry;
use fanin_protocol::tensor_counts;

use crate::ticket::Collective;

/// Names that a session keeps: many times the tensors that a switch counts apart.
const NAMES_MAX: usize = 256;
/// Bytes from which on a name that stands for two tensors is not made longer.
const NAME_BYTES_MAX: usize = 120;

/// By key: see [`tensor_counts`].
#[derive(Clone, Debug, Default)]
pub(crate) struct TensorNames(BTreeMap<u16, String>);

impl TensorNames {
    /// A collective was submitted whose sum the switch's accumulator makes. Of two tensors that have one key, both are named.
    pub fn note(&mut self, collective: &Collective) {
        let (key, description) = (tensor_counts::key(collective.tag), &collective.description);
        let has_room = self.0.len() < NAMES_MAX;
        match self.0.get_mut(&key) {
            Some(name) if name.split(" or ").any(|known| known == description) || name.len() > NAME_BYTES_MAX => {}
            Some(name) => *name += &format!(" or {description}"),
            None if has_room => drop(self.0.insert(key, description.clone())),
            None => {}
        }
    }

    pub fn to_proto(&self) -> Vec<proto::TensorName> {
        self.0.iter().map(|(&key, name)| proto::TensorName { key: key.into(), name: name.clone() }).collect()
    }

    /// What people call an entry of the switch's answer; what this rank does not know, as the switch calls it.
    fn name(&self, of: &proto::TensorCounters) -> String {
        let Some(key) = of.key else { return "other tensors".into() };
        let own = u16::try_from(key).ok().and_then(|key| self.0.get(&key));
        match own {
            Some(name) => name.clone(),
            None if of.name.is_empty() => format!("tensor {key:#06x}"),
            None => of.name.clone(),
        }
    }
}

/// What the accumulator of the switch has met in a job's sums of floats, in elements of all ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccumulatorCounts {
    /// In all of them.
    pub total: Telemetry,
    /// By tensor, the worst first. A tensor is what collectives have in common that have one kind, type, number of elements, operator
    /// and label. The switch counts so many apart; what is left to the total is "other tensors".
    pub tensors: Vec<(String, Telemetry)>,
}

impl AccumulatorCounts {
    pub(crate) fn of(job: proto::JobStatus, names: &TensorNames) -> AccumulatorCounts {
        let total = job.counters.and_then(|counters| counters.accumulator).map(telemetry).unwrap_or_default();
        let tensor = |of: proto::TensorCounters| (names.name(&of), of.counters.map(telemetry).unwrap_or_default());
        AccumulatorCounts { total, tensors: job.tensors.into_iter().map(tensor).collect() }
    }
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
