//! Plays PANAMA's conformance vectors to the switch program and the worker, and shows that wrong ones fail.

use fanin_harness::vectors::panama::{
    Answer, Move, Outcome, ProgramTarget, ProgramWorker, SwitchSpec, SwitchTarget, Vector, WorkerSpec, WorkerTarget,
    WorkerVector, replay, replay_worker,
};
use fanin_harness::vectors::suite::{self, Tally};
use fanin_protocol::panama::TreeConfig;
use fanin_wire::panama::Header;

#[test]
fn every_vector_passes_on_the_accelerator() {
    suite::replay_all_panama_switch(ProgramTarget::default).assert_all_passed();
}

#[test]
#[cfg(not(feature = "canary"))]
fn every_vector_passes_on_the_worker() {
    suite::replay_all_panama_worker(ProgramWorker::default).assert_all_passed();
}

const SUM: &str = r#"
title = "a sum, and the one behind it"
source = "this test"
[switch]
pause_packets = 1
[[step]]
send = { port = 0, vid = 0, vid_last = 1, elements = [0x3f800000] }
expect = { verdict = "absorb" }
[[step]]
send = { port = 1, vid = 1, elements = [0x3f800000] }
expect = { verdict = "absorb" }
paused = [0]
[[step]]
name = "both"
send = { port = 1, elements = [0x3f800000] }
expect = { verdict = "down", elements = [0x40000000] }
then = [{ verdict = "down", vid = 1, elements = [0x40000000] }]
"#;

fn switch_mismatch(right: &str, wrong: &str) -> String {
    let text = SUM.replace(right, wrong);
    assert_ne!(text, SUM, "the replacement must change the vector");
    replay("inline.toml", &Vector::parse(&text).unwrap(), &mut ProgramTarget::default()).unwrap_err().to_string()
}

#[test]
fn a_wrong_vector_for_an_accelerator_fails_and_says_where() {
    assert_eq!(replay("inline.toml", &Vector::parse(SUM).unwrap(), &mut ProgramTarget::default()), Ok(4));
    let first = |right: &str, wrong: &str| switch_mismatch(right, wrong);
    assert_eq!(
        first("verdict = \"down\", elements = [0x40000000]", "verdict = \"down\", elements = [0x40000001]"),
        "inline.toml, step 3 (both), port 1, VID 0: elements of what leaves: expected [40000001], got [40000000]"
    );
    assert!(first("then = [", "# then = [").contains("verdict: expected down, got down, down"));
    assert!(first("paused = [0]", "paused = []").ends_with("paused: expected [], got [0]"));
    for (field, more) in [
        ("to", "to = [1]"),
        ("vid of", "vid = 1"),
        ("awaited_vid", "awaited_vid = 1"),
        ("flags", "flags = [\"ecn\"]"),
        ("cwnd_cap", "cwnd_cap = 9"),
        ("worker_count", "worker_count = 3"),
    ] {
        let found = first("verdict = \"down\", elements", &format!("verdict = \"down\", {more}, elements"));
        assert!(found.contains(&format!(": {field}")), "{field}: {found}");
    }
}

/// What another implementation might get wrong, as a change of what it hears or says.
#[derive(Clone, Copy)]
enum Bug {
    /// Marks of IP headers are not seen.
    BlindToMarks,
    /// Only what a packet itself causes leaves; sums behind it do not.
    StopsAfterOne,
    /// Nobody is ever answered alone.
    NeverRepeats,
    /// The room on the way is not told.
    NoCap,
    /// What a port has is not noted: sums are kept for ever.
    KeepsAll,
    /// A quorum is not known.
    WaitsForAll,
    /// None.
    Nothing,
}

struct Buggy(ProgramTarget, Bug);

fn changed(datagram: &[u8], change: impl Fn(&mut Header)) -> Vec<u8> {
    let Ok((mut header, _)) = Header::parse(datagram) else { return datagram.to_vec() };
    change(&mut header);
    let mut datagram = datagram.to_vec();
    header.seal(&mut datagram);
    datagram
}

impl SwitchTarget for Buggy {
    fn set_up(&mut self, switch: &SwitchSpec) -> Result<(), String> {
        self.0.set_up(switch)
    }

    fn install(&mut self, tree: &TreeConfig) -> Result<(), String> {
        let quorum = if matches!(self.1, Bug::WaitsForAll) { tree.ports.count_ones() as u8 } else { tree.quorum };
        self.0.install(&TreeConfig { quorum, ..*tree })
    }

    fn remove(&mut self, job_id: u32) -> Result<(), String> {
        self.0.remove(job_id)
    }

    fn exchange(&mut self, port: u8, is_marked: bool, packet: &[u8]) -> Result<Vec<Outcome>, String> {
        let is_marked = is_marked && !matches!(self.1, Bug::BlindToMarks);
        let packet = changed(packet, |header| match self.1 {
            Bug::KeepsAll => header.awaited_vid = 0,
            Bug::NeverRepeats => header.flags.resend = false,
            _ => {}
        });
        let mut outcomes = self.0.exchange(port, is_marked, &packet)?;
        match self.1 {
            Bug::StopsAfterOne => outcomes.truncate(1),
            Bug::NoCap => outcomes.iter_mut().for_each(|outcome| {
                outcome.datagram = changed(&outcome.datagram, |header| header.cwnd_cap = u16::MAX);
            }),
            _ => {}
        }
        Ok(outcomes)
    }

