//! Scheduling weight for the benchmark and its children.
//!
//! With autogrouping the kernel divides the processor between terminal
//! sessions first, so `nice` alone does not protect a measurement from a
//! build in another session.

use std::path::Path;

use rustix::process::setpriority_process;
use serde::Serialize;

const AUTOGROUP: &str = "/proc/self/autogroup";
const NICE_BEST: i32 = -20;

/// What was raised. Dropping it gives the session its old weight back.
#[derive(Debug, Serialize)]
pub struct Weight {
    /// The session's group has the highest weight.
    pub autogroup_raised: bool,
    /// The processes have the highest priority inside their group.
    pub nice_raised: bool,
    #[serde(skip)]
    autogroup_before: Option<String>,
}

impl Weight {
    /// Raises what this process may raise; children started later inherit it.
    pub fn raise() -> Weight {
        let before = read_autogroup_nice(Path::new(AUTOGROUP));
        let autogroup_raised = before.is_some() && std::fs::write(AUTOGROUP, NICE_BEST.to_string()).is_ok();
        let nice_raised = setpriority_process(None, NICE_BEST).is_ok();
        Weight { autogroup_raised, nice_raised, autogroup_before: before.filter(|_| autogroup_raised) }
    }

    /// One line for people.
    pub fn describe(&self) -> &'static str {
        match (self.autogroup_raised, self.nice_raised) {
            (true, true) => "scheduling weight raised (autogroup and nice -20)",
            (true, false) => "scheduling weight raised (autogroup)",
            (false, true) => "nice -20 set, but the session's autogroup could not be raised",
            (false, false) => "scheduling weight NOT raised (needs root): other programs disturb the times",
        }
    }
}

impl Drop for Weight {
    fn drop(&mut self) {
        if let Some(before) = &self.autogroup_before {
            // The kernel limits changes to ten a second; one try is enough
            // after a benchmark.
            let _ = std::fs::write(AUTOGROUP, before);
        }
        if self.nice_raised {
            let _ = setpriority_process(None, 0);
        }
    }
}

/// The number in "/autogroup-12 nice 0".
fn read_autogroup_nice(file: &Path) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    text.split_whitespace().last().filter(|word| word.parse::<i32>().is_ok()).map(str::to_owned)
}
