//! ATP's parameter server as a running thing (ATP §3.6): threads, each with a UDP port and the
//! [`fanin_protocol::atp::Server`]s of the lanes that are served there.
//!
//! A [`ParameterServer`] runs inside the process of a rank, or under `fanin server`, where [`Standing`] takes jobs from a
//! switch's controller. It answers where Fragments come from: the switch beside it.

#![forbid(unsafe_code)]

mod job;
mod standing;
mod thread;

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use fanin_net::{Loss, NetError, Options, UdpPort, Waker};
use fanin_protocol::DropReason;
use fanin_protocol::atp::ServerCounters;

pub use job::{LaneWaiting, NotServed, ServedJob};
pub use standing::{Standing, StandingError};
use thread::Lane;

/// How long a command may wait for its thread.
const ANSWER_WAIT: Duration = Duration::from_millis(900);

/// How to run a server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Address to bind; the switch must be able to reach it.
    pub address: IpAddr,
    /// UDP port of the first thread; 0 takes any free ports.
    pub port_base: u16,
    /// Threads, each with its own port.
    pub thread_count: u16,
    /// How long a thread polls before it sleeps.
    pub spin: Duration,
    /// Losses to inject, for tests.
    pub loss: Option<Loss>,
}

/// What all lanes of a job have done so far, or what those of all jobs have.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// See [`ServerCounters`].
    pub fragments: u64,
    /// Bytes of all datagrams, as UDP payloads.
    pub received_bytes: u64,
    /// Fragments that were sums of several workers'.
    pub aggregated: u64,
    /// Chunks completed.
    pub chunks: u64,
    /// Of these, chunks that came whole in one Fragment.
    pub chunks_whole: u64,
    /// Chunks whose slot had been another's.
    pub collisions: u64,
    /// Parameters sent again.
    pub replies: u64,
    /// Chunks summed again as floats.
    pub saturated: u64,
    /// Chunks summed at another scale than 10^8.
    pub scaled: u64,
    /// Packets that were not used, by [`DropReason`] in declaration order.
    pub drops: [u64; DropReason::ALL.len()],
}

impl Totals {
    fn add(&mut self, lane: &ServerCounters) {
        self.merge(&Totals {
            fragments: lane.fragments,
            received_bytes: lane.received_bytes,
            aggregated: lane.aggregated,
            chunks: lane.chunks,
            chunks_whole: lane.chunks_whole,
            collisions: lane.collisions,
            replies: lane.replies,
            saturated: lane.saturated,
            scaled: lane.scaled,
            drops: lane.drops,
        });
    }

    fn merge(&mut self, other: &Totals) {
        self.fragments += other.fragments;
        self.received_bytes += other.received_bytes;
        self.aggregated += other.aggregated;
        self.chunks += other.chunks;
        self.chunks_whole += other.chunks_whole;
        self.collisions += other.collisions;
        self.replies += other.replies;
        self.saturated += other.saturated;
        self.scaled += other.scaled;
        self.drops.iter_mut().zip(other.drops).for_each(|(sum, part)| *sum += part);
    }
}

enum Command {
    Serve(u32, Vec<Lane>, Sender<()>),
    Remove(u32),
    Waiting(Sender<Vec<LaneWaiting>>),
    Stop,
}

struct Handle {
    address: SocketAddr,
    commands: Sender<Command>,
    waker: Waker,
    totals: Arc<Mutex<Totals>>,
    thread: Option<JoinHandle<()>>,
}

impl Handle {
    fn tell(&self, command: Command) -> bool {
        let sent = self.commands.send(command).is_ok();
        self.waker.wake();
        sent
    }
}

/// Threads that serve lanes of jobs. Dropping it ends them.
pub struct ParameterServer {
    threads: Vec<Handle>,
}

impl ParameterServer {
    /// Binds the ports and starts the threads.
    ///
    /// # Errors
    /// [`NetError`] when a port cannot be opened.
    pub fn start(config: &ServerConfig) -> Result<ParameterServer, NetError> {
        let threads =
            (0..config.thread_count.max(1)).map(|index| start_thread(config, index)).collect::<Result<_, _>>()?;
        Ok(ParameterServer { threads })
    }

    /// The UDP addresses, in thread order.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.threads.iter().map(|handle| handle.address).collect()
    }

    /// Serves lanes of a job, each at the port that the job names; packets are accepted when this returns.
    ///
    /// # Errors
    /// [`NotServed`].
    pub fn serve(&self, job: &ServedJob) -> Result<(), NotServed> {
        for handle in &self.threads {
            let (done, served) = bounded(1);
            // Here, because it takes a while, and the thread's other lanes must not wait.
            let lanes = Lane::all_of(&job.at_port(handle.address.port()));
            let told = handle.tell(Command::Serve(job.job_id, lanes, done));
            if !told || served.recv_timeout(ANSWER_WAIT).is_err() {
                return Err(NotServed::NotRunning { address: handle.address });
            }
        }
        let ports: Vec<u16> = self.threads.iter().map(|handle| handle.address.port()).collect();
        match job.lanes.iter().find(|(_, port)| !ports.contains(port)) {
            Some(&(lane, port)) => {
                self.remove(job.job_id);
                Err(NotServed::NoSuchPort { lane, port })
            }
            None => Ok(()),
        }
    }

    /// Forgets a job. Unknown ones are ignored.
    pub fn remove(&self, job_id: u32) {
        for handle in &self.threads {
            handle.tell(Command::Remove(job_id));
        }
    }

    /// What lanes wait for, as far as the threads answer within `limit`.
    pub fn waiting(&self, limit: Duration) -> Vec<LaneWaiting> {
        let (reply, answers) = bounded(self.threads.len());
        for handle in &self.threads {
            handle.tell(Command::Waiting(reply.clone()));
        }
        drop(reply);
        let deadline = Instant::now() + limit;
        std::iter::from_fn(|| answers.recv_deadline(deadline).ok()).flatten().collect()
    }

    /// What all lanes have done so far, those of jobs that have ended included; as of a moment ago.
    pub fn totals(&self) -> Totals {
        let mut sum = Totals::default();
        for handle in &self.threads {
            sum.merge(&handle.totals.lock().unwrap_or_else(PoisonError::into_inner));
        }
        sum
    }
}

impl Drop for ParameterServer {
    fn drop(&mut self) {
        for handle in &self.threads {
            handle.tell(Command::Stop);
        }
        for handle in &mut self.threads {
            if let Some(thread) = handle.thread.take()
                && thread.join().is_err()
            {
                tracing::error!(address = %handle.address, "a parameter server's thread panicked: please report this");
            }
        }
    }
}

fn start_thread(config: &ServerConfig, index: u16) -> Result<Handle, NetError> {
    let number = if config.port_base == 0 { 0 } else { config.port_base + index };
    let loss = config.loss.map(|loss| Loss { seed: loss.seed.wrapping_add(u64::from(index)), ..loss });
    let port = UdpPort::bind(SocketAddr::new(config.address, number), &Options { loss, ..Options::default() })?;
    let (address, waker) = (port.local_addr(), Waker::new()?);
    let (commands, mailbox): (Sender<Command>, Receiver<Command>) = unbounded();
    let totals = Arc::new(Mutex::new(Totals::default()));
    let worker = thread::Thread::new(port, waker.clone(), mailbox, totals.clone(), config.spin);
    let thread = std::thread::Builder::new()
        .name(format!("fanin-server-{index}"))
        .spawn(move || worker.run())
        .map_err(|source| NetError::Setup { action: "start a parameter server's thread", source })?;
    Ok(Handle { address, commands, waker, totals, thread: Some(thread) })
}
