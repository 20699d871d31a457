//! Prints a scenario's network and flows, with the path of each, for `experiments/sim/ns3/network.cc`.
//!
//! `cargo run -p fanin-sim --example ns3_input -- SCENARIO.toml [k=8] [duration_ms=2]`: what follows the file replaces lines of it.

#[path = "support/ns3.rs"]
mod ns3;

use anyhow::Context;
use fanin_sim::scenario::Scenario;

fn main() -> anyhow::Result<()> {
    let mut words = std::env::args().skip(1);
    let file = words.next().context("name a scenario's file")?;
    let mut text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {file}"))?;
    for word in words {
        let (key, value) = word.split_once('=').with_context(|| format!("{word}: KEY=VALUE was expected"))?;
        text = replace(&text, key, value).with_context(|| format!("{file} has no line for {key}"))?;
    }
    print!("{}", ns3::input(Scenario::parse(&text)?.plan()?)?);
    Ok(())
}

/// A scenario with another value in the line of a key.
fn replace(text: &str, key: &str, value: &str) -> Option<String> {
    let is_line = |line: &str| line.split_once('=').is_some_and(|(name, _)| name.trim() == key);
    text.lines().any(is_line).then(|| {
        let line = |line: &str| if is_line(line) { format!("{key} = {value}\n") } else { format!("{line}\n") };
        text.lines().map(line).collect()
    })
}