    fn paused_ports(&self) -> Option<u64> {
        self.0.paused_ports()
    }
}

fn failing(tally: &Tally) -> Vec<&str> {
    tally.failures.iter().filter_map(|failure| failure.split_once(".toml").map(|(file, _)| file)).collect()
}

#[test]
#[cfg(not(feature = "canary"))]
fn accelerators_with_a_bug_fail_the_vectors_that_are_about_it() {
    for (bug, files) in [
        (Bug::BlindToMarks, &["ecn_is_ored", "two_levels"][..]),
        (Bug::StopsAfterOne, &["buffer_full", "in_order", "loss_on_the_way_up"]),
        (Bug::NeverRepeats, &["quorum", "result_kept_until_awaited", "sum_sent_up_again", "two_levels"]),
        (Bug::NoCap, &["buffer_full", "cwnd_cap", "two_levels"]),
        (Bug::KeepsAll, &["buffer_full", "cwnd_cap", "fin", "quorum", "result_kept_until_awaited", "window"]),
        (Bug::WaitsForAll, &["quorum"]),
        (Bug::Nothing, &[]),
    ] {
        let tally = suite::replay_all_panama_switch(|| Buggy(ProgramTarget::default(), bug));
        assert_eq!(failing(&tally), files, "{:?}", tally.failures);
    }
}

/// A worker that does not see marks of headers (0), of IP headers (4) or any (5), or the room on the way (1), whose timer never runs out (2), or that has
/// a fixed window (3).
struct BuggyWorker(ProgramWorker, usize);

impl WorkerTarget for BuggyWorker {
    fn set_up(&mut self, worker: &WorkerSpec) -> Result<(), String> {
        let window = if self.1 == 3 { Some(2) } else { worker.window };
        self.0.set_up(&WorkerSpec { window, ..worker.clone() })
    }

    fn make(&mut self, now_ns: u64, what: Move) -> Result<Answer, String> {
        match what {
            Move::Packet(datagram, is_marked) => {
                let datagram = changed(datagram, |header| match self.1 {
                    0 | 5 => header.flags.ecn = false,
                    1 => header.cwnd_cap = u16::MAX,
                    _ => {}
                });
                self.0.make(now_ns, Move::Packet(&datagram, is_marked && !matches!(self.1, 4 | 5)))
            }
            Move::Wait if self.1 == 2 => self.0.make(0, Move::Wait),
            other => self.0.make(now_ns, other),
        }
    }
}

#[test]
fn workers_with_a_bug_fail_the_vectors_that_are_about_it() {
    for (bug, files) in [
        (0, &["one_mark"][..]),
        (1, &["cwnd_cap"]),
        (2, &["timer"]),
        (3, &["ip_mark", "marks_cut", "one_mark", "overtaken", "slow_start", "timer", "turns", "window_max"]),
        (4, &["ip_mark"]),
        (5, &["ip_mark", "marks_cut", "one_mark"]),
        (6, &[]),
    ] {
        let tally = suite::replay_all_panama_worker(|| BuggyWorker(ProgramWorker::default(), bug));
        assert_eq!(failing(&tally), files, "bug {bug}: {:?}", tally.failures);
    }
}

const ROUND: &str = r#"
title = "a round"
source = "this test"
[[step]]
wait_ns = 0
sends = [{ vid = 0, vid_last = 1 }]
[[step]]
name = "half"
result = { vid = 1 }
sends = [{ vid = 0, resend = true }]
"#;

#[test]
fn a_wrong_vector_for_a_worker_fails_and_says_where() {
    let play =
        |text: &str| replay_worker("inline.toml", &WorkerVector::parse(text).unwrap(), &mut ProgramWorker::default());
    assert_eq!(play(ROUND), Ok(4));
    let mismatch = |right: &str, wrong: &str| play(&ROUND.replace(right, wrong)).unwrap_err().to_string();
    assert_eq!(
        mismatch("vid_last = 1", "vid_last = 2"),
        "inline.toml, step 1: sends (tree:VID): expected 0:0 0:1 0:2, got 0:0 0:1"
    );
    assert!(mismatch("resend = true", "resend = false").contains("step 2 (half): header of VID 0"));
    assert!(mismatch("resend = true }]", "resend = true }]\nevents = [\"completed\"]").contains("events"));
}

#[test]
fn a_file_that_is_no_vector_is_not_taken() {
    let refused = |right: &str, wrong: &str| Vector::parse(&SUM.replace(right, wrong)).unwrap_err();
    assert!(refused("elements = [0x3f800000]", "element = [1]").contains("element"));
    assert!(refused("\"absorb\"", "\"drop\"").contains("`reason` goes with"));
    assert!(refused("expect = { verdict = \"absorb\" }", "").contains("`send` and `expect`"));
    assert!(refused("\"absorb\"", "\"wait\"").contains("wait"));
    let both = ROUND.replace("wait_ns = 0", "wait_ns = 0\nfinish = true");
    assert!(WorkerVector::parse(&both).unwrap_err().contains("give one of"));
}
