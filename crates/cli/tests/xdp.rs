//! `fanin switch --datapath xdp` at work: a daemon in one network namespace, ranks in others, real veths between them.
//!
//! All of this needs root, a program (clang at build time) and a kernel that takes it; without, tests say `SKIPPED`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};

const FANIN: &str = env!("CARGO_BIN_EXE_fanin");
/// Far longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(60);

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn fanin(arguments: &[&str]) -> Output {
    let output = Command::new(FANIN).args(arguments).stdin(Stdio::null()).output();
    output.unwrap_or_else(|error| panic!("{FANIN}: {error}"))
}

/// Namespaces that go with this value.
struct Net(Value);

impl Net {
    /// `None`, and a line that says why, where namespaces cannot be made.
    fn build(workers: u16) -> Option<Net> {
        if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
            println!("SKIPPED: network namespaces need root");
            return None;
        }
        let (workers, owner) = (workers.to_string(), std::process::id().to_string());
        let output =
            fanin(&["net", "up", "--workers", &workers, "--rate", "1gbit", "--gro", "--owner", &owner, "--json"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        Some(Net(serde_json::from_slice(&output.stdout).unwrap()))
    }

    fn word(&self, path: &str) -> &str {
        self.0.pointer(path).and_then(Value::as_str).unwrap_or_else(|| panic!("no {path} in {}", self.0))
    }

    fn switch(&self) -> &str {
        self.word("/switch/ns")
    }

    fn worker(&self, index: usize) -> &str {
        self.word(&format!("/workers/{index}/ns"))
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        fanin(&["net", "down", self.word("/id")]);
    }
}

/// A child in a namespace; killed when dropped.
struct Program {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Program {
    fn start(namespace: &str, arguments: &[&str]) -> Program {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace, FANIN]).args(arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Program { stdin: child.stdin.take(), stdout, child }
    }

    fn say(&mut self, request: &Value) {
        writeln!(self.stdin.as_mut().unwrap(), "{request}").unwrap();
    }

    /// One line; `None` when the program has ended.
    fn hear(&mut self) -> Option<Value> {
        let mut line = String::new();
        let bytes = self.stdout.read_line(&mut line).unwrap();
        (bytes > 0).then(|| serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}")))
    }

    fn complaint(&mut self) -> String {
        let mut complaint = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut complaint).unwrap();
        complaint
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Switch {
    program: Program,
    hello: Value,
    namespace: String,
}

impl Switch {
    /// `None`, and a line that says why, where this build or this kernel has no XDP.
    fn start(net: &Net, flags: &[&str]) -> Option<Switch> {
        let address = net.word("/switch/address");
        let own = ["switch", "--bind", address, "--datapath", "xdp", "--no-fallback", "--json", "--end-with-parent"];
        let ports = ["--control-port", "0", "--data-port", "0", "--http-port", "0", "--slot-memory", "8388608"];
        let mut program = Program::start(net.switch(), &[&own[..], &ports, flags].concat());
        let Some(hello) = program.hear() else {
            let complaint = program.complaint();
            let is_missing = ["built without XDP", "refuses to load"].iter().any(|part| complaint.contains(part));
            assert!(is_missing, "{complaint}");
            println!("SKIPPED: {}", complaint.trim());
            return None;
        };
        assert_eq!(hello["data_path"], "xdp", "{hello}");
        Some(Switch { program, hello, namespace: net.switch().into() })
    }

    fn controller(&self) -> &str {
        self.hello["control"].as_str().unwrap()
    }

    fn get(&self, path: &str) -> String {
        let address: SocketAddr = self.hello["http"].as_str().unwrap().parse().unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: switch\r\nConnection: close\r\n\r\n");
        let answer = inside(&self.namespace, move || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        });
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        body.into()
    }

    fn status(&self) -> Value {
        let body = self.get("/api/status");
        // The body may come in chunks: the document is from its first brace to its last.
        let (first, last) = (body.find('{').unwrap(), body.rfind('}').unwrap());
        serde_json::from_str(&body[first..=last]).unwrap_or_else(|error| panic!("{error}: {body}"))
    }

