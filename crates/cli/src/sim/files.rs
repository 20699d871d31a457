//! Tables of a run as files.

use std::path::Path;

use anyhow::Context;
use fanin_sim::engine::{LinkOutcome, Outcome};
use fanin_sim::fabric::Fabric;
use fanin_sim::report;
use fanin_sim::scenario::JobInfo;

use super::figures;
use super::tables::{Format, Table};
use crate::bench::output::write;

pub const REPORT: &str = "report.json";
/// All that a run may have, without what a format adds.
const TABLES: [&str; 7] = ["hosts", "flows", "unended", "links", "throughput", "jobs", "iterations"];
const DRAWINGS: [&str; 5] = ["links.svg", "completion.svg", "percentiles.svg", "throughput.svg", "fairness.svg"];

/// Not every run has every file: what another has left would be taken for this one's.
fn remove_files_of_a_run(folder: &Path) -> anyhow::Result<()> {
    let tables = TABLES.iter().flat_map(|name| ["csv", "parquet"].map(|format| format!("{name}.{format}")));
    for name in tables.chain(DRAWINGS.map(String::from)).chain([REPORT.into()]) {
        let file = folder.join(name);
        if let Err(error) = std::fs::remove_file(&file)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            return Err(error).with_context(|| format!("cannot remove {}, of a run before", file.display()));
        }
    }
    Ok(())
}

/// What the files are about.
pub struct Told<'a> {
    pub outcome: &'a Outcome,
    pub fabric: &'a Fabric,
    pub jobs: &'a [JobInfo],
    pub duration_ps: u64,
}

impl Told<'_> {
    /// Writes all tables and drawings into a folder, in place of those of a run before.
    pub fn write_to(&self, folder: &Path, format: Format) -> anyhow::Result<()> {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
        remove_files_of_a_run(folder)?;
        let intervals = report::intervals(self.outcome, self.jobs.len());
        let mut tables = vec![self.hosts(), self.flows(), self.unended(), self.links(), self.throughput(&intervals)];
        if !self.jobs.is_empty() {
            tables.extend([self.jobs(), self.iterations()]);
        }
        tables.iter().try_for_each(|table| table.write_to(folder, format))?;
        write(&folder.join("links.svg"), &figures::heat_map(self))?;
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
    fn hosts(&self) -> Table {
        let hosts = self.fabric.host_count;
        let mut switches = vec![String::new(); hosts as usize];
        for [one, other] in self.fabric.cables.iter().map(|cable| cable.ends) {
            if let Some(switch) = switches.get_mut(one.min(other) as usize) {
                *switch = self.fabric.name(one.max(other));
            }
        }
        Table::new("hosts")
            .integers("host", 0..hosts.into())
            .texts("name", (0..hosts).map(|host| self.fabric.name(host)))
            .texts("switch", switches.into_iter())
    }

    fn flows(&self) -> Table {
        let flows = || self.outcome.flows.iter();
        Table::new("flows")
            .integers("source", flows().map(|flow| flow.source.into()))
            .integers("destination", flows().map(|flow| flow.destination.into()))
            .integers("bytes", flows().map(|flow| flow.bytes))
            .integers("start_ps", flows().map(|flow| flow.start_ps))
            .integers("completion_ps", flows().map(|flow| flow.completion_ps))
    }

    fn unended(&self) -> Table {
        let (all, flows) = (&self.outcome.unended, || self.outcome.unended.iter().map(|flow| flow.so_far));
        Table::new("unended")
            .integers("source", flows().map(|flow| flow.source.into()))
            .integers("destination", flows().map(|flow| flow.destination.into()))
            // A flow without end has no length.
            .integers_where_known("bytes", flows().map(|flow| (flow.bytes != u64::MAX).then_some(flow.bytes)))
            .integers("start_ps", flows().map(|flow| flow.start_ps))
            .integers("acknowledged_bytes", all.iter().map(|flow| flow.acknowledged_bytes))
    }

    fn links(&self) -> Table {
        let links = || self.outcome.links.iter();
        let sent = || links().map(|link| link.counters);
        Table::new("links")
            .texts("from", links().map(|link| self.fabric.name(link.from)))
            .texts("to", links().map(|link| self.far_end(link)))
            .integers("packets", sent().map(|sent| sent.sent))
            .integers("bytes", sent().map(|sent| sent.sent_bytes))
            .integers("marked", sent().map(|sent| sent.marked))
            .integers("dropped", sent().map(|sent| sent.dropped))
            .integers("corrupted", links().map(|link| link.corrupted))
            .integers("queued_bytes_max", sent().map(|sent| sent.queued_bytes_max))
            .reals("utilisation", 4, self.utilisation().into_iter())
    }

    fn jobs(&self) -> Table {
        let jobs = || self.jobs.iter();
        let hosts = |job: &JobInfo| job.hosts.iter().map(u16::to_string).collect::<Vec<_>>().join(" ");
        Table::new("jobs")
            .integers("job", 0..self.jobs.len() as u64)
            .texts("name", jobs().map(|job| job.name.clone()))
            .texts("scheme", jobs().map(|job| job.scheme.to_string()))
            .integers("workers", jobs().map(|job| job.hosts.len() as u64))
            .integers("trees", jobs().map(|job| job.trees as u64))
            .integers("bytes", jobs().map(|job| job.bytes))
            .integers("compute_ps", jobs().map(|job| job.compute_ps))
            .integers("start_ps", jobs().map(|job| job.start_ps))
            .texts("hosts", jobs().map(hosts))
    }

    fn iterations(&self) -> Table {
        let all: Vec<_> = report::iterations(self.outcome, self.jobs).into_iter().collect();
        let iterations = || all.iter();
        Table::new("iterations")
            .integers("job", iterations().map(|one| one.job as u64))
            .integers("iteration", iterations().map(|one| one.iteration as u64))
            .integers("start_ps", iterations().map(|one| one.start_ps))
            .integers("first_ready_ps", iterations().map(|one| one.first_ready_ps))
            .integers("computed_ps", iterations().map(|one| one.computed_ps))
            .integers("end_ps", iterations().map(|one| one.end_ps))
    }

    fn throughput(&self, intervals: &[report::Interval]) -> Table {
        let all = || intervals.iter();
        let table = Table::new("throughput")
            .integers("end_ps", all().map(|interval| interval.end_ps))
            .reals("flows_bps", 0, all().map(|interval| interval.flows_bps))
            .integers("active_hosts", all().map(|interval| interval.active_hosts as u64))
            .reals_where_known("fairness", 4, all().map(|interval| interval.fairness));
        let with = |table: Table, (place, job): (usize, &JobInfo)| {
            table.reals(&format!("{}_bps", job.name), 0, all().map(|interval| interval.jobs_bps[place]))
        };
        self.jobs.iter().enumerate().fold(table, with)
    }
}
