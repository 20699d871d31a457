//! The files of `spec/vectors/panama/worker`: what a worker sends after which Results. `spec/vectors/README.md` explains them.

use std::collections::{BTreeMap, BTreeSet};

use fanin_protocol::panama::{CongestionControl, Event, Tensors, Worker, WorkerConfig};
use fanin_protocol::stream::{BlockId, Participants, Shape, Submission};
use fanin_protocol::time::{Span, Time};
use fanin_wire::generated::{PANAMA_HEADER_BYTES, RANK_ALL};
use fanin_wire::panama::{ElementFormat, Flags, Header, Kind};
use fanin_wire::{ElementFormat as FaninFormat, Operator};
use serde::Deserialize;

use super::format::flags;
use crate::vectors::Mismatch;
use crate::vectors::check::{Difference, difference, same};
use crate::vectors::format::tag;

const JOB_ID: u32 = 0x0105;
const JOB_TOKEN: u32 = 0x5eed_0001;
/// Larger than any datagram of a vector.
const OUTPUT_BYTES: usize = 256;

/// One file: a worker from the begin of its stream.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerVector {
    /// The behaviour, in one sentence.
    pub title: String,
    /// Where it is asked for.
    pub source: String,
    /// How the worker is set up.
    #[serde(default)]
    pub worker: WorkerSpec,
    /// What happens, in order.
    #[serde(rename = "step")]
    pub steps: Vec<Step>,
}

/// How a worker is set up. Its stream is one collective of chunks with one float each, the chunk's number.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorkerSpec {
    /// This worker.
    pub rank: u16,
    /// Trees of the job.
    pub tree_count: u8,
    /// Most packets out in a tree, a power of two.
    pub window_max: u32,
    /// Chunks of the collective.
    pub chunk_count: u32,
    /// Without congestion control: so many packets out in each tree.
    pub window: Option<u32>,
    /// Least resend timeout, and the one before a round trip was measured.
    pub timeout_ns_min: u64,
    /// Most, after doublings.
    pub timeout_ns_max: u64,
}

impl Default for WorkerSpec {
    fn default() -> Self {
        WorkerSpec {
            rank: 1,
            tree_count: 1,
            window_max: 256,
            chunk_count: 1000,
            window: None,
            timeout_ns_min: 1_000_000,
            timeout_ns_max: 4_000_000,
        }
    }
}

/// One step: something happens, and the worker sends what it may until there is no more.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Name in messages.
    pub name: Option<String>,
    /// One Result or several come, each 10 µs after what was before.
    pub result: Option<Arrives>,
    /// So much time passes.
    pub wait_ns: Option<u64>,
    /// The worker is told that nothing follows.
    #[serde(default)]
    pub finish: bool,
    /// All that is sent in the step, in order.
    #[serde(default)]
    pub sends: Vec<Sends>,
    /// What the worker tells of: `completed`, `finished`.
    #[serde(default)]
    pub events: Vec<String>,
}

/// Results that come.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arrives {
    /// Of this tree.
    #[serde(default)]
    tree: u8,
    /// The first VID.
    vid: u32,
    /// The last one.
    vid_last: Option<u32>,
    /// Those that are set.
    #[serde(default, deserialize_with = "flags")]
    flags: Flags,
    /// Their IP headers say that congestion was experienced.
    #[serde(default)]
    is_marked: bool,
    /// Room on the way.
    #[serde(default = "no_cap")]
    cwnd_cap: u16,
    /// In place of the job's.
    job_token: Option<u32>,
}

/// Contributions that are sent.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sends {
    /// To this tree.
    #[serde(default)]
    tree: u8,
    /// The first VID.
    vid: u32,
    /// The last one.
    vid_last: Option<u32>,
    /// Sent again.
    #[serde(default)]
    resend: bool,
    /// The tree's end, without elements.
    #[serde(default)]
    fin: bool,
}

fn no_cap() -> u16 {
    u16::MAX
}

impl WorkerVector {
    /// Reads a file's text.
    ///
    /// # Errors
    /// The text is not a vector; the message has the line.
    pub fn parse(text: &str) -> Result<WorkerVector, String> {
        let vector: WorkerVector = toml::from_str(text).map_err(|error| error.to_string())?;
        for (index, step) in vector.steps.iter().enumerate() {
            let given = [step.result.is_some(), step.wait_ns.is_some(), step.finish];
            if given.iter().filter(|&&is_given| is_given).count() > 1 {
                return Err(format!("step {}: give one of `result`, `wait_ns` and `finish`", index + 1));
            }
        }
        if vector.steps.is_empty() { Err("no steps".into()) } else { Ok(vector) }
    }
}

/// What happens to a worker.
#[derive(Clone, Copy, Debug)]
pub enum Move<'a> {
    /// A datagram comes, with the mark of its IP header.
    Packet(&'a [u8], bool),
    /// Only time has passed: timers may be due.
    Wait,
    /// Nothing will be submitted any more.
    Finish,
}

