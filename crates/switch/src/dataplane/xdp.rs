//! The XDP program in front of the data-plane threads.
//!
//! Each job goes to the program if it can serve it, else to the threads, and stays there. A job whose workers turn out to
//! send by ways that the program does not see moves to the threads before its first sum.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crossbeam_channel::{Receiver, Sender, unbounded};
use fanin_net::NetError;
use fanin_wire::generated::XDP_ELEMENT_COUNT_MAX;
use fanin_xdp::{KernelSwitch, SLOT_BYTES, Settings, XdpError};

use super::carry::{CarriedJob, Strays};
use super::{DataplaneConfig, UdpDataplane, add_traffic, inspection, interfaces, job_config, publish};
use crate::dataplane_api::{
    DataPath, Dataplane, DataplaneCounters, InstallError, JobInspection, JobInstall, JobPath, SwitchPath,
};

/// How to put the program in front of the threads.
#[derive(Clone, Debug, Default)]
pub struct XdpConfig {
    /// Interfaces; of a bridge its ports. Empty: those with the data plane's address.
    pub interfaces: Vec<String>,
    /// Slots of all jobs together; the kernel takes this memory at the start.
    pub slot_memory_bytes: u64,
}

/// Threads with the XDP program in front of them, or without where it cannot be had.
pub struct XdpDataplane {
    inner: Arc<Inner>,
}

struct Inner {
    sockets: UdpDataplane,
    /// `None`: not to be had, or stopped.
    kernel: Mutex<Option<KernelSwitch>>,
    interfaces: Vec<String>,
    fallback_reason: String,
    jobs: Mutex<HashMap<u32, Place>>,
    strays: Sender<u32>,
}

/// Where a job is.
enum Place {
    Kernel(Box<CarriedJob>),
    /// With the reason.
    Sockets(String),
}

impl XdpDataplane {
    /// With what the kernel's program counts.
    fn with_kernel(&self, mut sum: DataplaneCounters) -> DataplaneCounters {
        let kernel = self.inner.kernel();
        let Some(kernel) = kernel.as_ref() else { return sum };
        add_traffic(&mut sum.total, &publish::kernel(&kernel.counters()));
        for job_id in kernel.job_ids() {
            sum.jobs.extend(kernel.job_counters(job_id).map(|counters| (job_id, publish::kernel(&counters))));
        }
        sum
    }

    /// Starts the threads and puts the program in front of them. Where that fails, the threads serve alone, and
    /// [`Dataplane::path`] says why.
    ///
    /// # Errors
    /// [`NetError`] when a port cannot be opened or a thread not be started.
    pub fn start(config: &DataplaneConfig, xdp: &XdpConfig) -> Result<XdpDataplane, NetError> {
        let sockets = UdpDataplane::start(config)?;
        let (kernel, interfaces, fallback_reason) = match attach(config, xdp, &sockets.ports()) {
            Ok((kernel, interfaces)) => (Some(kernel), interfaces, String::new()),
            Err(reason) => (None, Vec::new(), reason),
        };
        let (strays, reports) = unbounded();
        let (kernel, jobs) = (Mutex::new(kernel), Mutex::default());
        let inner = Arc::new(Inner { sockets, kernel, interfaces, fallback_reason, jobs, strays });
        let mover = Arc::downgrade(&inner);
        std::thread::Builder::new()
            .name("fanin-xdp-mover".into())
            .spawn(move || move_strays(&mover, &reports))
            .map_err(|source| NetError::Setup { action: "start the thread that moves jobs", source })?;
        Ok(XdpDataplane { inner })
    }

    /// Why the program is not in front; `None`: it is.
    pub fn fallback_reason(&self) -> Option<&str> {
        Some(self.inner.fallback_reason.as_str()).filter(|reason| !reason.is_empty())
    }

    /// As [`UdpDataplane::register`].
    pub fn register(&self, job_id: u32, lane: u16, rank: u16, address: SocketAddr) {
        self.inner.sockets.register(job_id, lane, rank, address);
    }
}

fn attach(
    config: &DataplaneConfig,
    xdp: &XdpConfig,
    ports: &[SocketAddr],
) -> Result<(KernelSwitch, Vec<String>), String> {
    let all = fanin_net::interfaces().map_err(|error| format!("cannot list the network interfaces: {error}"))?;
    let chosen = interfaces::choose(&xdp.interfaces, config.address, &all, interfaces::bridge_ports)?;
    let numbers = || ports.iter().map(SocketAddr::port);
    let (first, last) = (numbers().min().unwrap_or(0), numbers().max().unwrap_or(0));
    let settings = Settings {
        port_first: first,
        port_count: last - first + 1,
        own_address: chosen.own_address,
        slot_count: u32::try_from(xdp.slot_memory_bytes / SLOT_BYTES).unwrap_or(u32::MAX).max(1),
    };
    let in_words = |error: XdpError| error.to_string();
    let mut kernel = KernelSwitch::load_redirecting(&settings, chosen.names.len() as u32).map_err(in_words)?;
    for name in &chosen.names {
        kernel.attach(name).map_err(in_words)?;
    }
    Ok((kernel, chosen.names))
}

/// Ends with the data plane, whose ends of the channel close.
fn move_strays(dataplane: &Weak<Inner>, reports: &Receiver<u32>) {
    for job_id in reports {
        let Some(dataplane) = dataplane.upgrade() else { return };
        dataplane.move_to_sockets(job_id);
    }
}

