//! Open MPI beside fanin: a small C program, compiled once and kept in a
//! cache folder, over shared memory and over TCP.

use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use super::{Baseline, JOIN_LIMIT, Setting, Work};
use crate::bench::process::{Peer, Process, ask_all, check_interrupted};

const SOURCE: &str = include_str!("bench_mpi.c");
const POLL: Duration = Duration::from_millis(20);
const QUIT_LIMIT: Duration = Duration::from_secs(2);

/// What Open MPI's messages go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    SharedMemory,
    Tcp,
}

impl Transport {
    pub const ALL: [Transport; 2] = [Transport::SharedMemory, Transport::Tcp];

    pub fn name(self) -> &'static str {
        match self {
            Transport::SharedMemory => "Open MPI shm",
            Transport::Tcp => "Open MPI tcp",
        }
    }

    fn flags(self) -> &'static [&'static str] {
        match self {
            Transport::SharedMemory => &["--mca", "btl", "self,vader"],
            Transport::Tcp => &["--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo"],
        }
    }
}

/// Open MPI's ranks over one transport.
pub struct OpenMpi {
    transport: Transport,
    version: String,
    ranks: Vec<Peer>,
    mpirun: Process,
}

/// Starts the ranks; or why not.
pub fn start(transport: Transport, setting: &Setting) -> Result<OpenMpi, String> {
    try_start(transport, setting).map_err(|error| format!("{error:#}"))
}

fn try_start(transport: Transport, setting: &Setting) -> anyhow::Result<OpenMpi> {
    ensure!(setting.link.is_none(), "mpirun does not start ranks in network namespaces");
    let program = program()?;
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("no port on loopback")?;
    listener.set_nonblocking(true).context("no port on loopback")?;
    let port = listener.local_addr().context("no port on loopback")?.port().to_string();
    let ranks = setting.ranks.to_string();
    let mut command: Vec<OsString> =
        ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", &ranks, "--mca", "pml", "ob1"]
            .map(OsString::from)
            .into();
    command.extend(transport.flags().iter().map(OsString::from));
    command.extend([program.into(), port.into()]);
    // Benchmarks in containers run as root, which mpirun refuses unless told twice.
    let as_root = [("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")];
    let mut mpirun = Process::start("mpirun".into(), None, &command, &as_root)?;
    let (version, ranks) = meet(&listener, &mut mpirun, usize::from(setting.ranks))?;
    Ok(OpenMpi { transport, version, ranks, mpirun })
}

/// Waits until every rank has called; the version that they said, and the ranks in their order.
fn meet(listener: &TcpListener, mpirun: &mut Process, count: usize) -> anyhow::Result<(String, Vec<Peer>)> {
    let deadline = Instant::now() + JOIN_LIMIT;
    let (mut version, mut ranks) = (String::new(), Vec::new());
    while ranks.len() < count {
        check_interrupted()?;
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).and_then(|()| stream.set_nodelay(true)).context("a rank's connection")?;
                let replies = stream.try_clone().context("a rank's connection")?;
                let mut peer = Peer::new("an Open MPI rank".into(), stream, replies);
                let hello = peer.receive(deadline.saturating_duration_since(Instant::now()))?;
                let rank = hello.get("rank").and_then(Value::as_u64).context("a rank did not say which")?;
                version = hello.get("version").and_then(Value::as_str).unwrap_or("unknown").to_owned();
                ranks.push((rank, peer));
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => std::thread::sleep(POLL),
            Err(error) => return Err(error).context("waiting for the ranks"),
        }
        if mpirun.has_ended() {
            bail!("mpirun has ended{}", mpirun.as_mut().last_words());
        }
        ensure!(Instant::now() < deadline, "only {} of {count} ranks started", ranks.len());
    }
    ranks.sort_by_key(|(rank, _)| *rank);
    Ok((version, ranks.into_iter().map(|(_, peer)| peer).collect()))
}

impl Baseline for OpenMpi {
    fn name(&self) -> &'static str {
        self.transport.name()
    }

    fn version(&self) -> &str {
        &self.version
    }

    /// Open MPI has no 16-bit floats.
    fn sums(&self, dtype: &str) -> bool {
        matches!(dtype, "float32" | "int32" | "int64")
    }

    fn round(&mut self, work: &Work<'_>, limit: Duration) -> anyhow::Result<Vec<Value>> {
        let request = format!("{} {} {}", work.bytes, work.dtype, work.repeat);
        let requests = vec![request; self.ranks.len()];
        ask_all(&mut self.ranks, &requests, limit)
    }
}

impl Drop for OpenMpi {
    fn drop(&mut self) {
        // Ranks that are killed with mpirun are nobody's children: their time would count as other programs'.
        let all_know = self.ranks.iter_mut().all(|rank| rank.send("quit").is_ok());
        let deadline = Instant::now() + QUIT_LIMIT;
        while all_know && !self.mpirun.has_ended() && Instant::now() < deadline {
            std::thread::sleep(POLL);
        }
    }
}

/// The compiled program. Its name tells source and compiler, so that a change of either compiles again.
fn program() -> anyhow::Result<PathBuf> {
    let missing = "no mpicc and mpirun; on Debian or Ubuntu: apt-get install openmpi-bin libopenmpi-dev";
    output("mpirun", &["--version"]).context(missing)?;
    let compiler = output("mpicc", &["--version"]).context(missing)?;
    let mut hasher = DefaultHasher::new();
    (SOURCE, compiler).hash(&mut hasher);
    let folder = cache_folder();
    let program = folder.join(format!("bench-mpi-{:016x}", hasher.finish()));
    if program.exists() {
        return Ok(program);
    }
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    // Under another name first: a benchmark beside this one must not run half a program.
    let draft = folder.join(format!("draft-{}", std::process::id()));
    let source = draft.with_extension("c");
    let compiled = compile(&source, &draft);
    let _ = std::fs::remove_file(&source);
    compiled?;
    std::fs::rename(&draft, &program).with_context(|| format!("cannot write {}", program.display()))?;
    Ok(program)
}

fn compile(source: &Path, draft: &Path) -> anyhow::Result<()> {
    std::fs::write(source, SOURCE).with_context(|| format!("cannot write {}", source.display()))?;
    let (source, draft) = (source.to_string_lossy(), draft.to_string_lossy());
    output("mpicc", &["-O2", "-o", &draft, &source]).map(|_| ()).context("mpicc cannot compile the benchmark")
}

fn cache_folder() -> PathBuf {
    let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")));
    cache.unwrap_or_else(std::env::temp_dir).join("fanin")
}

/// What a program prints, if it succeeds.
fn output(program: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot start {program}"))?;
    ensure!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
