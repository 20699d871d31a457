//! From findings to a table, a file of results and a plot.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use comfy_table::{CellAlignment, Table, TableComponent, presets};
use serde::Serialize;
use serde_json::Value;

use super::machine::{Load, LoadMeter, Machine};
use super::plot::Figure;
use super::process;
use super::weight::Weight;

/// Layout of the files of results; raised with every change that a reader would notice.
pub const LAYOUT_VERSION: u32 = 2;

/// Flags of every benchmark.
#[derive(Args, Clone, Debug, Default)]
pub struct OutputArguments {
    /// Write the results as JSON; `-` is standard output, instead of the table.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub json: Option<PathBuf>,
    /// Draw the results as SVG.
    #[arg(long, value_name = "FILE.svg", help_heading = "Output")]
    pub plot: Option<PathBuf>,
}

/// What a benchmark found.
pub struct Findings {
    /// What was asked for, for programs.
    pub setting: Value,
    /// The systems that were measured beside fanin, or why they were not.
    pub baselines: Vec<BaselineUse>,
    /// For people.
    pub table: Table,
    /// Lines below the table.
    pub caption: Vec<String>,
    /// The same as a drawing.
    pub figure: Figure,
    /// The same for programs.
    pub cases: Value,
    /// Elements of results that were not what they had to be.
    pub wrong_elements: u64,
}

/// A system that was measured beside fanin, or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BaselineUse {
    /// For example "gloo".
    pub name: String,
    /// Whether it took part.
    pub used: bool,
    /// Its version.
    pub version: Option<String>,
    /// Why it was left out.
    pub reason: Option<String>,
}

impl BaselineUse {
    /// One line for people.
    pub fn line(&self) -> String {
        match (&self.version, &self.reason) {
            (Some(version), _) => format!("{}: {version}", self.name),
            (None, Some(reason)) => format!("{} is LEFT OUT: {reason}", self.name),
            (None, None) => self.name.clone(),
        }
    }
}

/// A file of results. The JSON's keys are this type's.
#[derive(Serialize)]
struct Report {
    version: u32,
    benchmark: &'static str,
    /// What to type for the same again.
    command: String,
    machine: Machine,
    load: Load,
    scheduling: Weight,
    setting: Value,
    baselines: Vec<BaselineUse>,
    wrong_elements: u64,
    cases: Value,
}

/// Runs a benchmark with raised weight and hands its findings to everybody;
/// the exit status is 1 if a result was wrong.
///
/// # Errors
/// Whatever stopped the benchmark, or a file that cannot be written.
pub fn conduct(
    output: &OutputArguments,
    benchmark: &'static str,
    measure: impl FnOnce() -> anyhow::Result<Findings>,
) -> anyhow::Result<i32> {
    if let Some(file) = &output.plot {
        // Hours of measuring should not end with this.
        anyhow::ensure!(file.extension().is_some_and(|end| end == "svg"), "a plot is an SVG file: --plot NAME.svg");
    }
    process::catch_interrupts()?;
    let meter = LoadMeter::start();
    let scheduling = Weight::raise();
    eprintln!("{}", scheduling.describe());
    let findings = measure()?;
    let report = Report {
        version: LAYOUT_VERSION,
        benchmark,
        command: command(),
        machine: Machine::describe(),
        load: meter.stop(),
        scheduling,
        setting: findings.setting,
        baselines: findings.baselines,
        wrong_elements: findings.wrong_elements,
        cases: findings.cases,
    };
    if let Some(file) = &output.plot {
        findings.figure.write(file)?;
    }
    match &output.json {
        Some(file) if file.as_os_str() == "-" => println!("{}", serde_json::to_string_pretty(&report)?),
        file => {
            if let Some(file) = file {
                write(file, &(serde_json::to_string_pretty(&report)? + "\n"))?;
            }
            report.print(&findings.table, &findings.caption);
        }
    }
    Ok(if report.wrong_elements == 0 { 0 } else { 1 })
}

impl Report {
    fn print(&self, table: &Table, caption: &[String]) {
        println!("{table}");
        caption.iter().for_each(|line| println!("{line}"));
        self.baselines.iter().for_each(|baseline| println!("{}", baseline.line()));
        println!("{}", self.machine.line());
        println!("{}; {}", self.scheduling.describe(), self.load.line());
        if self.wrong_elements > 0 {
            println!("{} WRONG ELEMENTS: the sums cannot be trusted", self.wrong_elements);
        }
    }
}

/// A table of the house's looks: words to the left, numbers to the right.
pub fn table(header: &[&str], words: usize) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    // A line below every row would hide the rows.
    table.remove_style(TableComponent::HorizontalLines).remove_style(TableComponent::MiddleIntersections);
    table.set_header(header.to_vec());
    for column in table.column_iter_mut().skip(words) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// "63.4 %".
pub fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// Writes a file, or says which one could not be.
///
/// # Errors
/// From the system, with the file's name.
pub fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// The command line from `bench` on, without the names of the files that it wrote.
fn command() -> String {
    let mut words = vec!["fanin".to_owned()];
    let mut arguments = std::env::args().skip_while(|word| word != "bench");
    while let Some(word) = arguments.next() {
        match word.as_str() {
            "--json" | "--plot" => drop(arguments.next()),
            _ if word.starts_with("--json=") || word.starts_with("--plot=") => {}
            _ => words.push(word),
        }
    }
    words.join(" ")
}
