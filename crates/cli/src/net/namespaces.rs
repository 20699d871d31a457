//! Building and removing namespaces with `ip` and `tc`.
//!
//! One namespace per worker, a veth pair to the switch's namespace, a bridge
//! there, and htb at both ends of every pair. htb, not tbf: it lets a
//! super-packet through whole and charges it for every segment's headers.

use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::Serialize;

const PREFIX: &str = "fanin-";
const NAMESPACE_FOLDER: &str = "/run/netns";
const BRIDGE: &str = "br0";
const WORKER_DEVICE: &str = "w0";
/// Addresses of every network are the same: namespaces do not see each other.
const NETWORK: [u8; 3] = [10, 78, 0];
const SWITCH_HOST: u8 = 254;

/// What every link is like, each way.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// Bits per second, headers up to Ethernet's included.
    pub rate_bps: u64,
    /// Largest IP packet.
    pub mtu_bytes: u32,
    /// Whether workers take frames that XDP at the switch sends: generic receive offload at their ends.
    pub takes_xdp: bool,
}

/// The switch's place.
#[derive(Clone, Debug, Serialize)]
pub struct SwitchPlace {
    /// Namespace.
    pub ns: String,
    /// The bridge's.
    pub address: Ipv4Addr,
}

/// One worker's place.
#[derive(Clone, Debug, Serialize)]
pub struct WorkerPlace {
    /// Namespace.
    pub ns: String,
    /// Of its link.
    pub address: Ipv4Addr,
    /// Its link.
    pub device: String,
}

/// A network, for programs.
#[derive(Clone, Debug, Serialize)]
pub struct Description {
    /// For `fanin net down`.
    pub id: String,
    /// The switch's place.
    pub switch: SwitchPlace,
    /// The workers' places.
    pub workers: Vec<WorkerPlace>,
}

/// A network that is removed when this is dropped.
pub struct Network {
    description: Option<Description>,
}

impl Network {
    /// Builds a network; `owner` is the process whose end makes it a leftover.
    ///
    /// # Errors
    /// Without root, or what `ip` or `tc` complained about; nothing is left
    /// behind then.
    pub fn build(owner: u32, worker_count: u16, link: Link) -> anyhow::Result<Network> {
        require_root()?;
        let description = claim(owner, worker_count)?;
        // From here on an error removes what exists.
        let network = Network { description: Some(description.clone()) };
        build_switch(&description.switch, link)?;
        for (index, worker) in description.workers.iter().enumerate() {
            build_worker(&description.switch, worker, index, link)?;
        }
        Ok(network)
    }

    /// Where everything is.
    pub fn description(&self) -> anyhow::Result<&Description> {
        self.description.as_ref().context("the network is gone")
    }

    /// Leaves it in place when this is dropped.
    pub fn keep(mut self) -> Description {
        self.description.take().unwrap_or_else(|| unreachable!("only keep and drop take the description"))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if let Some(description) = self.description.take()
            && let Err(error) = remove(&description.id)
        {
            eprintln!("fanin: could not remove the network {}: {error:#}; try: fanin net clean", description.id);
        }
    }
}

/// Removes the namespaces of network `id`; returns how many there were.
///
/// # Errors
/// Without root, for an unknown id, or when `ip` fails.
pub fn remove(id: &str) -> anyhow::Result<usize> {
    require_root()?;
    let names: Vec<_> = list()?.into_iter().filter(|name| id_of(name) == Some(id)).collect();
    ensure!(!names.is_empty(), "there is no network {id:?}; `ip netns list` shows what there is");
    delete(&names)
}

/// Removes the networks whose owner has ended; returns how many namespaces.
///
/// # Errors
/// Without root, or when `ip` fails.
pub fn remove_leftovers() -> anyhow::Result<usize> {
    require_root()?;
    let names: Vec<_> = list()?.into_iter().filter(|name| id_of(name).is_some_and(|id| !owner_lives(id))).collect();
    delete(&names)
}

fn delete(names: &[String]) -> anyhow::Result<usize> {
    for name in names {
        ip(&["netns", "delete", name])?;
    }
    Ok(names.len())
}

