//! Cases as a table, for programs, and as a drawing.

use std::time::Duration;

use comfy_table::Table;
use serde_json::{Value, json};

use super::case::{Case, Series};
use crate::bench::output::{BaselineUse, Findings, percent, table};
use crate::bench::plot::{self, Figure, Shape};
use crate::bench::units::{show_bytes, show_time};

/// A column of a value that a subcommand derived.
pub struct Column {
    pub title: &'static str,
    /// In [`Series::derived`].
    pub key: &'static str,
    pub show: fn(f64) -> String,
}

/// All of them; a table has those for which there is a value.
pub const DERIVED: &[Column] = &[
    Column { title: "rank us/MiB", key: "cpu_us_per_mib", show: |time| format!("{time:.0}") },
    Column { title: "sleeps/MiB", key: "sleeps_per_mib", show: |count| format!("{count:.1}") },
    Column { title: "switch us/MiB", key: "switch_us_per_mib", show: |time| format!("{time:.0}") },
    Column { title: "gain", key: "gain_over_gloo", show: |gain| format!("{gain:.2}") },
    Column { title: "of 2(n-1)/n", key: "share_of_ring_factor", show: percent },
    Column { title: "resends/lost", key: "resends_per_loss", show: |count| format!("{count:.2}") },
    Column { title: "goodput", key: "goodput_share", show: percent },
    Column { title: "ceiling", key: "goodput_ceiling", show: percent },
    Column { title: "paper", key: "goodput_ceiling_paper", show: percent },
    Column { title: "window", key: "window_bytes", show: |bytes| show_bytes(bytes as u64) },
    Column {
        title: "round trip",
        key: "round_trip_smoothed_ns",
        show: |ns| show_time(Duration::from_nanos(ns as u64)),
    },
    Column { title: "BDP", key: "bandwidth_delay_bytes", show: |bytes| show_bytes(bytes as u64) },
    Column { title: "rule", key: "slots_by_rule", show: |slots| format!("{slots} slots") },
];

/// What the drawing shows.
pub struct Axes {
    pub title: String,
    pub x_label: &'static str,
    pub x: fn(&Case, &Series) -> f64,
    pub y_label: &'static str,
    pub y: fn(&Case, &Series) -> f64,
    pub shape: Shape,
}

impl Axes {
    /// Median times over sizes, both logarithmic.
    pub fn time_over_size(title: String) -> Axes {
        Axes {
            title,
            x_label: "tensor",
            x: |case, _| case.size_bytes as f64,
            y_label: "median time, us",
            y: |_, series| series.times.p50_ns as f64 / 1e3,
            shape: Shape::Lines { log_y: true, x_bytes: true },
        }
    }

    /// One line or set of bars per contender.
    pub fn figure(self, cases: &[Case]) -> Figure {
        let mut lines: Vec<plot::Series> = Vec::new();
        for case in cases {
            for series in &case.series {
                let point = ((self.x)(case, series), (self.y)(case, series));
                match lines.iter_mut().find(|line| line.name == series.name) {
                    Some(line) => line.points.push(point),
                    None => lines.push(plot::Series { name: series.name.clone(), points: vec![point] }),
                }
            }
        }
        Figure {
            title: self.title,
            x_label: self.x_label.into(),
            y_label: self.y_label.into(),
            shape: self.shape,
            series: lines,
        }
    }
}

/// Findings from cases.
pub fn findings(setting: Value, cases: Vec<Case>, baselines: Vec<BaselineUse>, figure: Figure) -> Findings {
    Findings {
        setting,
        baselines,
        table: cases_table(&cases),
        caption: caption(&cases),
        figure,
        wrong_elements: cases.iter().map(Case::wrong_elements).sum(),
        cases: json!(cases),
    }
}

fn cases_table(cases: &[Case]) -> Table {
    let has = |column: &&Column| {
        cases.iter().flat_map(|case| &case.series).any(|series| series.derived.contains_key(column.key))
    };
    let columns: Vec<_> = DERIVED.iter().filter(has).collect();
    let mut header = vec!["ranks", "size", "dtype", "who", "min", "p50", "p99", "max", "Gbit/s", "x first", "of bound"];
    header.extend(columns.iter().map(|column| column.title));
    header.extend(["resends", "queries", "lost", "wrong"]);
    let mut table = table(&header, 4);
    for case in cases {
        for series in &case.series {
            table.add_row(cells(case, series, &columns));
        }
    }
    table
}

fn cells(case: &Case, series: &Series, columns: &[&Column]) -> Vec<String> {
    let time = |ns: u64| show_time(Duration::from_nanos(ns));
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    let times = &series.times;
    let mut cells = vec![case.ranks.to_string(), show_bytes(case.size_bytes), case.dtype.clone(), series.name.clone()];
    cells.extend([times.min_ns, times.p50_ns, times.p99_ns, times.max_ns].map(time));
    cells.push(format!("{:.2}", series.goodput_gbps));
    cells.push(format!("{:.2}", series.ratio_to_first));
    cells.push(or_dash(series.share_of_bound.map(percent)));
    cells.extend(
        columns.iter().map(|column| or_dash(series.derived.get(column.key).map(|value| (column.show)(*value)))),
    );
    let counter = |value: Option<u64>| or_dash(value.map(|value| value.to_string()));
    let counters = series.counters.as_ref();
    cells.push(counter(counters.map(|counters| counters.resends)));
    cells.push(counter(counters.map(|counters| counters.queries)));
    cells.push(counter(counters.map(|counters| counters.losses_injected)));
    cells.push(series.wrong_elements.to_string());
    cells
}

fn caption(cases: &[Case]) -> Vec<String> {
    let Some(case) = cases.first() else { return Vec::new() };
    let ranks: Vec<_> = cases.iter().map(|case| case.ranks).collect();
    let (low, high) = (ranks.iter().min().unwrap_or(&0), ranks.iter().max().unwrap_or(&0));
    let ranks = if low == high { format!("{low} ranks") } else { format!("{low} to {high} ranks") };
    let (place, bound) = match (case.link_rate_bps, case.mtu_bytes) {
        (Some(rate), Some(mtu)) => {
            (format!("links of {} Mbit/s, MTU {mtu}", rate as f64 / 1e6), "fanin's time on the wire")
        }
        _ => ("loopback".into(), "one memcpy of the tensor"),
    };
    let first = case.series.first().map_or("-", |series| series.name.as_str());
    let rounds = case.series.first().map_or(0, |series| series.times.rounds_ns.len());
    vec![format!(
        "{ranks}, {place}, {rounds} rounds; bound: {bound}; x first: median of time / time of \"{first}\" in the same round"
    )]
}
