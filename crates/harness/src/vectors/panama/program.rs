//! The switch program as a target.

use fanin_protocol::DropReason;
use fanin_protocol::panama::{Context, Floats, Switch, SwitchConfig, TreeConfig, Verdict};

use super::{Outcome, SwitchSpec, SwitchTarget, VerdictName};

/// Larger than any datagram of a vector.
const OUTPUT_BYTES: usize = 4096;

/// An accelerator in this process.
#[derive(Default)]
pub struct ProgramTarget {
    switch: Option<Switch<Floats>>,
}

impl ProgramTarget {
    fn switch(&mut self) -> Result<&mut Switch<Floats>, String> {
        self.switch.as_mut().ok_or_else(|| "not set up".into())
    }
}

impl SwitchTarget for ProgramTarget {
    fn set_up(&mut self, switch: &SwitchSpec) -> Result<(), String> {
        self.switch = Some(Switch::new(SwitchConfig {
            memory_packets: switch.memory_packets,
            pause_packets: switch.pause_packets,
            element_count_max: switch.element_count_max,
        }));
        Ok(())
    }

    fn install(&mut self, tree: &TreeConfig) -> Result<(), String> {
        self.switch()?.install(*tree).map_err(|error| format!("{error:?}"))
    }

    fn remove(&mut self, job_id: u32) -> Result<(), String> {
        if self.switch()?.remove(job_id) { Ok(()) } else { Err(format!("no job {job_id:#x}")) }
    }

    fn exchange(&mut self, port: u8, is_marked: bool, packet: &[u8]) -> Result<Vec<Outcome>, String> {
        let switch = self.switch()?;
        let mut output = [0; OUTPUT_BYTES];
        let first = switch.process(&Context { port, is_marked }, packet, &mut output);
        let mut outcomes = vec![outcome(&first, port, &output)];
        while let Some(verdict) = switch.proceed(&mut output) {
            outcomes.push(outcome(&verdict, port, &output));
        }
        Ok(outcomes)
    }

    fn paused_ports(&self) -> Option<u64> {
        self.switch.as_ref().map(Switch::paused_ports)
    }
}

fn outcome(verdict: &Verdict, port: u8, output: &[u8]) -> Outcome {
    let datagram = verdict.header().map_or_else(Vec::new, |header| output[..header.datagram_bytes()].to_vec());
    let (name, reason, ports) = match *verdict {
        Verdict::Drop(DropReason::AwaitingOthers) => (VerdictName::Absorb, None, 0),
        Verdict::Drop(reason) => (VerdictName::Drop, Some(reason), 0),
        Verdict::Refuse { reason, .. } => (VerdictName::Refuse, Some(reason), 1 << port),
        Verdict::Up { port, .. } => (VerdictName::Up, None, 1 << port),
        Verdict::Down { ports, .. } => (VerdictName::Down, None, ports),
    };
    Outcome { verdict: name, reason, ports, datagram }
}
