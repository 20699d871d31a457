//! `fanin bench`: how fast everything is, beside what else there is and what
//! the machine allows, in the same run.

mod collective;
mod convert;
mod ddp;
pub mod fleet;
pub mod flow;
mod machine;
pub mod output;
mod pattern;
pub mod plot;
pub mod process;
mod results;
pub mod statistics;
mod switch;
mod threads;
pub mod units;
mod weight;
pub mod worker;
mod xdp;

use clap::Subcommand;

use collective::{allreduce, goodput, loss, net, pool, scale, small};
use output::conduct;

/// Measurements.
#[derive(Subcommand, Debug)]
pub enum Bench {
    /// Time all-reduces of several sizes, data types and losses over a switch started for it.
    Allreduce(Box<allreduce::Arguments>),
    /// Time all-reduces between network namespaces with shaped links (root).
    Net(Box<net::Arguments>),
    /// Time many small all-reduces: latency.
    Small(Box<small::Arguments>),
    /// Time all-reduces that lose datagrams against ones that do not.
    Loss(Box<loss::Arguments>),
    /// Time the same all-reduce among more and more ranks.
    Scale(Box<scale::Arguments>),
    /// Measure what headers leave of a link, by the size of packets (root).
    Goodput(Box<goodput::Arguments>),
    /// Measure how many slots a link needs (root).
    Pool(Box<pool::Arguments>),
    /// Time training steps with PyTorch's DDP, and how much of the communication they hide.
    Ddp(Box<ddp::Arguments>),
    /// Measure the switch program without sockets, and the daemon with them.
    Switch(Box<switch::Arguments>),
    /// Measure the conversions between floats and the wire.
    Convert(Box<convert::Arguments>),
    /// Measure the switch program in the kernel beside an empty XDP program (root).
    Xdp(Box<xdp::Arguments>),
    /// Write a page from files of results: goals beside what was measured, then every run.
    Results(results::Arguments),
}

/// Runs one of the measurements; 1 if a result was wrong.
pub fn run(command: Bench) -> anyhow::Result<i32> {
    match &command {
        Bench::Allreduce(arguments) => conduct(&arguments.output, "allreduce", || allreduce::measure(arguments)),
        Bench::Net(arguments) => conduct(&arguments.output, "net", || net::measure(arguments)),
        Bench::Small(arguments) => conduct(&arguments.output, "small", || small::measure(arguments)),
        Bench::Loss(arguments) => conduct(&arguments.output, "loss", || loss::measure(arguments)),
        Bench::Scale(arguments) => conduct(&arguments.output, "scale", || scale::measure(arguments)),
        Bench::Goodput(arguments) => conduct(&arguments.output, "goodput", || goodput::measure(arguments)),
        Bench::Pool(arguments) => conduct(&arguments.output, "pool", || pool::measure(arguments)),
        Bench::Ddp(arguments) => conduct(&arguments.output, "ddp", || ddp::measure(arguments)),
        Bench::Switch(arguments) => conduct(&arguments.output, "switch", || switch::measure(arguments)),
        Bench::Convert(arguments) => conduct(&arguments.output, "convert", || convert::measure(arguments)),
        Bench::Xdp(arguments) => conduct(&arguments.output, "xdp", || xdp::measure(arguments)),
        Bench::Results(arguments) => results::run(arguments),
    }
}