    fn job(&self, run_id: &str) -> Value {
        let status = self.status();
        let found = status["jobs"].as_array().unwrap().iter().find(|job| job["run_id"] == run_id);
        found.unwrap_or_else(|| panic!("no job {run_id} in {status}")).clone()
    }

    /// Contributions that the kernel counted, and all.
    fn contributions(&self) -> (u64, u64) {
        let status = self.status();
        let at = |path: &str| status.pointer(path).and_then(Value::as_u64).unwrap();
        (at("/xdp_traffic/contributions"), at("/traffic/contributions"))
    }
}

/// Runs a closure in a network namespace.
fn inside<T: Send + 'static>(namespace: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let file = std::fs::File::open(format!("/run/netns/{namespace}")).unwrap();
    // A thread of its own: a namespace is a property of the thread.
    let thread = std::thread::spawn(move || {
        move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), Some(LinkNameSpaceType::Network)).unwrap();
        work()
    });
    thread.join().unwrap()
}

fn ranks(namespaces: &[&str]) -> Vec<Program> {
    namespaces.iter().map(|namespace| Program::start(namespace, &["bench-worker"])).collect()
}

/// What a job is like.
#[derive(Clone, Copy)]
struct Job {
    number: u32,
    format: &'static str,
    loss: f64,
    p4app: bool,
    timeout_ms: u64,
}

const PLAIN: Job = Job { number: 0, format: "int32", loss: 0.0, p4app: false, timeout_ms: 30_000 };

fn ask_all(ranks: &mut [Program], requests: &[Value]) -> Vec<Value> {
    ranks.iter_mut().zip(requests).for_each(|(rank, request)| rank.say(request));
    ranks.iter_mut().map(|rank| rank.hear().expect("an answer")).collect()
}

fn join(switch: &Switch, ranks: &mut [Program], job: Job) {
    let world_size = ranks.len();
    let request = |rank: usize| {
        json!({
            "op": "connect", "job": job.number, "controller": switch.controller(),
            "run_id": format!("run-{}", job.number), "rank": rank, "world_size": world_size, "lanes": 2, "slots": 32,
            "elements": if job.p4app { Some(256) } else { None }, "element_format": job.format, "transport": "udp",
            "unicast": false, "loss": job.loss, "loss_seed": rank, "timeout_ms": job.timeout_ms, "p4app": job.p4app,
        })
    };
    let replies = ask_all(ranks, &(0..world_size).map(request).collect::<Vec<_>>());
    for reply in replies {
        assert!(reply.get("error").is_none(), "{reply}");
    }
}

fn round(job: u32, dtype: &str, number: u64) -> Value {
    json!({ "op": "round", "job": job, "bytes": 200_000, "dtype": dtype, "round": number, "repeat": 2 })
}

/// Two all-reduces that must be exact; returns the ranks' counters.
fn sum(ranks: &mut [Program], job: u32, dtype: &str) -> Vec<Value> {
    let requests = vec![round(job, dtype, 3); ranks.len()];
    let replies = ask_all(ranks, &requests);
    for (rank, reply) in replies.iter().enumerate() {
        assert_eq!(reply["wrong_elements"], 0, "rank {rank}, {dtype}: {reply}");
    }
    replies
}

fn total(replies: &[Value], counter: &str) -> u64 {
    replies.iter().map(|reply| reply["stats"][counter].as_u64().unwrap()).sum()
}

fn workers(net: &Net, count: usize) -> Vec<&str> {
    (0..count).map(|index| net.worker(index)).collect()
}

