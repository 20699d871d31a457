//! Drawings of a run.

use std::fmt::Write;

use fanin_sim::engine::Outcome;
use fanin_sim::report::{self, Interval, Report};

use super::files::Told;
use crate::bench::plot::{Figure, Series, Shape};

/// Points of a drawn distribution.
const CURVE_POINTS: usize = 200;
/// More jobs than that would not be told apart.
const JOBS_SHOWN_MAX: usize = 6;
const CELL: usize = 12;
const LEGEND_HEIGHT: usize = 46;
const LABEL_WIDTH: usize = 130;

/// Files' names and what they show.
pub fn all(told: &Told, intervals: &[Interval]) -> Vec<(&'static str, Figure)> {
    let figures = [
        ("completion.svg", completion_times(told.outcome)),
        ("percentiles.svg", percentiles(told)),
        ("throughput.svg", throughput(told, intervals)),
        ("fairness.svg", fairness(intervals)),
    ];
    figures.into_iter().filter_map(|(name, figure)| Some((name, figure?))).collect()
}

/// Distribution of completion times, by the same sizes as the table.
fn completion_times(outcome: &Outcome) -> Option<Figure> {
    let (mut series, mut low) = (Vec::new(), 0);
    for high in report::CLASS_ENDS {
        let of_class = outcome.flows.iter().filter(|flow| flow.bytes > low && flow.bytes <= high);
        let mut times: Vec<f64> = of_class.map(|flow| flow.completion_ps as f64 / 1e6).collect();
        times.sort_by(f64::total_cmp);
        let step = times.len().div_ceil(CURVE_POINTS).max(1);
        let share = |place: usize| 100.0 * (place + 1) as f64 / times.len() as f64;
        let points: Vec<_> =
            times.iter().enumerate().step_by(step).map(|(place, &time)| (time, share(place))).collect();
        if points.len() > 1 {
            series.push(Series { name: super::class_name(high), points });
        }
        low = high;
    }
    (!series.is_empty()).then(|| Figure {
        title: "Flow completion times".into(),
        x_label: "completion time, µs".into(),
        y_label: "flows that took no longer, %".into(),
        shape: Shape::Lines { log_y: false, x_bytes: false },
        series,
    })
}

/// Median and 99th percentile of completion times over sizes.
fn percentiles(told: &Told) -> Option<Figure> {
    let report = Report::new(told.outcome, told.jobs, told.duration_ps);
    let classes = report.classes.split_last()?.1.iter().filter(|class| class.count > 0);
    let classes: Vec<_> = classes.collect();
    let groups = classes.iter().map(|class| super::class_name(class.bytes_max)).collect();
    let series = |name: &str, part: fn(&report::FlowClass) -> Option<f64>| {
        let point = |(place, class): (usize, &&report::FlowClass)| Some((place as f64, part(class)? / 1000.0));
        let points = classes.iter().enumerate().filter_map(point).collect();
        Series { name: name.into(), points }
    };
    (!classes.is_empty()).then(|| Figure {
        title: "Flow completion times by size".into(),
        x_label: "size of the flow".into(),
        y_label: "completion time, ms".into(),
        shape: Shape::Bars { groups },
        series: vec![series("median", |class| class.p50_us), series("99 in 100", |class| class.p99_us)],
    })
}

fn throughput(told: &Told, intervals: &[Interval]) -> Option<Figure> {
    let hosts = told.outcome.hosts.len() as f64;
    let line = |name: &str, part: &dyn Fn(&Interval) -> f64| Series {
        name: name.into(),
        points: intervals.iter().map(|interval| (interval.end_ps as f64 / 1e9, part(interval) / 1e9)).collect(),
    };
    let mut series = vec![line("flows, a host", &|interval| interval.flows_bps / hosts)];
    for (number, job) in told.jobs.iter().enumerate().take(JOBS_SHOWN_MAX) {
        series.push(line(&job.name, &|interval| interval.jobs_bps[number]));
    }
    (intervals.len() > 1).then(|| Figure {
        title: "Throughput: payload of flows a host, gradients summed a rank".into(),
        x_label: "time, ms".into(),
        y_label: "Gbit/s".into(),
        shape: Shape::LinearLines,
        series,
    })
}

