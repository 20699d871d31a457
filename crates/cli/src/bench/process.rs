//! Processes that speak one JSON value a line.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::Value;

const POLL: Duration = Duration::from_millis(100);
const COMPLAINT_LINES: usize = 12;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Makes the kernel kill this process when the one that started it ends, so
/// that a benchmark that is killed leaves nothing running. Called by the child:
/// between fork and exec there is no safe place for it.
pub fn end_with_parent() {
    // A failure leaves a child that ends with its stdin instead.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
}

/// Makes Ctrl-C and SIGTERM end every wait of this module with an error, so
/// that destructors remove what was built.
pub fn catch_interrupts() -> anyhow::Result<()> {
    ctrlc::set_handler(|| INTERRUPTED.store(true, Ordering::Relaxed)).context("cannot catch Ctrl-C")
}

/// Fails once Ctrl-C or SIGTERM has come.
pub fn check_interrupted() -> anyhow::Result<()> {
    if INTERRUPTED.load(Ordering::Relaxed) {
        bail!("interrupted");
    }
    Ok(())
}

/// The other end of a conversation: requests go there, replies come back.
pub struct Peer {
    name: String,
    requests: Box<dyn Write + Send>,
    lines: Receiver<String>,
    complaints: Arc<Mutex<VecDeque<String>>>,
}

impl Peer {
    /// A peer at the other end of a stream. `name` is for messages.
    pub fn new(name: String, requests: impl Write + Send + 'static, replies: impl Read + Send + 'static) -> Peer {
        Peer { name, requests: Box::new(requests), lines: follow_lines(replies), complaints: Arc::default() }
    }

    /// Sends one request, a line without its end.
    pub fn send(&mut self, request: &str) -> anyhow::Result<()> {
        // One write, so that no reader ever sees half a line.
        let sent = self.requests.write_all(format!("{request}\n").as_bytes()).and_then(|()| self.requests.flush());
        match sent {
            Ok(()) => Ok(()),
            Err(error) => bail!("{} does not listen: {error}{}", self.name, self.last_words()),
        }
    }

    /// Waits for one reply. A reply with an `error` is an error here.
    pub fn receive(&mut self, limit: Duration) -> anyhow::Result<Value> {
        let deadline = Instant::now() + limit;
        loop {
            check_interrupted()?;
            match self.lines.recv_timeout(POLL) {
                Ok(line) => return self.parse(&line),
                Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
                Err(RecvTimeoutError::Timeout) => {
                    bail!("{} has not answered for {} s{}", self.name, limit.as_secs(), self.last_words())
                }
                Err(RecvTimeoutError::Disconnected) => bail!("{} has ended{}", self.name, self.last_words()),
            }
        }
    }

    fn parse(&self, line: &str) -> anyhow::Result<Value> {
        let reply: Value = serde_json::from_str(line)
            .with_context(|| format!("{} said {line:?}, which is not JSON{}", self.name, self.last_words()))?;
        match reply.get("error").and_then(Value::as_str) {
            Some(error) => bail!("{}: {error}", self.name),
            None => Ok(reply),
        }
    }

    /// What it wrote to stderr last, to be put behind a message.
    pub fn last_words(&self) -> String {
        // The child's last lines may still be on their way through the pipe.
        std::thread::sleep(POLL);
        let lines = self.complaints.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        lines.iter().map(|line| format!("\n    {line}")).collect()
    }
}

/// A running child. Dropping it kills it.
pub struct Process {
    child: Child,
    peer: Peer,
}

impl Process {
    /// Starts `command`, inside `namespace` if there is one, with
    /// `environment` added. `name` is for messages.
    pub fn start(
        name: String,
        namespace: Option<&str>,
        command: &[OsString],
        environment: &[(&str, &str)],
    ) -> anyhow::Result<Process> {
        let mut words: Vec<OsString> = Vec::new();
        if let Some(namespace) = namespace {
            words.extend(["ip", "netns", "exec", namespace].map(OsString::from));
        }
        words.extend_from_slice(command);
        let mut builder = Command::new(&words[0]);
        builder.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        builder.envs(environment.iter().copied());
        let mut child = builder.spawn().with_context(|| format!("cannot start {name}: {}", words[0].display()))?;
        let stdin = child.stdin.take().context("no stdin")?;
        let mut peer = Peer::new(name, stdin, child.stdout.take().context("no stdout")?);
        peer.complaints = follow_complaints(child.stderr.take().context("no stderr")?);
        Ok(Process { child, peer })
    }

    /// Of the child.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        // Not known is not ended: the next conversation tells.
        matches!(self.child.try_wait(), Ok(Some(_)))
    }
}

impl AsMut<Peer> for Process {
    fn as_mut(&mut self) -> &mut Peer {
        &mut self.peer
    }
}

impl AsMut<Peer> for Peer {
    fn as_mut(&mut self) -> &mut Peer {
        self
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Already gone is fine; wait returns at once after SIGKILL.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends `requests[i]` to `peers[i]`, then waits for all replies.
pub fn ask_all(peers: &mut [impl AsMut<Peer>], requests: &[String], limit: Duration) -> anyhow::Result<Vec<Value>> {
    for (peer, request) in peers.iter_mut().zip(requests) {
        peer.as_mut().send(request)?;
    }
    let deadline = Instant::now() + limit;
    let receive = |peer: &mut _| {
        let peer: &mut Peer = AsMut::as_mut(peer);
        peer.receive(deadline.saturating_duration_since(Instant::now()))
    };
    peers.iter_mut().map(receive).collect()
}

fn follow_lines(stdout: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines() {
            let Ok(line) = line else { return };
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

fn follow_complaints(stderr: impl Read + Send + 'static) -> Arc<Mutex<VecDeque<String>>> {
    let complaints: Arc<Mutex<VecDeque<String>>> = Arc::default();
    let kept = complaints.clone();
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines() {
            let Ok(line) = line else { return };
            let mut kept = kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            if kept.len() == COMPLAINT_LINES {
                kept.pop_front();
            }
            kept.push_back(line);
        }
    });
    complaints
}
