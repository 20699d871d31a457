//! The switch program as a target: no sockets, the verdict itself.

use fanin_protocol::switchml::{Context, JobConfig, Switch, WireFormat, without_payload};
use fanin_protocol::time::Time;
use fanin_protocol::{DropReason, Verdict};

use super::{Exchange, Outcome, Source, Target};

/// One [`Switch`] and what it was told.
pub struct ProgramTarget {
    switch: Switch,
    /// Every job that was installed, removed ones too: [`Source::job`]
    /// counts them all.
    jobs: Vec<JobConfig>,
    output: Vec<u8>,
    packets: u64,
}

impl Default for ProgramTarget {
    fn default() -> Self {
        ProgramTarget { switch: Switch::new(), jobs: Vec::new(), output: vec![0; 1 << 16], packets: 0 }
    }
}

impl Target for ProgramTarget {
    fn install(&mut self, config: &JobConfig) -> Result<(), String> {
        self.switch.install(*config).map_err(|error| format!("{error:?}"))?;
        self.jobs.push(*config);
        Ok(())
    }

    fn remove(&mut self, job_id: u32) -> Result<(), String> {
        if self.switch.remove(job_id) { Ok(()) } else { Err(format!("no job {job_id:#x}")) }
    }

    fn exchange(&mut self, source: Source, packet: &[u8]) -> Result<Exchange, String> {
        let config = self.jobs.get(source.job).ok_or_else(|| format!("no job at position {}", source.job))?;
        // A p4app job's workers send Probes in fanin v1.
        let is_fanin = config.wire_format == WireFormat::Fanin || packet.starts_with(&[0xfa, 0x91]);
        let context = Context {
            now: Time::from_ns(self.packets),
            wire_format: if is_fanin { WireFormat::Fanin } else { WireFormat::P4app },
            source_rank: (!is_fanin && source.is_registered).then_some(source.rank),
        };
        self.packets += 1;
        let verdict = self.switch.process(&context, packet, &mut self.output);
        Ok(Exchange { outcome: outcome_of(&verdict), answers: self.answers(&verdict, source)? })
    }
}

impl ProgramTarget {
    fn answers(&self, verdict: &Verdict, source: Source) -> Result<Vec<(u16, Vec<u8>)>, String> {
        match *verdict {
            Verdict::Drop(_) => Ok(Vec::new()),
            Verdict::Refuse { bytes, .. }
            | Verdict::Reply { bytes }
            | Verdict::Missing { bytes }
            | Verdict::ProbeReply { bytes } => Ok(vec![(source.rank, self.output[..bytes].to_vec())]),
            Verdict::Multicast { job_number, lane, bytes, destination } => {
                let config = &self.jobs[source.job];
                if job_number != config.job_id as u8 || lane != source.lane {
                    return Err(format!("multicast to job number {job_number}, lane {lane}"));
                }
                let copy = |rank| (rank, copy_for(rank, destination, config.has_checksum, &self.output[..bytes]));
                Ok((0..config.worker_count).map(copy).collect())
            }
        }
    }
}

fn copy_for(rank: u16, destination: Option<u16>, has_checksum: bool, aggregate: &[u8]) -> Vec<u8> {
    if destination.is_none_or(|only| only == rank) {
        return aggregate.to_vec();
    }
    let mut header = vec![0; aggregate.len()];
    let bytes = without_payload(aggregate, has_checksum, &mut header);
    header.truncate(bytes);
    header
}

fn outcome_of(verdict: &Verdict) -> Outcome {
    match *verdict {
        Verdict::Drop(DropReason::AwaitingOthers) => Outcome::Absorbed,
        Verdict::Drop(reason) => Outcome::Dropped(reason),
        Verdict::Refuse { reason, .. } => Outcome::Refused(reason),
        Verdict::Reply { .. } => Outcome::Replied,
        Verdict::Missing { .. } => Outcome::Missing,
        Verdict::ProbeReply { .. } => Outcome::ProbeReplied,
        Verdict::Multicast { .. } => Outcome::Multicast,
    }
}