#[test]
fn the_kernel_sums_exactly_with_and_without_loss() {
    let Some(net) = Net::build(4) else { return };
    let Some(switch) = Switch::start(&net, &[]) else { return };
    assert_eq!(switch.hello["interfaces"], json!(["s0", "s1", "s2", "s3"]), "the bridge's ports");
    let mut ranks = ranks(&workers(&net, 4));
    for (number, format, loss) in [(0, "int32", 0.0), (1, "float16", 0.0), (2, "int32", 0.02), (3, "float16", 0.02)] {
        join(&switch, &mut ranks, Job { number, format, loss, ..PLAIN });
        for dtype in ["float32", "int32", "float16"] {
            let replies = sum(&mut ranks, number, dtype);
            assert!(loss == 0.0 || total(&replies, "losses_injected") > 0, "2 % of some thousand datagrams");
        }
        let job = switch.job(&format!("run-{number}"));
        assert_eq!((&job["data_path"], &job["data_path_reason"]), (&json!("xdp"), &json!("")), "{job}");
        assert_eq!(job["element_count_max"], 352, "the program's most");
        assert!(job["traffic"]["contributions"].as_u64().unwrap() > 1000, "{job}");
    }
    let (kernel, all) = switch.contributions();
    assert!(kernel > 4000 && kernel == all, "{kernel} of {all} contributions in the kernel");
    let metrics = switch.get("/metrics");
    assert!(metrics.contains("fanin_switch_data_path_info{data_path=\"xdp\",interfaces=\"s0,s1,s2,s3\""), "{metrics}");
    assert!(metrics.contains("fanin_switch_xdp_contributions_total"), "{metrics}");
}

#[test]
fn jobs_that_the_program_does_not_serve_go_to_the_sockets() {
    let Some(net) = Net::build(3) else { return };
    let Some(switch) = Switch::start(&net, &[]) else { return };
    let mut ranks = ranks(&workers(&net, 3));
    join(&switch, &mut ranks, PLAIN);
    join(&switch, &mut ranks, Job { number: 1, p4app: true, ..PLAIN });
    for _ in 0..2 {
        sum(&mut ranks, 0, "float32");
        sum(&mut ranks, 1, "float32");
    }
    let (first, second) = (switch.job("run-0"), switch.job("run-1"));
    assert_eq!((&first["data_path"], &second["data_path"]), (&json!("xdp"), &json!("sockets")));
    assert!(second["data_path_reason"].as_str().unwrap().contains("p4app-switchML"), "{second}");
    assert!(second["traffic"]["contributions"].as_u64().unwrap() > 0, "{second}");
    let (kernel, all) = switch.contributions();
    assert!(0 < kernel && kernel < all, "{kernel} of {all}");
}

#[test]
fn ranks_that_share_an_interface_are_summed_as_well() {
    let Some(net) = Net::build(2) else { return };
    let Some(switch) = Switch::start(&net, &[]) else { return };
    let mut ranks = ranks(&[net.worker(0), net.worker(0), net.worker(1), net.worker(1)]);
    for (number, loss) in [(0, 0.0), (1, 0.02)] {
        join(&switch, &mut ranks, Job { number, loss, ..PLAIN });
        sum(&mut ranks, number, "float32");
        sum(&mut ranks, number, "int32");
        assert_eq!(switch.job(&format!("run-{number}"))["data_path"], "xdp");
    }
    let (kernel, all) = switch.contributions();
    assert!(kernel > 0 && kernel == all, "{kernel} of {all}");
    let status = switch.status();
    let at = |path: &str| status.pointer(path).and_then(Value::as_u64).unwrap();
    // What is handed up and sent by the socket is counted once.
    assert_eq!(at("/traffic/received_datagrams"), at("/xdp_traffic/received_datagrams"), "{status}");
}

#[test]
fn a_job_whose_datagrams_do_not_pass_the_program_moves_to_the_sockets() {
    let Some(net) = Net::build(2) else { return };
    let Some(switch) = Switch::start(&net, &[]) else { return };
    // The third rank is on the switch's own host: its datagrams pass no interface.
    let mut ranks = ranks(&[net.worker(0), net.worker(1), net.switch()]);
    join(&switch, &mut ranks, PLAIN);
    sum(&mut ranks, 0, "float32");
    let job = switch.job("run-0");
    assert_eq!(job["data_path"], "sockets", "{job}");
    assert!(job["data_path_reason"].as_str().unwrap().contains("do not pass the XDP program"), "{job}");
}