fn fairness(intervals: &[Interval]) -> Option<Figure> {
    let shared = intervals.iter().filter(|interval| interval.active_hosts > 1);
    let points: Vec<_> =
        shared.filter_map(|interval| Some((interval.end_ps as f64 / 1e9, interval.fairness?))).collect();
    (points.len() > 1).then(|| Figure {
        title: "Fairness among hosts that send flows".into(),
        x_label: "time, ms".into(),
        y_label: "Jain's index".into(),
        shape: Shape::LinearLines,
        series: vec![Series { name: "Jain's index".into(), points }],
    })
}

/// A row for each switch's ports, and for the hosts below it; the redder a cell, the longer its link was sending.
pub fn heat_map(told: &Told) -> String {
    let utilisation = told.utilisation();
    let hosts = told.fabric.host_count;
    let mut rows: Vec<(String, Vec<usize>)> = Vec::new();
    let mut place_of = vec![None; told.fabric.node_count() as usize];
    for (index, link) in told.outcome.links.iter().enumerate() {
        // Hosts stand in the row of their switch.
        let (place, label) = if link.from < hosts {
            (&mut place_of[link.to as usize], format!("hosts of {}", told.fabric.name(link.to)))
        } else {
            (&mut place_of[link.from as usize], told.fabric.name(link.from))
        };
        let [own, below] = place.get_or_insert([None::<usize>; 2]);
        let row = if link.from < hosts { below } else { own };
        let row = *row.get_or_insert_with(|| {
            rows.push((label, Vec::new()));
            rows.len() - 1
        });
        rows[row].1.push(index);
    }
    let columns = rows.iter().map(|(_, links)| links.len()).max().unwrap_or(0);
    let (width, height) = (LABEL_WIDTH + (columns.max(20) + 1) * CELL, LEGEND_HEIGHT + (rows.len() + 1) * CELL);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"10\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    legend(&mut svg);
    for (row, (label, links)) in rows.iter().enumerate() {
        let y = LEGEND_HEIGHT + row * CELL;
        let _ = writeln!(svg, "<text x=\"4\" y=\"{}\">{label}</text>", y + CELL - 3);
        for (column, &index) in links.iter().enumerate() {
            let link = &told.outcome.links[index];
            let name = format!("{} to {}", told.fabric.name(link.from), told.far_end(link));
            cell(&mut svg, LABEL_WIDTH + column * CELL, y, utilisation[index], &name);
        }
    }
    svg + "</svg>\n"
}

fn legend(svg: &mut String) {
    let _ =
        writeln!(svg, "<text x=\"4\" y=\"14\" font-size=\"13\">Links: share of the time that they were sending</text>");
    for step in 0..=10 {
        let share = f64::from(step) / 10.0;
        cell(svg, LABEL_WIDTH + step as usize * CELL, 22, share, &format!("{step}0 %"));
    }
    let _ = writeln!(svg, "<text x=\"{}\" y=\"32\">0 %</text>", LABEL_WIDTH - 24);
    let _ = writeln!(svg, "<text x=\"{}\" y=\"32\">100 %</text>", LABEL_WIDTH + 11 * CELL + 4);
}

/// White to red, over yellow.
fn cell(svg: &mut String, x: usize, y: usize, share: f64, name: &str) {
    let share = share.clamp(0.0, 1.0);
    let falling = |from: f64, to: f64| (255.0 * ((to - share) / (to - from)).clamp(0.0, 1.0)) as u8;
    let (green, blue) = (falling(0.4, 1.0), falling(0.0, 0.5));
    let side = CELL - 1;
    let _ = writeln!(
        svg,
        "<rect x=\"{x}\" y=\"{y}\" width=\"{side}\" height=\"{side}\" fill=\"rgb(240,{green},{blue})\" stroke=\"#ccc\" \
         stroke-width=\"0.4\"><title>{name}: {:.1} %</title></rect>",
        100.0 * share
    );
}
