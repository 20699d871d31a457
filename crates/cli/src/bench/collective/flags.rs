//! Flags that several subcommands share.

use clap::Args;
use fanin_host::Accumulator;

use super::experiment::Experiment;
use crate::bench::fleet::{Algorithm, Baselines, Format, Job, Kernels, Setting, Transport};
use crate::bench::units::parse_rate;
use crate::bench::worker;
use crate::net::Link;

/// How to run rounds.
#[derive(Args, Clone, Debug)]
pub struct RunArguments {
    /// Rounds that count; in each, everybody has a turn.
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rounds: u32,
    /// Rounds before them that do not.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub warmup: u32,
    /// Longest time that one collective may take.
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout: u64,
    /// How long lanes and switch poll before they sleep. Default: 200.
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    pub spin_us: Option<u64>,
    /// Vector instructions that fanin's ranks may use at most, as on an older processor; the switch uses all.
    #[arg(long, value_enum, value_name = "LEVEL")]
    pub kernels: Option<Kernels>,
}

/// Who is measured beside fanin.
#[derive(Args, Clone, Debug)]
pub struct BaselineArguments {
    /// Leave gloo out.
    #[arg(long)]
    pub no_gloo: bool,
    /// Leave Open MPI out.
    #[arg(long)]
    pub no_open_mpi: bool,
}

/// Shaped links instead of loopback.
#[derive(Args, Clone, Debug)]
pub struct LinkArguments {
    /// Put every rank into a network namespace behind a link of this rate (root), for example 500mbit.
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub net: Option<u64>,
    /// Largest IP packet of these links. Default: 1500.
    #[arg(long, value_name = "BYTES", requires = "net", value_parser = clap::value_parser!(u32).range(576..=65535))]
    pub mtu: Option<u32>,
}

/// How bytes get from rank to rank.
#[derive(Args, Clone, Debug)]
pub struct TransportArguments {
    /// How fanin's bytes get from rank to rank.
    #[arg(long, value_enum, default_value = "auto", value_name = "LIST", value_delimiter = ',')]
    transport: Vec<Transport>,
}

/// How fanin's ranks join.
#[derive(Args, Clone, Debug)]
pub struct JobArguments {
    /// Whose slots fanin's jobs use: switchml has its own, atp shares them and has a
    /// parameter server: behind a link of its own with shaped links, else in rank 0's process.
    #[arg(long, value_enum, default_value = "switchml", value_name = "LIST", value_delimiter = ',')]
    pub algorithm: Vec<Algorithm>,
    /// How the switch adds floats: block-fixed, static-fixed, fpisa, fpisa-a, log-table, ieee, exact. With this flag the table
    /// also has the processor time of a rank (threads that poll included: `--spin-us 0` leaves them out).
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_accumulator)]
    pub accumulator: Vec<&'static str>,
    /// Lanes of each rank. Default: by the number of cores.
    #[arg(long, value_name = "N")]
    pub lanes: Option<u16>,
    /// Slots of each lane, a power of two. Default: 512 KiB of packets.
    #[arg(long, value_name = "N")]
    pub slots: Option<u32>,
    /// Elements per packet, a multiple of 32. Default: what the path carries.
    #[arg(long, value_name = "N")]
    pub elements: Option<u16>,
    /// Send sums to every rank by itself, also where IP multicast would do.
    #[arg(long)]
    pub unicast: bool,
    /// Seed of the losses.
    #[arg(long, default_value_t = 1, value_name = "SEED")]
    pub loss_seed: u64,
}

impl RunArguments {
    /// The fleet for these flags; a `link` puts ranks into namespaces.
    pub fn setting(&self, ranks: u16, link: Option<Link>, baselines: Option<Baselines>) -> Setting {
        let (timeout_ms, spin_us, kernels) = (self.timeout * 1000, self.spin_us, self.kernels);
        Setting { ranks, timeout_ms, spin_us, kernels, switch_flags: Vec::new(), has_server: false, link, baselines }
    }

    /// One all-reduce in each round.
    pub fn experiment(&self, setting: Setting, jobs: Vec<(String, Job)>, tensors: Vec<(u64, String)>) -> Experiment {
        Experiment { setting, jobs, tensors, rounds: self.rounds, warmup: self.warmup, repeat: 1 }
    }
}

impl BaselineArguments {
    /// For a fleet.
    pub fn wanted(&self) -> Option<Baselines> {
        Some(Baselines { gloo: !self.no_gloo, open_mpi: !self.no_open_mpi })
    }
}

