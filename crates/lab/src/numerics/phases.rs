//! Beginning, middle and end of a recording.

use crate::recording::{Recording, Step};

/// Their names.
pub const PHASES: [&str; 3] = ["early", "middle", "final"];

/// Thirds of the recorded steps; a recording of fewer than three has later ones empty.
pub fn phases(recording: &Recording) -> impl Iterator<Item = &[Step]> {
    recording.steps.chunks(recording.steps.len().div_ceil(PHASES.len()))
}