impl Inner {
    fn kernel(&self) -> MutexGuard<'_, Option<KernelSwitch>> {
        self.kernel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn jobs(&self) -> MutexGuard<'_, HashMap<u32, Place>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn install(&self, job: JobInstall) -> Result<(), InstallError> {
        let reason = match self.install_in_kernel(&job)? {
            Ok(carried) => {
                self.jobs().insert(job.job_id, Place::Kernel(Box::new(carried)));
                return Ok(());
            }
            Err(reason) => reason,
        };
        tracing::info!(job_id = job.job_id, reason, "the job goes to the sockets");
        let job_id = job.job_id;
        self.sockets.install(job)?;
        self.jobs().insert(job_id, Place::Sockets(reason));
        Ok(())
    }

    /// The inner error is why the job has to go to the sockets.
    fn install_in_kernel(&self, job: &JobInstall) -> Result<Result<CarriedJob, String>, InstallError> {
        let mut kernel = self.kernel();
        let Some(kernel) = kernel.as_mut() else { return Ok(Err(self.fallback_reason.clone())) };
        if job.atp.is_some() {
            return Ok(Err("the XDP program serves jobs of the algorithm switchml".into()));
        }
        if job.racks.is_some() {
            return Ok(Err("the XDP program serves jobs whose workers are all beside this switch".into()));
        }
        match kernel.install(job_config(job), job.has_checksum) {
            Ok(()) => {}
            Err(fanin_xdp::InstallError::JobNumberInUse { job_number }) => {
                return Err(InstallError::JobNumberInUse { job_number });
            }
            Err(error) => return Ok(Err(error.to_string())),
        }
        let Some(carrier) = kernel.carrier(job.job_id) else { unreachable!("the job was just installed") };
        let carried = CarriedJob::new(job.clone(), carrier, Strays::new(self.strays.clone()));
        if let Err(error) = self.sockets.carry(&carried) {
            kernel.remove(job.job_id);
            self.sockets.remove(job.job_id);
            return Err(error);
        }
        Ok(Ok(carried))
    }

    /// A worker's datagrams do not pass the program. Before the job's first sum the threads can start it afresh: what the
    /// program has of it, its workers still hold and send again when they are asked.
    fn move_to_sockets(&self, job_id: u32) {
        let mut jobs = self.jobs();
        let Some(Place::Kernel(carried)) = jobs.get(&job_id) else { return };
        let reason = "a worker's datagrams do not pass the XDP program: they come by another interface, or not as plain \
                      IPv4 frames";
        if !self.remove_unless_summed(job_id) {
            tracing::error!(job_id, reason, "the job has sums in the kernel already and cannot move to the sockets");
            return carried.strays.give_up();
        }
        match self.sockets.install(carried.install.clone()) {
            Ok(()) => tracing::warn!(job_id, reason, "the job moves to the sockets"),
            Err(error) => tracing::error!(job_id, %error, "the job cannot move to the sockets"),
        }
        jobs.insert(job_id, Place::Sockets(reason.into()));
    }

    /// Takes a job out of the kernel, unless a chunk of it is complete. Returns whether it did.
    fn remove_unless_summed(&self, job_id: u32) -> bool {
        self.kernel().as_mut().is_some_and(|kernel| kernel.remove_unless_summed(job_id))
    }
}

impl Dataplane for XdpDataplane {
    fn install(&self, job: JobInstall) -> Result<(), InstallError> {
        self.inner.install(job)
    }

    fn remove(&self, job_id: u32) {
        let mut jobs = self.inner.jobs();
        if let Some(kernel) = self.inner.kernel().as_mut() {
            kernel.remove(job_id);
        }
        self.inner.sockets.remove(job_id);
        jobs.remove(&job_id);
    }

    fn inspect(&self, job_id: u32) -> Option<JobInspection> {
        let carried = match self.inner.jobs().get(&job_id)? {
            Place::Sockets(_) => None,
            Place::Kernel(carried) => Some(carried.clone()),
        };
        let Some(carried) = carried else { return self.inner.sockets.inspect(job_id) };
        let snapshot = self.inner.kernel().as_ref()?.inspect(job_id)?;
        let by_lane: Vec<Vec<_>> =
            (0..carried.install.lane_count).map(|lane| carried.carrier.addresses(lane).collect()).collect();
        let address = |rank: u16| by_lane.iter().find_map(|lane| *lane.get(usize::from(rank))?);
        Some(inspection::describe(&carried.install, &snapshot, KernelSwitch::now(), address))
    }

    fn counters(&self) -> DataplaneCounters {
        self.with_kernel(self.inner.sockets.counters())
    }

    fn counters_now(&self) -> DataplaneCounters {
        self.with_kernel(self.inner.sockets.counters_now())
    }

    fn ports(&self) -> Vec<SocketAddr> {
        self.inner.sockets.ports()
    }

    fn path(&self) -> SwitchPath {
        let kernel = self.inner.kernel();
        SwitchPath {
            path: if self.inner.fallback_reason.is_empty() { DataPath::Xdp } else { DataPath::Sockets },
            fallback_reason: self.inner.fallback_reason.clone(),
            interfaces: self.inner.interfaces.clone(),
            kernel: kernel.as_ref().map(|kernel| publish::kernel(&kernel.counters())),
        }
    }

    fn job_path(&self, job_id: u32) -> JobPath {
        match self.inner.jobs().get(&job_id) {
            Some(Place::Kernel(_)) => JobPath { path: DataPath::Xdp, reason: String::new() },
            Some(Place::Sockets(reason)) => JobPath { path: DataPath::Sockets, reason: reason.clone() },
            None => JobPath::default(),
        }
    }

    fn element_count_max(&self) -> u16 {
        if self.inner.fallback_reason.is_empty() { XDP_ELEMENT_COUNT_MAX } else { u16::MAX }
    }

    fn stop(&self) {
        // Detaches the program.
        drop(self.inner.kernel().take());
        self.inner.sockets.stop();
    }
}