#[test]
fn a_missing_rank_and_a_dead_one_are_named() {
    let Some(net) = Net::build(3) else { return };
    let Some(switch) = Switch::start(&net, &[]) else { return };
    let mut ranks = ranks(&workers(&net, 3));
    join(&switch, &mut ranks, Job { timeout_ms: 2000, ..PLAIN });
    join(&switch, &mut ranks, Job { number: 1, ..PLAIN });
    sum(&mut ranks, 1, "float32");
    let hang = ask_all(&mut ranks[..2], &vec![round(0, "float32", 1); 2]);
    for reply in &hang {
        let error = reply["error"].as_str().unwrap_or_else(|| panic!("{reply}"));
        assert!(error.contains("rank 2") || error.contains("ranks [2]"), "{error}");
        assert!(error.contains("slot"), "what it waits for: {error}");
    }
    let dead = ranks.pop().unwrap();
    drop(dead);
    let lost = ask_all(&mut ranks, &vec![round(1, "float32", 1); 2]);
    for reply in &lost {
        let error = reply["error"].as_str().unwrap_or_else(|| panic!("{reply}"));
        assert!(error.contains("rank 2"), "{error}");
    }
}

#[test]
fn without_checksums_sums_are_exact_too() {
    let Some(net) = Net::build(3) else { return };
    let Some(switch) = Switch::start(&net, &["--checksum", "off"]) else { return };
    let mut ranks = ranks(&workers(&net, 3));
    join(&switch, &mut ranks, Job { loss: 0.02, ..PLAIN });
    sum(&mut ranks, 0, "float32");
    let job = switch.job("run-0");
    assert_eq!((&job["checksum"], &job["data_path"]), (&json!(false), &json!("xdp")), "{job}");
    assert!(job["traffic"]["drops"].as_array().unwrap().iter().all(|drop| drop["reason"] != "bad_checksum"), "{job}");
}

#[test]
fn nothing_stays_attached_when_the_switch_is_killed() {
    let Some(net) = Net::build(1) else { return };
    let has_program = || {
        let output = Command::new("ip").args(["-n", net.switch(), "link", "show", "dev", "s0"]).output().unwrap();
        text(&output.stdout).contains("xdp")
    };
    assert!(!has_program());
    let Some(switch) = Switch::start(&net, &[]) else { return };
    assert!(has_program());
    // SIGKILL: the switch has no chance to tidy up.
    drop(switch.program);
    let deadline = Instant::now() + LIMIT;
    while has_program() {
        assert!(Instant::now() < deadline, "the program is still there");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn what_cannot_be_had_is_said_and_sockets_serve() {
    let ports = ["--control-port", "0", "--data-port", "0", "--http-port", "0", "--end-with-parent"];
    let missing: &[&str] = &["--datapath", "xdp", "--interface", "no-such-device"];
    let loopback: &[&str] = &["--datapath", "xdp", "--bind", "127.0.0.1"];
    for (flags, words) in [(missing, "no network interface \"no-such-device\""), (loopback, "loopback")] {
        let refused = fanin(&[&["switch", "--no-fallback"], &ports[..], flags].concat());
        assert_eq!(refused.status.code(), Some(1));
        assert!(text(&refused.stderr).contains(words), "{}", text(&refused.stderr));
        let mut command = Command::new(FANIN);
        command.arg("switch").args(ports).args(flags).arg("--json").stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let hello: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(hello["data_path"], "sockets");
        assert!(hello["data_path_reason"].as_str().unwrap().contains(words), "{hello}");
    }
    let lossy = fanin(&[&["switch", "--datapath", "xdp", "--loss", "0.1"], &ports[..]].concat());
    assert!(text(&lossy.stderr).contains("--loss loses datagrams of the sockets only"), "{}", text(&lossy.stderr));
    let aimless = fanin(&[&["switch", "--interface", "eth0"], &ports[..]].concat());
    assert!(text(&aimless.stderr).contains("data.path"), "{}", text(&aimless.stderr));
}
