//! The `fanin` command line: one command, one module.
//!
//! [`main`] serves both the standalone binary and the Python package's
//! console script.
#![deny(unsafe_code)]

mod advise;
mod bench;
mod connection;
mod doctor;
mod net;
mod numerics;
mod reproduce;
mod server;
mod sim;
mod status;
mod switch;
mod topology;

use clap::{CommandFactory, Parser, Subcommand};

/// In-network aggregation for distributed training.
#[derive(Parser)]
#[command(name = "fanin", version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// What to log, for example `info` or `fanin_switch=debug`.
    #[arg(long, global = true, env = "FANIN_LOG", default_value = "warn", value_name = "FILTER")]
    log: String,
}

#[derive(Subcommand)]
enum Command {
    /// Run a software switch: data plane, controller, metrics and dashboard.
    Switch(Box<switch::Arguments>),
    /// Run a parameter server for the ATP jobs of a switch.
    Server(Box<server::Arguments>),
    /// Check a file of switches, and explain a job's fan-in at every level.
    #[command(subcommand)]
    Topology(topology::Command),
    /// Measure collectives, beside gloo where PyTorch is installed.
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Predict whether a switch would make your training steps shorter, and up to which link rate.
    Advise(advise::Arguments),
    /// Find out why fanin is slow, stuck or not used.
    Doctor(doctor::Arguments),
    /// Show a switch's jobs, workers, slots and drops.
    Status(status::StatusArguments),
    /// Let a switch's jobs finish, admit no new ones, then stop it.
    Drain(status::DrainArguments),
    /// Build network namespaces with shaped links for experiments (root).
    #[command(subcommand)]
    Net(net::Net),
    /// Repeat a paper's experiments, its numbers beside ours.
    #[command(subcommand)]
    Reproduce(Box<reproduce::Reproduce>),
    /// Compare ways of adding floats on gradients of your own.
    #[command(subcommand)]
    Numerics(numerics::Numerics),
    /// Simulate a network packet by packet, from a file.
    Sim(sim::Arguments),
    /// One rank of `bench`.
    #[command(hide = true)]
    BenchWorker(bench::worker::WorkerArguments),
    /// One end of a TCP flow.
    #[command(hide = true)]
    BenchFlow(bench::flow::FlowArguments),
    /// The reference page of all commands.
    #[command(hide = true)]
    MarkdownHelp,
}

/// Runs the command line; `arguments[0]` is the program's name. Returns the
/// exit status: 0 for success, 1 for a problem that was found or a failure, 2
/// for arguments that make no sense.
pub fn main(arguments: Vec<String>) -> i32 {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // A closed pipe is the reader's choice.
            let _ = error.print();
            return error.exit_code();
        }
    };
    let filter = tracing_subscriber::EnvFilter::try_new(&cli.log).unwrap_or_default();
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
    match run(cli.command) {
        Ok(status) => status,
        Err(error) => {
            eprintln!("fanin: {error:#}");
            1
        }
    }
}

fn run(command: Command) -> anyhow::Result<i32> {
    match command {
        Command::Switch(arguments) => switch::run(&arguments),
        Command::Server(arguments) => server::run(&arguments),
        Command::Topology(command) => topology::run(&command),
        Command::Bench(arguments) => bench::run(arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Status(arguments) => status::run(&arguments),
        Command::Drain(arguments) => status::drain(&arguments),
        Command::Net(arguments) => net::run(arguments),
        Command::Reproduce(command) => reproduce::run(*command),
        Command::Numerics(command) => numerics::run(command),
        Command::Advise(arguments) => advise::run(&arguments),
        Command::Sim(arguments) => sim::run(&arguments),
        Command::BenchWorker(arguments) => bench::worker::run_worker(arguments),
        Command::BenchFlow(arguments) => bench::flow::run(&arguments),
        Command::MarkdownHelp => {
            print!("{}", reference());
            Ok(0)
        }
    }
}

/// `docs/reference/cli.md`, from the same declarations as `--help`.
pub fn reference() -> String {
    let command = Cli::command();
    let options = clap_markdown::MarkdownOptions::new().show_footer(false).title("The fanin command".into());
    clap_markdown::help_markdown_command_custom(&command, &options)
}
