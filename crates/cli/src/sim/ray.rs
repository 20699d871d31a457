//! Runs of a sweep on a Ray cluster: Python's `fanin.sweep` ships them, since Ray has no other way in.

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use serde::Serialize;

use crate::bench::fleet::python;

/// What `python -m fanin.sweep` reads from its standard input.
#[derive(Debug, Serialize)]
pub struct Plan {
    /// What starts fanin on every machine.
    pub command: Vec<String>,
    /// The scenario's text.
    pub scenario: String,
    /// Of `fanin sim sweep`, which decide about the runs' names.
    pub arguments: Vec<String>,
    /// To be made.
    pub runs: Vec<PlannedRun>,
    /// Where each goes, as NAME.json.
    pub folder: String,
}

/// One of them.
#[derive(Debug, Serialize)]
pub struct PlannedRun {
    /// As the program of the same build calls it on any machine.
    pub name: String,
    /// For people.
    pub label: String,
}

/// Makes all runs of a plan on the cluster at an address.
///
/// # Errors
/// If Python or Ray is missing, the cluster cannot be reached, or a run fails; what is done is kept.
pub fn run_all(address: &str, plan: &Plan) -> anyhow::Result<()> {
    if plan.runs.is_empty() {
        return Ok(());
    }
    let python = python();
    let mut child =
        Command::new(&python).args(["-m", "fanin.sweep", address]).stdin(Stdio::piped()).spawn().with_context(
            || format!("cannot start {}; FANIN_PYTHON names an interpreter with Ray and fanin", python.display()),
        )?;
    let text = serde_json::to_string(plan)?;
    // A driver that has ended already says why by its status.
    let written = child.stdin.take().map(|mut input| input.write_all(text.as_bytes()));
    let status = child.wait().context("cannot wait for Python")?;
    ensure!(
        status.success(),
        "the runs on Ray have failed, see above; what is done is kept, and the same command goes on"
    );
    written.transpose().context("cannot tell Python what to run")?;
    Ok(())
}