impl LinkArguments {
    /// The link, if there is to be one.
    pub fn link(&self) -> Option<Link> {
        self.net.map(|rate_bps| Link { rate_bps, mtu_bytes: self.mtu.unwrap_or(1500), takes_xdp: false })
    }
}

impl TransportArguments {
    /// `jobs` once for each transport, with its name where there are several. Where some jobs lose datagrams, auto is
    /// udp for all of them: shared memory has none to lose, and its times would say nothing about losses.
    ///
    /// # Errors
    /// Losses in shared memory.
    pub fn each(&self, jobs: &[(Vec<String>, Job)]) -> anyhow::Result<Vec<(String, Job)>> {
        let lossy = jobs.iter().any(|(_, job)| job.loss > 0.0);
        anyhow::ensure!(
            !lossy
                || !self.transport.iter().any(|transport| matches!(transport, Transport::Shm | Transport::Registered)),
            "--transport shm has no datagrams to lose: leave out --loss, or take udp"
        );
        let with = |transport: Transport| {
            jobs.iter().map(move |(parts, job)| {
                let transport_name = (self.transport.len() > 1).then(|| transport.name().to_owned());
                let parts = transport_name.into_iter().chain(parts.iter().cloned());
                let transport = if lossy { Transport::Udp } else { transport };
                (job_name(parts), Job { transport, ..job.clone() })
            })
        };
        Ok(self.transport.iter().copied().flat_map(with).collect())
    }
}

impl JobArguments {
    /// A job of these flags, of the first algorithm.
    pub fn job(&self, element_format: Format, loss: f64) -> Job {
        let JobArguments { lanes, slots, elements, unicast, loss_seed, .. } = *self;
        let algorithm = self.algorithm.first().copied().unwrap_or_default();
        let accumulator = self.accumulator.first().copied();
        Job {
            algorithm,
            accumulator,
            lanes,
            slots,
            elements,
            element_format,
            transport: Transport::Udp,
            unicast,
            loss,
            loss_seed,
        }
    }

    /// Whether any of the jobs needs a parameter server.
    pub fn has_server(&self) -> bool {
        self.algorithm.contains(&Algorithm::Atp)
    }

    /// `job` once for each algorithm and accumulator, with their names where there are several.
    pub fn by_algorithm(&self, job: &Job) -> Vec<(Option<String>, Job)> {
        let accumulators: Vec<Option<&str>> = match &self.accumulator[..] {
            [] => vec![None],
            some => some.iter().copied().map(Some).collect(),
        };
        let name = |algorithm: Algorithm, accumulator: Option<&'static str>| {
            let algorithm = (self.algorithm.len() > 1).then(|| algorithm.name());
            let accumulator = accumulator.filter(|_| self.accumulator.len() > 1);
            let parts: Vec<_> = algorithm.into_iter().chain(accumulator).collect();
            (!parts.is_empty()).then(|| parts.join(" "))
        };
        let pairs = self.algorithm.iter().flat_map(|&algorithm| accumulators.iter().map(move |&one| (algorithm, one)));
        let job =
            |(algorithm, accumulator)| (name(algorithm, accumulator), Job { algorithm, accumulator, ..job.clone() });
        pairs.map(job).collect()
    }
}

/// Every size as every type.
///
/// # Errors
/// An unknown type, or a size that is no whole number of its elements.
pub fn tensors(sizes: &[u64], dtypes: &[String]) -> anyhow::Result<Vec<(u64, String)>> {
    let mut tensors = Vec::new();
    for dtype in dtypes {
        let element_bytes = worker::data_type(dtype)?.bytes() as u64;
        for &size in sizes {
            anyhow::ensure!(size.is_multiple_of(element_bytes), "{size} bytes are no whole number of {dtype} elements");
            tensors.push((size, dtype.clone()));
        }
    }
    Ok(tensors)
}

fn parse_accumulator(label: &str) -> Result<&'static str, String> {
    let known = || Accumulator::ALL.map(Accumulator::label).join(", ");
    let found = Accumulator::from_label(label).map(Accumulator::label);
    found.ok_or_else(|| format!("it is not one of {}", known()))
}

/// "fanin", and what sets this job apart from its neighbours.
pub fn job_name(parts: impl IntoIterator<Item = String>) -> String {
    std::iter::once("fanin".to_owned()).chain(parts).collect::<Vec<_>>().join(" ")
}
