//! `fanin numerics`: what accumulators do to gradients of one's own.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};
use fanin_lab::findings::quoted;
use fanin_lab::numerics::{Accumulator, Comparison, Entry, ParameterErrors, Question, compare, parse_format};
use fanin_lab::recording::Recording;
use serde::Serialize;
use serde_json::Value;

use crate::bench::output::{table, write};
use crate::reproduce::output::figure;

const ABOUT: &str = "For each element, the ranks' gradients are summed in the order of the ranks by every accumulator, as workers and \
switch would do it, and once exactly. exact: elements that are the exact sum. median, p99, largest: magnitude of result - exact sum \
that half, 99 % and all of the elements do not exceed. bias: its mean, sign included. relative p99: of error / exact sum. no number: \
infinite or NaN although the sum is one. order: elements that differ when the ranks come in the opposite order. of bound: the \
largest error over what spec/NUMERICS.md promises; - where it promises nothing finite. What each accumulator does: \
docs/guides/comparing-accumulators.md.";

/// What to do with numbers.
#[derive(Subcommand, Debug)]
pub enum Numerics {
    /// Run all accumulators over recorded gradients and compare their errors.
    Compare(CompareArguments),
}

/// Flags of `fanin numerics compare`.
#[derive(Args, Debug)]
#[command(after_long_help = ABOUT)]
pub struct CompareArguments {
    /// A recording of `fanin.record`: a folder with all ranks' files.
    #[arg(long, value_name = "FOLDER")]
    gradients: PathBuf,
    /// Accumulators by name; without, all of them.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    accumulators: Vec<Accumulator>,
    /// To which the gradients are rounded before they are summed.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// Sum the first so many ranks only.
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// Show the errors of each parameter as well.
    #[arg(long)]
    by_parameter: bool,
    /// Write the results as JSON and CSV, and the distributions as SVG, into this folder.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Formats of tensors.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Format {
    /// IEEE 754 binary32.
    #[default]
    Float32,
    /// IEEE 754 binary16.
    Float16,
    /// bfloat16.
    Bfloat16,
}

/// Runs a subcommand.
///
/// # Errors
/// A recording that cannot be used, or a file that cannot be written.
pub fn run(command: Numerics) -> anyhow::Result<i32> {
    let Numerics::Compare(arguments) = command;
    let recording = Recording::read(&arguments.gradients)?;
    let accumulators = match arguments.accumulators.is_empty() {
        true => Accumulator::ALL.to_vec(),
        false => arguments.accumulators,
    };
    let format = arguments.format.to_possible_value().context("every format has a name")?;
    let format = parse_format(format.get_name())?;
    let comparison = compare(&recording, &Question { accumulators, format, workers: arguments.workers })?;
    print(&comparison, arguments.by_parameter);
    if let Some(folder) = &arguments.out {
        write_files(&comparison, folder)?;
    }
    Ok(0)
}

fn print(comparison: &Comparison, by_parameter: bool) {
    let header = ["", "exact", "median", "p99", "largest", "bias", "relative p99", "no number", "order", "of bound"];
    let mut shown = table(&header, 1);
    comparison.entries.iter().for_each(|entry| {
        shown.add_row(errors(entry));
    });
    println!("{shown}");
    let header = ["", "overflow", "saturation", "overwrite", "left shift", "flushed to zero", "lost bits"];
    let mut counts = table(&header, 1);
    for entry in comparison.entries.iter().filter(|entry| counted(entry).iter().any(|count| *count > 0)) {
        let cells = counted(entry).map(|count| count.to_string());
        counts.add_row([entry.accumulator.to_owned()].into_iter().chain(cells));
    }
    println!("\nAdditions and read-outs by cause (an element counts once for each):\n{counts}");
    if by_parameter {
        println!("\n{}", parameters(&comparison.parameters));
    }
    let elements = comparison.entries.first().map_or(0, |entry| entry.elements);
    println!(
        "{}: {elements} elements at {} steps, each the sum of {} workers' {}",
        comparison.recording, comparison.steps, comparison.workers, comparison.format
    );
    if comparison.elements_without_sum > 0 {
        println!("{} more hold an infinity or a NaN of some rank and are left out", comparison.elements_without_sum);
    }
    comparison.notes.iter().for_each(|note| println!("{note}"));
}

fn errors(entry: &Entry) -> Vec<String> {
    vec![
        entry.accumulator.into(),
        percent(entry.exact_percent),
        magnitude(entry.median),
        magnitude(entry.p99),
        magnitude(entry.largest),
        magnitude(entry.bias),
        magnitude(entry.relative_p99),
        entry.not_finite.to_string(),
        percent(entry.order_percent),
        entry.of_bound.map_or("-".into(), |share| format!("{share:.2}")),
    ]
}

fn counted(entry: &Entry) -> [u64; 6] {
    [entry.overflow, entry.saturation, entry.overwrite, entry.left_shift, entry.flushed_to_zero, entry.lost_bits]
}

fn parameters(all: &[ParameterErrors]) -> comfy_table::Table {
    let mut shown =
        table(&["parameter", "accumulator", "elements", "exact", "median", "p99", "largest", "no number"], 2);
    for one in all {
        shown.add_row([
            one.parameter.clone(),
            one.accumulator.into(),
            one.elements.to_string(),
            percent(one.exact_percent),
            magnitude(one.median),
            magnitude(one.p99),
            magnitude(one.largest),
            one.not_finite.to_string(),
        ]);
    }
    shown
}

fn percent(share: f64) -> String {
    format!("{share:.2} %")
}

fn magnitude(value: f64) -> String {
    if value == 0.0 { "0".into() } else { format!("{value:.1e}") }
}

fn write_files(comparison: &Comparison, folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    write(&folder.join("compare.json"), &(serde_json::to_string_pretty(comparison)? + "\n"))?;
    write(&folder.join("compare.csv"), &csv(&comparison.entries)?)?;
    write(&folder.join("compare-parameters.csv"), &csv(&comparison.parameters)?)?;
    comparison.plots.iter().try_for_each(|plot| figure(plot).write(&folder.join(format!("compare-{}.svg", plot.name))))
}

/// Values with a line of names; a name with a comma or a quote is quoted.
fn csv<T: Serialize>(lines: &[T]) -> anyhow::Result<String> {
    let cell = |value: &Value| match value {
        Value::String(text) => quoted(text),
        Value::Null => String::new(),
        number => number.to_string(),
    };
    let mut text = String::new();
    for line in lines {
        let Value::Object(fields) = serde_json::to_value(line)? else { continue };
        if text.is_empty() {
            text = fields.keys().cloned().collect::<Vec<_>>().join(",") + "\n";
        }
        text += &(fields.values().map(cell).collect::<Vec<_>>().join(",") + "\n");
    }
    Ok(text)
}
