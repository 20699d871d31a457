//! A paper's page of `docs/reference`, from a run.

use std::fmt::Write as _;

use super::output::{Run, holds};

/// How ATP's page begins.
pub const ATP: &str = "\
# The ATP paper's evaluation, again

Written by `cargo run --release -p fanin-cli -- reproduce atp --markdown > docs/reference/atp-evaluation.md`; each number is from that
run. `fanin reproduce atp fig13 --out results` runs one experiment and writes its JSON, CSV and drawings. The parameters
and what is scaled are in [experiments/atp](../../experiments/atp). The same seed gives the same packets on any machine.

Fig. 16 ran on real sockets in network namespaces, and differs a little from run to run. All others: the protocols are fanin's own values,
byte for byte as on a socket; links, queues and time are simulated, and each packet is as long on a link as the paper's. Two elements stand for the 62 of a packet; every sum is checked, and a wrong one ends the run.

Recorded gradients (experiment overflow, with `--gradients mnist-small-8 --gradients mnist-large-8`) are those of the demo's models on 8 ranks before they are averaged, made by `torchrun
--nproc-per-node=8 -m fanin.demo.train gloo --data data/mnist-t10k --results out --record mnist-small-8 --record-every 4 --epochs 2`, and for `mnist-large-8` with
`--model large --record-every 10 --record-mib 45 --epochs 1`.
";

/// How Libra's page begins.
pub const LIBRA: &str = "\
# The Libra paper's numbers, again

Written by `fanin reproduce libra --gradients experiments/gradients/mnist-small-4 --markdown > docs/reference/libra-evaluation.md`; each number is from that run. The parameters are in [experiments/libra](../../experiments/libra). How sums of more than two behave is
in the [comparison of accumulators](../guides/comparing-accumulators.md).
";

/// How FPISA's page begins.
pub const FPISA: &str = "\
# The FPISA paper's evaluation of sums, again

Written by `fanin reproduce fpisa --markdown > docs/reference/fpisa-evaluation.md`, or section by section as in `fanin reproduce fpisa fig9
--markdown`; each number was measured. `fanin reproduce fpisa fig8 --gradients
FOLDER --out results` runs one experiment on gradients of your own and writes its JSON, CSV and drawings. The parameters are in
[experiments/fpisa](../../experiments/fpisa). Figs. 7 to 9 need PyTorch, or Figs. 7 and 8 a recording; times of Figs. 6 and 10 depend on the machine.
";

/// How what `--markdown` prints of PANAMA begins; the page in the repository is written by hand.
pub const PANAMA: &str = "\
# The PANAMA paper's evaluation, again

Written by `fanin reproduce panama --markdown`; each number was simulated, packet by packet. The parameters are in [experiments/panama](../../experiments/panama).
What the numbers mean is in the hand-written [page about them](panama-evaluation.md), which this does not replace.
";

/// How SwitchML's page begins.
pub const SWITCHML: &str = "\
# The SwitchML paper's evaluation, again

Written by `fanin reproduce switchml --markdown > docs/reference/switchml-evaluation.md`, or section by section as in `fanin reproduce switchml fig2
--markdown`; each number was measured, simulated or computed, as its section says. The parameters are in
[experiments/switchml](../../experiments/switchml). Figs. 2 and 11 need PyTorch, Fig. 12 root. Figs. 4 and 5 are replayed in the simulator; throughput and pool sizes (Figs. 3 and 6 to 9)
are what `fanin bench` measures: [results](../../benches/RESULTS.md).
";

/// The page: a section for each experiment after `head`.
pub fn page(head: &str, runs: &[Run]) -> String {
    let mut text = head.to_owned();
    for run in runs {
        let findings = &run.findings;
        // Writing to a string cannot fail.
        let _ = write!(text, "\n## {}: {}\n\n", findings.experiment, findings.title);
        let _ = writeln!(text, "| | paper | ours | holds | where they differ |\n| --- | --- | --- | --- | --- |");
        let mut above = "";
        for row in &findings.rows {
            let is_repeated = !row.remark.is_empty() && row.remark == above;
            let remark = if is_repeated { "as above" } else { row.remark.as_str() };
            let _ = writeln!(text, "| {} | {} | {} | {} | {remark} |", row.quantity, row.paper, row.ours, holds(row));
            above = &row.remark;
        }
        let _ = write!(text, "\nRan in {}. {}\n", findings.place, findings.notes.join(" "));
        if let Some(sheet) = findings.sheets.first().filter(|sheet| sheet.rows.len() <= 12) {
            let _ = write!(text, "\n| {} |\n|{}\n", sheet.columns.join(" | "), " --- |".repeat(sheet.columns.len()));
            for row in &sheet.rows {
                let cells: Vec<String> = row.iter().map(|value| number(*value)).collect();
                let _ = writeln!(text, "| {} |", cells.join(" | "));
            }
        }
    }
    text
}

fn number(value: f64) -> String {
    if value == value.round() { format!("{value:.0}") } else { format!("{value:.3}") }
}
