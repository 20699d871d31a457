//! `fanin bench xdp`: the switch program in the kernel, beside programs without work.

mod contender;
mod place;

use clap::Args;
use serde_json::json;

use super::output::{Findings, OutputArguments, percent, table};
use super::plot::{Figure, Series, Shape};
use contender::{Case, Kind};

use super::process::check_interrupted;

const ABOUT: &str = "Each contender has a network of its own: a namespace for each rank, joined to the switch's by a veth pair, \
at whose end in the switch's namespace the measured program sees every frame first (native XDP). A program in the kernel makes \
the frames (BPF_PROG_TEST_RUN with live frames, 64 at a time): contributions of all ranks, chunk after chunk, their headers \
written anew for each frame, redirected to the rank's interface. Making a frame, receiving it and whatever the program sends \
happen in one thread on one processor, so \"ns/packet\" is this thread's processor time for all of it, and the empty program's is \
that of all but the measured program. (A kernel with CONFIG_IRQ_TIME_ACCOUNTING leaves softirqs out of a thread's time: do not \
measure there.) Elements are zeros, for pages come back as the program left them, and no sum may change the next one; the program \
has no branch that would know. A measurement counts if every frame was taken for what it was, and is repeated otherwise.

\"drop\", \"transmit\": empty programs that drop each frame, or send it back. \"duplicates\": the switch program on \
contributions that it has had: all checks and no addition. \"sum\": the switch program with duplicate check, both slot copies, \
and of each chunk an Aggregate, written into the last contribution and redirected to a list of interfaces that is empty: what \
the program costs. \"CRC-32C\": the checksum is checked and written. \"sent\": a copy of each Aggregate leaves for every rank, \
addressed by the program's second half, so that the kernel copies and delivers one frame for each that came. \"of drop\": packets per second as a share of the empty program's, median over the rounds.";

/// Flags of `fanin bench xdp`.
#[derive(Args, Debug)]
#[command(after_long_help = ABOUT)]
pub struct Arguments {
    /// Ranks that contribute to each slot, each on an interface of its own.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=16))]
    ranks: u16,
    /// 32-bit integers in a packet.
    #[arg(long, default_value_t = 256, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=352))]
    elements: u16,
    /// Slots, a power of two from 64 to 4096.
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = parse_slots)]
    slots: u32,
    /// Rounds; in each, everything has a turn.
    #[arg(long, default_value_t = 9, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// Frames of one measurement.
    #[arg(long, default_value_t = 200_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1_000..=10_000_000))]
    frames: u32,
    #[command(flatten)]
    pub output: OutputArguments,
}

/// Frames are made 64 at a time, so that fewer slots than these would meet chunks too far ahead.
fn parse_slots(text: &str) -> Result<u32, String> {
    let slots = text.parse::<u32>().ok().filter(|slots| slots.is_power_of_two() && (64..=4096).contains(slots));
    slots.ok_or_else(|| format!("{text:?}: slots are a power of two from 64 to 4096"))
}

/// Measures.
pub fn measure(arguments: &Arguments) -> anyhow::Result<Findings> {
    let mut contenders = contender::all(arguments)?;
    // The first round warms up.
    for round in 0..=arguments.rounds {
        for contender in &mut contenders {
            check_interrupted()?;
            contender.measure(arguments.frames, round > 0)?;
        }
    }
    let empty = contenders.iter().find(|contender| contender.kind == Kind::Drop);
    let empty = empty.map(|drop| drop.rates.clone()).unwrap_or_default();
    let frame_bytes = contender::frame_bytes(arguments.elements);
    let cases: Vec<Case> = contenders.iter().map(|contender| contender.case(&empty, frame_bytes)).collect();
    let mut table = table(&["program", "ns/packet", "Mpkt/s", "Gbit/s", "of drop", "least", "most", "repeated"], 1);
    cases.iter().for_each(|case| {
        table.add_row(cells(case));
    });
    Ok(Findings {
        setting: json!({
            "ranks": arguments.ranks, "elements": arguments.elements, "slots": arguments.slots,
            "frame_bytes": frame_bytes, "rounds": arguments.rounds, "frames": arguments.frames,
        }),
        baselines: Vec::new(),
        table,
        caption: vec![format!(
            "{} ranks, {} elements of int32 ({frame_bytes} B frames), medians of {} interleaved rounds of {} frames, one processor \
             makes and receives them",
            arguments.ranks, arguments.elements, arguments.rounds, arguments.frames
        )],
        figure: figure(&cases, arguments),
        // A measurement counts only if every contribution was; the vectors tell whether sums are right.
        wrong_elements: 0,
        cases: json!(cases),
    })
}

fn cells(case: &Case) -> Vec<String> {
    vec![
        case.program.into(),
        format!("{:.0}", 1e3 / case.packets_per_us),
        format!("{:.2}", case.packets_per_us),
        format!("{:.1}", case.gbit_per_s),
        percent(case.share_of_empty),
        percent(case.share_min),
        percent(case.share_max),
        case.repeated.to_string(),
    ]
}

fn figure(cases: &[Case], arguments: &Arguments) -> Figure {
    let points = cases.iter().enumerate().map(|(index, case)| (index as f64, 100.0 * case.share_of_empty)).collect();
    Figure {
        title: format!("XDP programs, {} ranks, {} elements, one core", arguments.ranks, arguments.elements),
        x_label: "program".into(),
        y_label: "percent of an empty program's packets per second".into(),
        shape: Shape::Bars { groups: cases.iter().map(|case| case.program.to_owned()).collect() },
        series: vec![Series { name: "share".into(), points }],
    }
}