fn require_root() -> anyhow::Result<()> {
    let user = std::fs::metadata("/proc/self").context("no /proc: network namespaces need Linux")?.uid();
    ensure!(user == 0, "network namespaces need root: run this with sudo, or leave the shaped network out");
    Ok(())
}

/// The process that asked for the network. sudo is passed over, both of the
/// processes that it may put between: they end with this program.
pub fn caller() -> u32 {
    let mut pid = std::os::unix::process::parent_id();
    while let Some((name, fields)) = stat(pid)
        && name == "sudo"
        && let Some(parent) = fields.split_whitespace().nth(1).and_then(|parent| parent.parse().ok())
    {
        pid = parent;
    }
    pid
}

/// Makes the switch's namespace under an id that no other network has. Only
/// `ip netns add` can tell: it refuses a name that exists.
fn claim(owner: u32, worker_count: u16) -> anyhow::Result<Description> {
    const ATTEMPTS: usize = 8;
    let mut refusal = None;
    for _ in 0..ATTEMPTS {
        let nonce = getrandom::u32().map_err(|error| anyhow::anyhow!("no random name for a network: {error}"))?;
        let description = describe(&new_id(owner, nonce)?, worker_count)?;
        match ip(&["netns", "add", &description.switch.ns]) {
            Ok(()) => return Ok(description),
            Err(error) if error.to_string().contains("File exists") => refusal = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(refusal.unwrap_or_else(|| unreachable!("every attempt ends above or leaves its refusal")))
}

/// "owner-start-nonce": the owner's pid and start time, so that a later
/// process with the same pid is not taken for it; 24 bits of `nonce`, since
/// one owner may build several networks at the same moment.
fn new_id(owner: u32, nonce: u32) -> anyhow::Result<String> {
    let start = start_time(owner).with_context(|| format!("there is no process {owner} to own the network"))?;
    Ok(format!("{owner:x}-{start:x}-{:x}", nonce & 0xff_ffff))
}

fn owner_lives(id: &str) -> bool {
    let mut parts = id.split('-').map(|part| u64::from_str_radix(part, 16).ok());
    let (Some(Some(owner)), Some(Some(start))) = (parts.next(), parts.next()) else {
        // Not an id that this program made: leave it alone.
        return true;
    };
    u32::try_from(owner).ok().and_then(start_time) == Some(start)
}

/// Clock ticks from boot to the process's start: field 22 of its stat file.
fn start_time(pid: u32) -> Option<u64> {
    stat(pid)?.1.split_whitespace().nth(19)?.parse().ok()
}

/// The command of a process, and the fields of its stat file from the third,
/// its state, on.
fn stat(pid: u32) -> Option<(String, String)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command in parentheses may hold anything, blanks and parentheses included.
    let (before, fields) = stat.rsplit_once(')')?;
    let (_, name) = before.split_once('(')?;
    Some((name.into(), fields.into()))
}

/// The id inside "fanin-ID-s" or "fanin-ID-w3".
fn id_of(name: &str) -> Option<&str> {
    let (id, place) = name.strip_prefix(PREFIX)?.rsplit_once('-')?;
    let worker = place.strip_prefix('w').is_some_and(|index| index.parse::<u16>().is_ok());
    (place == "s" || worker).then_some(id)
}

fn list() -> anyhow::Result<Vec<String>> {
    let folder = match std::fs::read_dir(NAMESPACE_FOLDER) {
        Ok(folder) => folder,
        // It exists from the first namespace on.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).context("cannot list the network namespaces"),
    };
    let mut names: Vec<_> = folder.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    Ok(names)
}

fn describe(id: &str, worker_count: u16) -> anyhow::Result<Description> {
    let address = |host: u8| Ipv4Addr::new(NETWORK[0], NETWORK[1], NETWORK[2], host);
    let worker = |index: u16| {
        let host = u8::try_from(index + 1).ok().filter(|host| *host < SWITCH_HOST);
        let host = host.context("a shaped network has at most 253 workers")?;
        Ok(WorkerPlace { ns: format!("{PREFIX}{id}-w{index}"), address: address(host), device: WORKER_DEVICE.into() })
    };
    Ok(Description {
        id: id.into(),
        switch: SwitchPlace { ns: format!("{PREFIX}{id}-s"), address: address(SWITCH_HOST) },
        workers: (0..worker_count).map(worker).collect::<anyhow::Result<_>>()?,
    })
}

fn build_switch(switch: &SwitchPlace, link: Link) -> anyhow::Result<()> {
    let (ns, mtu) = (switch.ns.as_str(), link.mtu_bytes.to_string());
    ip(&["-n", ns, "link", "set", "lo", "up"])?;
    ip(&["-n", ns, "link", "add", BRIDGE, "type", "bridge"])?;
    ip(&["-n", ns, "link", "set", BRIDGE, "up", "mtu", &mtu])?;
    ip(&["-n", ns, "addr", "add", &format!("{}/24", switch.address), "dev", BRIDGE])
}

fn build_worker(switch: &SwitchPlace, worker: &WorkerPlace, index: usize, link: Link) -> anyhow::Result<()> {
    let (ns, port, mtu) = (worker.ns.as_str(), format!("s{index}"), link.mtu_bytes.to_string());
    ip(&["netns", "add", ns])?;
    ip(&["-n", ns, "link", "set", "lo", "up"])?;
    let pair = ["link", "add", &worker.device, "netns", ns, "mtu", &mtu, "type", "veth"];
    ip(&[&pair[..], &["peer", "name", &port, "netns", &switch.ns, "mtu", &mtu]].concat())?;
    ip(&["-n", ns, "addr", "add", &format!("{}/24", worker.address), "dev", &worker.device])?;
    ip(&["-n", ns, "link", "set", &worker.device, "up"])?;
    ip(&["-n", &switch.ns, "link", "set", &port, "up", "master", BRIDGE])?;
    if link.takes_xdp {
        receive_offload(ns, &worker.device)?;
    }
    shape(ns, &worker.device, link)?;
    shape(&switch.ns, &port, link)
}

/// A veth takes frames from XDP only while it polls, which it does from when this is on. The thread is one for the purpose:
/// it stays in the namespace.
fn receive_offload(ns: &str, device: &str) -> anyhow::Result<()> {
    let namespace = std::fs::File::open(format!("{NAMESPACE_FOLDER}/{ns}"))?;
    let device = device.to_owned();
    let switch_on = move || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        fanin_net::set_receive_offload(&device, true)
    };
    let outcome = std::thread::spawn(switch_on).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    outcome.with_context(|| format!("cannot switch generic receive offload on in {ns}"))
}