/// What comes of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Datagrams that the worker sends, until it has none.
    pub sent: Vec<Vec<u8>>,
    /// `completed`, `finished` or `refused`.
    pub events: Vec<String>,
}

/// Workers that vectors are played to. Errors are the target's own, in words.
pub trait WorkerTarget {
    /// Sets the worker up with its collective, before anything else.
    ///
    /// # Errors
    /// The target cannot be such a worker.
    fn set_up(&mut self, worker: &WorkerSpec) -> Result<(), String>;

    /// Lets something happen at a time.
    ///
    /// # Errors
    /// The target could not take it.
    fn make(&mut self, now_ns: u64, what: Move) -> Result<Answer, String>;
}

/// Plays a vector to a target that has nothing yet. Returns the number of packets that came and went.
///
/// # Errors
/// The first difference.
pub fn replay_worker(file: &str, vector: &WorkerVector, target: &mut dyn WorkerTarget) -> Result<usize, Mismatch> {
    let mismatch =
        |step, (field, expected, got): Difference| Mismatch { file: file.into(), step, field, expected, got };
    let spec = &vector.worker;
    let set_up = target.set_up(spec).map_err(|got| difference("worker", "a worker", got));
    set_up.map_err(|difference| mismatch("0 (worker)".into(), difference))?;
    let mut player =
        Player { spec, target, now_ns: 0, results: BTreeSet::new(), attempts: BTreeMap::new(), packets: 0 };
    for (index, step) in vector.steps.iter().enumerate() {
        let name = step.name.as_ref().map_or(String::new(), |name| format!(" ({name})"));
        player.step(step).map_err(|difference| mismatch(format!("{}{name}", index + 1), difference))?;
    }
    Ok(player.packets)
}

struct Player<'a> {
    spec: &'a WorkerSpec,
    target: &'a mut dyn WorkerTarget,
    now_ns: u64,
    /// Trees and VIDs of Results that came.
    results: BTreeSet<(u8, u32)>,
    /// By tree and VID: how often it was sent.
    attempts: BTreeMap<(u8, u32), u8>,
    packets: usize,
}

impl Player<'_> {
    fn step(&mut self, step: &Step) -> Result<(), Difference> {
        let (mut sent, mut events) = (Vec::new(), Vec::new());
        let mut note = |answer: Answer, awaited: Vec<u32>| {
            sent.extend(answer.sent.into_iter().map(|datagram| (datagram, awaited.clone())));
            events.extend(answer.events);
        };
        if let Some(result) = &step.result {
            for vid in result.vid..=result.vid_last.unwrap_or(result.vid) {
                self.now_ns += 10_000;
                let datagram = self.result(result, vid);
                if result.job_token.is_none() {
                    self.results.insert((result.tree, vid));
                }
                note(self.make(Move::Packet(&datagram, result.is_marked))?, self.awaited());
                self.packets += 1;
            }
        } else {
            self.now_ns += step.wait_ns.unwrap_or(0);
            note(self.make(if step.finish { Move::Finish } else { Move::Wait })?, self.awaited());
        }
        self.packets += sent.len();
        let places = |sends: &Sends| {
            (sends.vid..=sends.vid_last.unwrap_or(sends.vid)).map(|vid| (sends.clone(), vid)).collect::<Vec<_>>()
        };
        let expected: Vec<(Sends, u32)> = step.sends.iter().flat_map(places).collect();
        let got = sent.iter().map(|(datagram, _)| place_of(datagram)).collect::<Result<Vec<_>, _>>()?;
        let wanted: Vec<String> = expected.iter().map(|(sends, vid)| format!("{}:{vid}", sends.tree)).collect();
        same("sends (tree:VID)", wanted.join(" "), got.join(" "))?;
        for ((sends, vid), (datagram, awaited)) in expected.iter().zip(&sent) {
            self.compare(sends, *vid, datagram, awaited[usize::from(sends.tree)])?;
        }
        same("events", step.events.join(", "), events.join(", "))
    }

    fn make(&mut self, what: Move) -> Result<Answer, Difference> {
        self.target.make(self.now_ns, what).map_err(|got| difference("target", "an answer", got))
    }

    /// By tree, the first VID without a Result.
    fn awaited(&self) -> Vec<u32> {
        let first = |tree| (0..).find(|&vid| !self.results.contains(&(tree, vid))).unwrap_or(0);
        (0..self.spec.tree_count).map(first).collect()
    }

    fn result(&self, result: &Arrives, vid: u32) -> Vec<u8> {
        let fin = result.flags.fin;
        let header = Header {
            kind: Kind::Result,
            job_token: result.job_token.unwrap_or(JOB_TOKEN),
            flags: result.flags,
            cwnd_cap: result.cwnd_cap,
            worker_rank: RANK_ALL,
            worker_count: 2,
            ..self.header(result.tree, vid, fin)
        };
        self.seal(&header, vid)
    }

    fn header(&self, tree: u8, vid: u32, fin: bool) -> Header {
        Header {
            kind: Kind::Contribution,
            job_id: JOB_ID,
            job_token: JOB_TOKEN,
            vid,
            awaited_vid: 0,
            collective_tag: if fin { 0 } else { tag() },
            tree,
            flags: Flags { fin, ..Flags::default() },
            cwnd_cap: u16::MAX,
            worker_count: 1,
            worker_rank: self.spec.rank,
            element_count: u16::from(!fin),
            element_format: ElementFormat::Float32,
            detail: 0,
        }
    }

    fn seal(&self, header: &Header, vid: u32) -> Vec<u8> {
        let mut datagram = vec![0; header.datagram_bytes()];
        if header.element_count > 0 {
            let chunk = vid * u32::from(self.spec.tree_count) + u32::from(header.tree);
            datagram[PANAMA_HEADER_BYTES..].copy_from_slice(&(chunk as f32).to_be_bytes());
        }
        header.seal(&mut datagram);
        datagram
    }

    fn compare(&mut self, sends: &Sends, vid: u32, datagram: &[u8], awaited_vid: u32) -> Result<(), Difference> {
        let attempt = self.attempts.entry((sends.tree, vid)).or_default();
        let detail = *attempt;
        *attempt += 1;
        let wanted = Header {
            awaited_vid,
            flags: Flags { fin: sends.fin, ecn: false, resend: sends.resend },
            detail,
            ..self.header(sends.tree, vid, sends.fin)
        };
        let got = Header::parse(datagram).map_err(|error| difference("datagram", "one", format!("{error:?}")))?.0;
        same(&format!("header of VID {vid}"), format!("{wanted:?}"), format!("{got:?}"))?;
        same("bytes", format!("{:?}", self.seal(&wanted, vid)), format!("{datagram:?}"))
    }
}

