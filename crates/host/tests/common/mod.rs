//! Worlds of ranks as threads of one process, around a real switch on loopback.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fanin_host::{Algorithm, CollectiveKind, DataType, Error, ReduceOp, Request, Session, SessionConfig, Transport};
use fanin_switch::dataplane::{DataplaneConfig, UdpDataplane};
use fanin_switch::{Config, Daemon};

/// A running switch.
struct Switch {
    handle: Option<fanin_switch::Handle>,
    controller: String,
}

impl Switch {
    fn start() -> Switch {
        let data = DataplaneConfig { thread_count: 2, ..DataplaneConfig::default() };
        let dataplane = Arc::new(UdpDataplane::start(&data).expect("loopback ports"));
        Switch::of(Daemon::start(&Config::local(data.address), dataplane).expect("loopback ports"))
    }

    fn of(handle: fanin_switch::Handle) -> Switch {
        Switch { controller: handle.control_address().to_string(), handle: Some(handle) }
    }

    fn stop(&mut self) {
        self.handle = None;
    }
}

/// How the ranks reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// Every rank through the switch.
    Switch,
    /// One host's shared memory.
    SharedMemory,
    /// Two hosts with every second rank each, which meet at the switch.
    TwoHosts,
    /// Every rank through slots that are shared as ATP does, and a parameter server in rank 0's process.
    Atp,
    /// Two hosts as above, and ATP between them.
    AtpHosts,
}

/// A switch of its own for each test, so that no test sees another's jobs.
pub struct World {
    switch: Switch,
    run_id: String,
    pub path: Path,
    pub world_size: u16,
}

static RUNS: AtomicU64 = AtomicU64::new(0);

impl World {
    #[allow(dead_code)]
    pub fn new(world_size: u16) -> World {
        World::on(Path::Switch, world_size)
    }

    /// One world for each way that bytes can take.
    #[allow(dead_code)]
    pub fn on_each_path(world_size: u16) -> impl Iterator<Item = World> {
        [Path::Switch, Path::SharedMemory, Path::TwoHosts, Path::Atp, Path::AtpHosts]
            .into_iter()
            .map(move |path| World::on(path, world_size))
    }

    pub fn on(path: Path, world_size: u16) -> World {
        World { switch: Switch::start(), ..World::beside(path, world_size) }
    }

    /// A world around a switch with settings of its own.
    #[allow(dead_code)]
    pub fn around(config: &Config, path: Path, world_size: u16) -> World {
        let switch = Switch::of(Daemon::start_own(config).expect("loopback ports"));
        World { switch, ..World::beside(path, world_size) }
    }

    /// Another job on the switch of `other`, which must live as long.
    #[allow(dead_code)]
    pub fn sharing(other: &World, path: Path) -> World {
        let switch = Switch { handle: None, controller: other.switch.controller.clone() };
        World { switch, ..World::beside(path, other.world_size) }
    }

    fn beside(path: Path, world_size: u16) -> World {
        let run_id = format!("run-{}-{}", std::process::id(), RUNS.fetch_add(1, Ordering::Relaxed));
        World { switch: Switch { handle: None, controller: String::new() }, run_id, path, world_size }
    }

    /// The switch's controller.
    #[allow(dead_code)]
    pub fn controller(&self) -> &str {
        &self.switch.controller
    }

    /// What the switch's HTTP port answers.
    #[allow(dead_code)]
    pub fn get(&self, path: &str) -> String {
        let address = self.switch.handle.as_ref().and_then(|handle| handle.http_address()).expect("it serves HTTP");
        let mut stream = std::net::TcpStream::connect(address).expect("loopback");
        let mut answer = String::new();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: switch\r\nconnection: close\r\n\r\n").expect("it reads");
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    }

    pub fn config(&self, rank: u16) -> SessionConfig {
        SessionConfig {
            controller: self.switch.controller.clone(),
            job_name: "test".into(),
            run_id: self.run_id.clone(),
            rank,
            world_size: self.world_size,
            join_timeout: Duration::from_secs(20),
            collective_timeout: Duration::from_secs(20),
            transport: match self.path {
                Path::Switch | Path::Atp => Transport::Udp,
                Path::SharedMemory | Path::TwoHosts | Path::AtpHosts => Transport::Auto,
            },
            host_key: matches!(self.path, Path::TwoHosts | Path::AtpHosts).then(|| format!("host {}", rank % 2)),
            algorithm: match self.path {
                Path::Atp | Path::AtpHosts => Algorithm::Atp,
                Path::Switch | Path::SharedMemory | Path::TwoHosts => Algorithm::SwitchMl,
            },
            ..SessionConfig::default()
        }
    }

    /// Runs `body` on every rank's thread and returns what they return, by rank.
    pub fn run<T: Send>(
        &self,
        adjust: impl Fn(SessionConfig) -> SessionConfig + Sync,
        body: impl Fn(u16, Session) -> T + Sync,
    ) -> Vec<T> {
        std::thread::scope(|scope| {
            let ranks = (0..self.world_size).map(|rank| {
                let (adjust, body) = (&adjust, &body);
                scope.spawn(move || {
                    let session = Session::connect(adjust(self.config(rank))).expect("every rank joins");
                    body(rank, session)
                })
            });
            let threads: Vec<_> = ranks.collect();
            threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
        })
    }

    #[allow(dead_code)]
    pub fn stop_switch(&mut self) {
        self.switch.stop();
    }
}

/// A collective on vectors that this call owns while it runs.
#[allow(dead_code)]
pub fn collective<I, O: Clone>(
    session: &Session,
    kind: CollectiveKind,
    data_type: DataType,
    operator: ReduceOp,
    input: &[I],
    output: &mut Vec<O>,
) -> Result<(), Error> {
    let element_count = input.len().max(output.len());
    let request = Request {
        kind,
        data_type,
        operator,
        input: input.as_ptr().cast(),
        output: output.as_mut_ptr().cast(),
        element_count,
        label: String::new(),
    };
    // SAFETY: both vectors outlive the wait below, which ends with the ticket.
    let ticket = unsafe { session.submit(request) }?;
    ticket.wait(None).map(|_| ())
}