fn shape(ns: &str, device: &str, link: Link) -> anyhow::Result<()> {
    let rate = format!("{}bit", link.rate_bps);
    let qdisc = ["-n", ns, "qdisc", "add", "dev", device];
    tc(&[&qdisc[..], &["root", "handle", "1:", "htb", "default", "1"]].concat())?;
    let class = ["-n", ns, "class", "add", "dev", device, "parent", "1:", "classid", "1:1"];
    tc(&[&class[..], &["htb", "rate", &rate, "burst", "64k", "cburst", "64k"]].concat())?;
    tc(&[&qdisc[..], &["parent", "1:1", "bfifo", "limit", "4mb"]].concat())
}

fn ip(arguments: &[&str]) -> anyhow::Result<()> {
    run("ip", arguments)
}

fn tc(arguments: &[&str]) -> anyhow::Result<()> {
    run("tc", arguments)
}

fn run(program: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run `{program}`: install iproute2"))?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        bail!("`{program} {}` failed: {}", arguments.join(" "), complaint.trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_carry_the_id_and_foreign_names_do_not() {
        assert_eq!(id_of("fanin-1a-2b-3c-s"), Some("1a-2b-3c"));
        assert_eq!(id_of("fanin-1a-2b-3c-w12"), Some("1a-2b-3c"));
        for foreign in ["w0", "fanin-x", "fanin-1a-2b-3c-web", "other-1a-2b-3c-s"] {
            assert_eq!(id_of(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn an_id_knows_whether_its_owner_lives() {
        let me = new_id(std::process::id(), 7).unwrap();
        assert!(owner_lives(&me));
        let start = start_time(std::process::id()).unwrap();
        assert!(!owner_lives(&format!("{:x}-{:x}-0", std::process::id(), start + 1)));
        assert!(owner_lives("demo"), "not one of ours: must be left alone");
    }
}