fn place_of(datagram: &[u8]) -> Result<String, Difference> {
    let (header, _) = Header::parse(datagram).map_err(|error| difference("datagram", "one", format!("{error:?}")))?;
    Ok(format!("{}:{}", header.tree, header.vid))
}

/// The worker value as a target.
#[derive(Default)]
pub struct ProgramWorker {
    worker: Option<Worker>,
    numbers: Numbers,
}

/// A chunk's element is its number; sums are compared with it, as they come.
#[derive(Default)]
struct Numbers {
    wrong: Option<String>,
}

impl Tensors for Numbers {
    fn write_block(&mut self, id: BlockId, _: ElementFormat, payload: &mut [u8]) {
        payload.copy_from_slice(&(id.block as f32).to_be_bytes());
    }

    fn read_block(&mut self, id: BlockId, _: ElementFormat, _: u16, payload: &[u8]) {
        if payload != (id.block as f32).to_be_bytes() {
            self.wrong = Some(format!("chunk {} has the sum {payload:?}", id.block));
        }
    }
}

impl WorkerTarget for ProgramWorker {
    fn set_up(&mut self, spec: &WorkerSpec) -> Result<(), String> {
        let fixed = spec.window.map(|window| CongestionControl::Fixed { window });
        let mut worker = Worker::new(WorkerConfig {
            job_id: JOB_ID,
            job_token: JOB_TOKEN,
            rank: spec.rank,
            tree_count: spec.tree_count,
            window_max: spec.window_max,
            congestion_control: fixed.unwrap_or(CongestionControl::FIG_5),
            resend_timeout_initial: Span::from_ns(spec.timeout_ns_min),
            resend_timeout_min: Span::from_ns(spec.timeout_ns_min),
            resend_timeout_max: Span::from_ns(spec.timeout_ns_max),
        });
        let submitted = worker.submit(Submission {
            id: 0,
            collective_tag: tag(),
            shape: Shape { shard_count: 1, shard_elements: spec.chunk_count.into(), block_elements: 1 },
            block_first: 0,
            block_count: spec.chunk_count,
            contributors: Participants::Everyone,
            receivers: Participants::Everyone,
            operator: Operator::Add,
            element_format: FaninFormat::Int32,
            scaled: true,
        });
        self.worker = Some(worker);
        submitted.map_err(|reason| reason.name().into())
    }

    fn make(&mut self, now_ns: u64, what: Move) -> Result<Answer, String> {
        let worker = self.worker.as_mut().ok_or("not set up")?;
        let now = Time::from_ns(now_ns);
        match what {
            Move::Packet(datagram, is_marked) => worker.handle_packet(now, datagram, is_marked, &mut self.numbers),
            Move::Wait => worker.handle_timeout(now),
            Move::Finish => worker.finish(),
        }
        let mut answer = Answer::default();
        let mut output = [0; OUTPUT_BYTES];
        while let Some(transmit) = worker.poll_transmit(now, &mut self.numbers, &mut output) {
            answer.sent.push(output[..transmit.bytes].to_vec());
        }
        while let Some(event) = worker.poll_event() {
            answer.events.push(match event {
                Event::Completed { .. } => "completed".into(),
                Event::Finished => "finished".into(),
                Event::Refused { reason, .. } => format!("refused: {}", reason.name()),
            });
        }
        self.numbers.wrong.take().map_or(Ok(answer), Err)
    }
}
