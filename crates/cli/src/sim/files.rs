//! Tables of a run as files.

use std::fmt::Write;
use std::path::Path;

use anyhow::Context;
use fanin_sim::engine::{LinkOutcome, Outcome};
use fanin_sim::fabric::Fabric;
use fanin_sim::report;
use fanin_sim::scenario::JobInfo;

use super::figures;
use crate::bench::output::write;

/// What the files are about.
pub struct Told<'a> {
    pub outcome: &'a Outcome,
    pub fabric: &'a Fabric,
    pub jobs: &'a [JobInfo],
    pub duration_ps: u64,
}

impl Told<'_> {
    /// Writes all tables and drawings into a folder.
    pub fn write_to(&self, folder: &Path) -> anyhow::Result<()> {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
        write(&folder.join("hosts.csv"), &self.hosts())?;
        write(&folder.join("flows.csv"), &self.flows())?;
        write(&folder.join("unended.csv"), &self.unended())?;
        write(&folder.join("links.csv"), &self.links())?;
        write(&folder.join("links.svg"), &figures::heat_map(self))?;
        if !self.jobs.is_empty() {
            write(&folder.join("jobs.csv"), &self.jobs())?;
            write(&folder.join("iterations.csv"), &self.iterations())?;
        }
        let intervals = report::intervals(self.outcome, self.jobs.len());
        write(&folder.join("throughput.csv"), &self.throughput(&intervals))?;
        for (name, figure) in figures::all(self, &intervals) {
            figure.write(&folder.join(name))?;
        }
        Ok(())
    }

    /// By link, as in the outcome: share of the time that it was sending.
    pub fn utilisation(&self) -> Vec<f64> {
        let directions = |ends: [u32; 2]| if ends[0] == ends[1] { 1 } else { 2 };
        let links = self.fabric.cables.iter().flat_map(|cable| cable.links.into_iter().take(directions(cable.ends)));
        let rates = links.map(|link| link.rate_bps as f64);
        let seconds = self.duration_ps as f64 / 1e12;
        let sent = self.outcome.links.iter().map(|link| link.counters.sent_bytes as f64 * 8.0);
        sent.zip(rates).map(|(bits, rate)| bits / (rate * seconds)).collect()
    }

    /// As tables name where a link leads to.
    pub fn far_end(&self, link: &LinkOutcome) -> String {
        let name = self.fabric.name(link.to);
        if link.is_accelerator() { format!("{name}/accelerator") } else { name }
    }

    /// Other tables name hosts by number.
    fn hosts(&self) -> String {
        let hosts = self.fabric.host_count;
        let mut switches = vec![String::new(); hosts as usize];
        for [one, other] in self.fabric.cables.iter().map(|cable| cable.ends) {
            let host = one.min(other);
            if host < hosts {
                switches[host as usize] = self.fabric.name(one.max(other));
            }
        }
        let mut text = "host,name,switch\n".to_string();
        for (host, switch) in (0..hosts).zip(switches) {
            let _ = writeln!(text, "{host},{},{switch}", self.fabric.name(host));
        }
        text
    }

    fn flows(&self) -> String {
        let mut text = "source,destination,bytes,start_ps,completion_ps\n".to_string();
        for flow in &self.outcome.flows {
            let (source, destination, bytes) = (flow.source, flow.destination, flow.bytes);
            let _ = writeln!(text, "{source},{destination},{bytes},{},{}", flow.start_ps, flow.completion_ps);
        }
        text
    }

    fn unended(&self) -> String {
        let mut text = "source,destination,bytes,start_ps,acknowledged_bytes\n".to_string();
        for flow in &self.outcome.unended {
            let fanin_sim::host::FlowRecord { source, destination, bytes, start_ps, .. } = flow.so_far;
            let _ = writeln!(text, "{source},{destination},{bytes},{start_ps},{}", flow.acknowledged_bytes);
        }
        text
    }

    fn links(&self) -> String {
        let mut text = "from,to,packets,bytes,marked,dropped,corrupted,queued_bytes_max,utilisation\n".to_string();
        for (link, utilisation) in self.outcome.links.iter().zip(self.utilisation()) {
            let sent = &link.counters;
            let (from, to) = (self.fabric.name(link.from), self.far_end(link));
            let (marked, dropped, longest) = (sent.marked, sent.dropped, sent.queued_bytes_max);
            let (packets, bytes, corrupted) = (sent.sent, sent.sent_bytes, link.corrupted);
            let _ = writeln!(
                text,
                "{from},{to},{packets},{bytes},{marked},{dropped},{corrupted},{longest},{utilisation:.4}"
            );
        }
        text
    }

    fn jobs(&self) -> String {
        let mut text = "job,name,scheme,workers,trees,bytes,compute_ps,start_ps,hosts\n".to_string();
        for (number, job) in self.jobs.iter().enumerate() {
            let hosts: Vec<String> = job.hosts.iter().map(u16::to_string).collect();
            let (name, scheme, workers, trees, bytes) = (&job.name, job.scheme, hosts.len(), job.trees, job.bytes);
            let (compute, start, hosts) = (job.compute_ps, job.start_ps, hosts.join(" "));
            let _ = writeln!(text, "{number},{name},{scheme},{workers},{trees},{bytes},{compute},{start},{hosts}");
        }
        text
    }

    fn iterations(&self) -> String {
        let mut text = "job,iteration,start_ps,communication_ps,end_ps\n".to_string();
        for one in report::iterations(self.outcome, self.jobs) {
            let (job, iteration) = (one.job, one.iteration);
            let _ = writeln!(text, "{job},{iteration},{},{},{}", one.start_ps, one.communication_ps, one.end_ps);
        }
        text
    }

    fn throughput(&self, intervals: &[report::Interval]) -> String {
        let names: String = self.jobs.iter().map(|job| format!(",{}_bps", job.name)).collect();
        let mut text = format!("end_ps,flows_bps,active_hosts,fairness{names}\n");
        for interval in intervals {
            let jobs: String = interval.jobs_bps.iter().map(|bps| format!(",{bps:.0}")).collect();
            let (end, flows, hosts) = (interval.end_ps, interval.flows_bps, interval.active_hosts);
            let _ = writeln!(text, "{end},{flows:.0},{hosts},{:.4}{jobs}", interval.fairness);
        }
        text
    }
}
