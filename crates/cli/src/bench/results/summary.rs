//! The few numbers that the project's first page shows.

use anyhow::Context;
use serde_json::Value;

use super::document::{Document, SHARED_MEMORY, UDP, Wanted, baseline, fanin, ratio};
use crate::bench::output::percent;
use crate::bench::units::show_time;

const BEGIN: &str = "<!-- numbers -->\n";
const END: &str = "<!-- /numbers -->";
const SIZE_BYTES: u64 = 64 << 20;

/// `page` with the text between its markers replaced by a table of the
/// documents' all-reduces of 64 MiB.
///
/// # Errors
/// A page without the markers.
pub fn fill_in(page: &str, documents: &[Document]) -> anyhow::Result<String> {
    let places = page.find(BEGIN).zip(page.find(END)).filter(|(begin, end)| begin < end);
    let (begin, end) = places.with_context(|| {
        format!("the page has no place for the numbers: add the lines {} and {END}", BEGIN.trim_end())
    })?;
    Ok(format!("{}{}{}", &page[..begin + BEGIN.len()], table(documents), &page[end..]))
}

fn table(documents: &[Document]) -> String {
    let mut text = String::from(
        "All-reduce of 64 MiB of float32: medians, fanin and gloo in alternating rounds of one run, every sum checked. Goals, other
peers, the machine and what else ran on it: [results](benches/RESULTS.md), written by `make bench`.

| ranks | network | fanin | gloo | gloo / fanin | of the wire bound |
| --- | --- | --- | --- | --- | --- |
",
    );
    for rate_bps in [Some(500_000_000), Some(1_000_000_000), None] {
        for ranks in [2, 4, 8] {
            let benchmarks: &[&str] = if rate_bps.is_some() { &["net"] } else { &["allreduce"] };
            let wanted = Wanted { benchmarks, ranks, size_bytes: SIZE_BYTES, rate_bps };
            let Some((_, case)) = wanted.find(documents) else { continue };
            for transport in [SHARED_MEMORY, UDP] {
                let formats = ["int32", "float16", "bfloat16", "int8"];
                text.extend(formats.iter().filter_map(|format| row(case, transport, format)));
            }
        }
    }
    text + "
A ring sends 2(n-1)/n times the tensor over each link, a switch sends it once: that is the gain on links. Over UDP on one
host there is no link to relieve, and what is left is what the software costs.
"
}

fn row(case: &Value, transport: &str, format: &str) -> Option<String> {
    let (ours, gloo) = (fanin(case, transport, format)?, baseline(case, "gloo")?);
    let rate_bps = case["link_rate_bps"].as_u64();
    let time = |series: &Value| Some(show_time(std::time::Duration::from_nanos(series["times"]["p50_ns"].as_u64()?)));
    let place = match rate_bps {
        Some(rate) => format!("links of {} Mbit/s", rate / 1_000_000),
        None if transport == UDP => "one host, over UDP".into(),
        None => format!("one host, {transport}"),
    };
    let format = if format == "int32" { String::new() } else { format!(", {format} on the wire") };
    let share = match rate_bps {
        Some(_) => percent(ours["share_of_bound"].as_f64()?),
        None => "–".into(),
    };
    let gain = ratio(gloo, ours)?;
    let ranks = &case["ranks"];
    Some(format!("| {ranks} | {place}{format} | {} | {} | {gain:.2} | {share} |\n", time(ours)?, time(gloo)?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn document() -> Document {
        let series = |name: &str, fanin: Value, ms: u64| {
            let times = json!({ "p50_ns": ms * 1_000_000, "rounds_ns": [ms, 2 * ms] });
            json!({ "name": name, "times": times, "fanin": fanin, "share_of_bound": 0.98 })
        };
        let fanin = json!({ "element_format": "int32", "loss": 0.0, "joined": { "transport": "udp" } });
        let case = json!({
            "ranks": 4, "size_bytes": SIZE_BYTES, "dtype": "float32", "link_rate_bps": 500_000_000,
            "series": [series("fanin", fanin, 100), series("gloo", Value::Null, 150)],
        });
        Document { name: "net".into(), value: json!({ "benchmark": "net", "cases": [case] }), has_plot: false }
    }

    #[test]
    fn numbers_replace_what_stood_between_the_markers() {
        let page = "above\n<!-- numbers -->\nold\n<!-- /numbers -->\nbelow\n";
        let filled = fill_in(page, &[document()]).unwrap();
        assert!(
            filled.starts_with("above\n<!-- numbers -->\nAll-reduce") && filled.ends_with("<!-- /numbers -->\nbelow\n")
        );
        assert!(filled.contains("| 4 | links of 500 Mbit/s | 100 ms | 150 ms | 1.50 | 98.0 % |"), "{filled}");
        assert!(!filled.contains("old"));
        assert_eq!(fill_in(&filled, &[document()]).unwrap(), filled);
    }

    #[test]
    fn a_page_without_markers_is_left_alone() {
        assert!(fill_in("nothing here", &[document()]).is_err_and(|error| error.to_string().contains("numbers")));
    }
}
