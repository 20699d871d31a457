//! Tables, files and drawings of experiments.

use std::path::Path;

use fanin_lab::findings::{Findings, Plot, Row};
use serde::Serialize;

use crate::bench::output::{table, write};
use crate::bench::plot::{Figure, Series, Shape};

/// What an experiment found, and how long it took.
#[derive(Serialize)]
pub struct Run {
    #[serde(flatten)]
    pub findings: Findings,
    pub seconds: f64,
}

impl Run {
    /// A table for people.
    pub fn print(&self) {
        let findings = &self.findings;
        println!("{}: {}", findings.experiment, findings.title);
        let mut shown = table(&["", "paper", "ours", "holds"], 4);
        for row in &findings.rows {
            shown.add_row([row.quantity.as_str(), &row.paper, &row.ours, holds(row)]);
        }
        println!("{shown}");
        let mut remarks: Vec<&str> = Vec::new();
        for row in &findings.rows {
            if !row.remark.is_empty() && !remarks.contains(&row.remark.as_str()) {
                remarks.push(&row.remark);
            }
        }
        remarks.into_iter().chain(findings.notes.iter().map(String::as_str)).for_each(|line| println!("{line}"));
        let arrivals = match findings.hops {
            0 => String::new(),
            hops => format!("{:.1} M packet arrivals, ", hops as f64 / 1e6),
        };
        println!("{}; {arrivals}{:.1} s\n", findings.place, self.seconds);
    }

    /// `NAME.json`, and for each sheet and plot `NAME-SHEET.csv` and `NAME-PLOT.svg`.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn write(&self, folder: &Path) -> anyhow::Result<()> {
        let name = &self.findings.experiment;
        write(&folder.join(format!("{name}.json")), &(serde_json::to_string_pretty(self)? + "\n"))?;
        for sheet in &self.findings.sheets {
            write(&folder.join(format!("{name}-{}.csv", sheet.name)), &sheet.to_csv())?;
        }
        for plot in &self.findings.plots {
            figure(plot).write(&folder.join(format!("{name}-{}.svg", plot.name)))?;
        }
        Ok(())
    }
}

/// "yes" or "no", and nothing where there is nothing to hold.
pub fn holds(row: &Row) -> &'static str {
    match row.holds {
        Some(true) => "yes",
        Some(false) => "no",
        None => "",
    }
}

/// A plot as a drawing.
pub fn figure(plot: &Plot) -> Figure {
    let series = |(name, points): &(String, Vec<(f64, f64)>)| Series { name: name.clone(), points: points.clone() };
    Figure {
        title: plot.title.clone(),
        x_label: plot.x_label.clone(),
        y_label: plot.y_label.clone(),
        shape: if plot.is_x_log { Shape::Lines { log_y: false, x_bytes: false } } else { Shape::LinearLines },
        series: plot.lines.iter().map(series).collect(),
    }
}
