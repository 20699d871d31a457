//! What people call the tensors of a job, as its workers tell.

use std::collections::BTreeMap;

use crate::proto::TensorName;

/// Names that are kept of a job: more than a switch counts apart, and what a worker may make it remember.
const NAMES_MAX: usize = 256;
/// Bytes of a name; the rest is cut off.
const NAME_BYTES_MAX: usize = 160;

/// By key.
#[derive(Clone, Debug, Default)]
pub(super) struct TensorNames(BTreeMap<u32, String>);

impl TensorNames {
    /// Takes what a report says: later names replace earlier ones, and new ones are taken while there is room.
    pub fn learn(&mut self, told: Vec<TensorName>) {
        for TensorName { key, name } in told {
            if self.0.len() < NAMES_MAX || self.0.contains_key(&key) {
                self.0.insert(key, shortened_name(name));
            }
        }
    }

    pub fn get(&self, key: u32) -> Option<&str> {
        self.0.get(&key).map(String::as_str)
    }
}

/// A tensor's name as a switch keeps it: cut at the end of a character.
pub fn shortened_name(mut name: String) -> String {
    let end = (0..=NAME_BYTES_MAX.min(name.len())).rev().find(|&end| name.is_char_boundary(end)).unwrap_or(0);
    name.truncate(end);
    name
}

#[cfg(test)]
mod tests;
