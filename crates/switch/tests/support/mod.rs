//! A switch on loopback with a data plane made of memory, and clients with defaults.
#![allow(dead_code, missing_docs)]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fanin_control::client::{Admission, ClientConfig, ControlClient, HostReport, JoinParameters};
use fanin_control::{Algorithm, ControlError, WireFormat};
use fanin_switch::dataplane_api::*;
use fanin_switch::{Config, Daemon, Handle};

pub const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Remembers what it is told and says what the test wants.
#[derive(Default)]
pub struct FakeDataplane {
    pub jobs: Mutex<BTreeMap<u32, JobInstall>>,
    pub inspection: Mutex<JobInspection>,
    pub counters: Mutex<TrafficCounters>,
    pub refuse: Mutex<Option<InstallError>>,
    pub stopped: Mutex<bool>,
}

impl Dataplane for FakeDataplane {
    fn install(&self, job: JobInstall) -> Result<(), InstallError> {
        if let Some(error) = self.refuse.lock().unwrap().clone() {
            return Err(error);
        }
        self.jobs.lock().unwrap().insert(job.job_id, job);
        Ok(())
    }

    fn remove(&self, job_id: u32) {
        self.jobs.lock().unwrap().remove(&job_id);
    }

    fn inspect(&self, job_id: u32) -> Option<JobInspection> {
        let known = self.jobs.lock().unwrap().contains_key(&job_id);
        known.then(|| self.inspection.lock().unwrap().clone())
    }

    fn counters(&self) -> DataplaneCounters {
        let total = self.counters.lock().unwrap().clone();
        let jobs = self.jobs.lock().unwrap().keys().map(|job_id| (*job_id, total.clone())).collect();
        DataplaneCounters { total, jobs }
    }

    fn ports(&self) -> Vec<SocketAddr> {
        vec![SocketAddr::new(LOOPBACK, 50100), SocketAddr::new(LOOPBACK, 50101)]
    }

    fn stop(&self) {
        *self.stopped.lock().unwrap() = true;
    }
}

pub struct Switch {
    pub handle: Handle,
    pub dataplane: Arc<FakeDataplane>,
}

impl Switch {
    pub fn start(change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::local(LOOPBACK);
        change(&mut config);
        let dataplane = Arc::new(FakeDataplane::default());
        let handle = Daemon::start(&config, dataplane.clone()).expect("the switch starts");
        Self { handle, dataplane }
    }

    pub fn client_config(&self) -> ClientConfig {
        ClientConfig::new(self.handle.control_address().to_string())
    }

    pub fn client(&self) -> ControlClient {
        ControlClient::connect(&self.client_config()).expect("the switch answers")
    }

    pub fn installed(&self) -> Vec<u32> {
        self.dataplane.jobs.lock().unwrap().keys().copied().collect()
    }
}

pub fn parameters(job_name: &str, rank: u16, world_size: u16) -> JoinParameters {
    JoinParameters {
        job_name: job_name.into(),
        run_id: "run-1".into(),
        rank,
        world_size,
        lane_count: 2,
        slots_per_lane: Some(64),
        element_count_max: 256,
        wire_format: WireFormat::FaninV1,
        wait: Duration::from_secs(10),
        worker_label: format!("host{rank}/{}", 1000 + rank),
        host_key: None,
        algorithm: Algorithm::Switchml,
        accumulator: fanin_wire::Accumulator::BlockFixed,
        server_ports: Vec::new(),
        switch_name: String::new(),
        absences: Default::default(),
        is_replacement: false,
    }
}

/// Joins all ranks, each with its own client as in life.
pub fn join_all(switch: &Switch, job_name: &str, world_size: u16) -> Vec<(ControlClient, Admission)> {
    let joined: Vec<_> = join_each(switch, (0..world_size).map(|rank| parameters(job_name, rank, world_size)));
    joined.into_iter().map(|(client, answer)| (client, answer.expect("all ranks are here"))).collect()
}

pub type Joined = (ControlClient, Result<Admission, ControlError>);

pub fn join_each(switch: &Switch, asks: impl Iterator<Item = JoinParameters>) -> Vec<Joined> {
    std::thread::scope(|scope| {
        let join = |ask: JoinParameters| {
            let client = switch.client();
            let answer = client.join(&ask);
            (client, answer)
        };
        let threads: Vec<_> = asks.map(|ask| scope.spawn(move || join(ask))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

pub fn no_report() -> HostReport {
    HostReport::default()
}

/// Polls instead of sleeping, so that a test is as fast as the code and still tells when it is too slow.
pub fn within(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
    start.elapsed()
}
