//! The tests that every target passes: all vectors of `spec/vectors`, and vectors that are wrong on purpose.

use std::path::Path;

use super::{Mismatch, Target, Vector, atp, load_folder, panama, replay};

/// What is known of a folder of vectors.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Folder {
    /// Fewer vectors would mean that the folder was not found.
    vector_count_min: usize,
    /// What the deliberate bugs of the `canary` feature break.
    canary_mismatches: &'static [&'static str],
}

const SWITCHML: Folder = Folder { vector_count_min: 40, canary_mismatches: &["appendix_a_trace.toml, step 4 (t5"] };
const ATP: Folder = Folder { vector_count_min: 41, canary_mismatches: &["duplicate_dropped.toml, step 2,"] };

const PANAMA_SWITCH: Folder =
    Folder { vector_count_min: 19, canary_mismatches: &["result_kept_until_awaited.toml, step"] };
const PANAMA_WORKER: Folder = Folder { vector_count_min: 11, canary_mismatches: &[] };

/// What came of playing all vectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally {
    folder: Folder,
    /// Vectors played.
    pub vectors: usize,
    /// Packets sent by those that passed.
    pub packets: usize,
    /// The first difference of each that failed, in words.
    pub failures: Vec<String>,
}

impl Tally {
    /// Prints the counts and compares them with what is expected of a switch that does what the vectors say; with the
    /// `canary` feature, of one that has the deliberate bug.
    ///
    /// # Panics
    /// A vector failed, or too few were found; with the `canary` feature, the deliberate bug went unseen.
    pub fn assert_all_passed(&self) {
        let Tally { folder, vectors, packets, failures } = self;
        println!("{} of {vectors} vectors, {packets} packets", vectors - failures.len());
        if cfg!(feature = "canary") {
            for bug in folder.canary_mismatches {
                let found = failures.iter().any(|failure| failure.starts_with(bug));
                assert!(found, "a deliberate bug went unseen, {bug}: {failures:?}");
            }
            return;
        }
        assert!(failures.is_empty(), "{}", failures.join("\n"));
        assert!(*vectors >= folder.vector_count_min, "only {vectors} vectors found");
    }
}

/// Plays the vectors of `spec/vectors` that `is_wanted` takes by file name, each to a target of its own.
///
/// # Panics
/// A vector cannot be read.
pub fn replay_all<T: Target>(is_wanted: impl Fn(&str) -> bool, mut target: impl FnMut() -> T) -> Tally {
    let vectors = load_folder(&folder("")).unwrap_or_else(|error| panic!("{error}"));
    let wanted = vectors.iter().filter(|(file, _)| is_wanted(file));
    tally(SWITCHML, wanted.map(|(file, vector)| replay(file, vector, &mut target())))
}

/// Plays the vectors of `spec/vectors/atp`, each to a target of its own, without those of the files `left_out`, which the
/// target cannot show.
///
/// # Panics
/// A vector cannot be read, or there is no file of a name in `left_out`.
pub fn replay_all_atp<T: atp::AtpTarget>(left_out: &[&str], mut target: impl FnMut() -> T) -> Tally {
    let vectors = atp::load_folder(&folder("atp")).unwrap_or_else(|error| panic!("{error}"));
    let missing = left_out.iter().find(|name| !vectors.iter().any(|(file, _)| file == *name));
    assert_eq!(missing, None, "a vector that is left out is not there");
    let wanted = vectors.iter().filter(|(file, _)| !left_out.contains(&file.as_str()));
    let folder = Folder { vector_count_min: ATP.vector_count_min - left_out.len(), ..ATP };
    tally(folder, wanted.map(|(file, vector)| atp::replay(file, vector, &mut target())))
}

/// Plays the vectors of `spec/vectors/panama/switch`, each to a target of its own.
///
/// # Panics
/// A vector cannot be read.
pub fn replay_all_panama_switch<T: panama::SwitchTarget>(mut target: impl FnMut() -> T) -> Tally {
    let vectors = panama::load_switch_folder(&folder("panama/switch")).unwrap_or_else(|error| panic!("{error}"));
    tally(PANAMA_SWITCH, vectors.iter().map(|(file, vector)| panama::replay(file, vector, &mut target())))
}

/// Plays the vectors of `spec/vectors/panama/worker`, each to a target of its own.
///
/// # Panics
/// A vector cannot be read.
pub fn replay_all_panama_worker<T: panama::WorkerTarget>(mut target: impl FnMut() -> T) -> Tally {
    let vectors = panama::load_worker_folder(&folder("panama/worker")).unwrap_or_else(|error| panic!("{error}"));
    tally(PANAMA_WORKER, vectors.iter().map(|(file, vector)| panama::replay_worker(file, vector, &mut target())))
}

fn folder(name: &str) -> std::path::PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../spec/vectors")).join(name)
}

fn tally(folder: Folder, outcomes: impl Iterator<Item = Result<usize, Mismatch>>) -> Tally {
    let mut tally = Tally { folder, vectors: 0, packets: 0, failures: Vec::new() };
    for outcome in outcomes {
        tally.vectors += 1;
        match outcome {
            Ok(sent) => tally.packets += sent,
            Err(mismatch) => tally.failures.push(mismatch.to_string()),
        }
    }
    tally
}

/// Plays a sum of one worker, with its right answer and with two wrong ones.
///
/// # Panics
/// The right one fails, or a wrong one passes or is not told from the right one in the expected words.
pub fn assert_wrong_vectors_fail<T: Target>(mut target: impl FnMut() -> T) {
    let mut play = |expect: &str| {
        let text = format!(
            "title = \"a sum\"\nsource = \"this test\"\n[job]\nworker_count = 1\n[[step]]\n\
             send = {{ rank = 0, elements = [1] }}\nexpect = {{ {expect} }}\n"
        );
        let vector = Vector::parse(&text).expect("the text is a vector");
        replay("inline.toml", &vector, &mut target()).map_err(|error| error.to_string())
    };
    assert_eq!(play("verdict = \"multicast\", elements = [1]"), Ok(1));
    let wrong_sum = play("verdict = \"multicast\", elements = [2]").expect_err("the sum is wrong");
    assert!(wrong_sum.ends_with("elements of the answer to rank 0: expected [2], got [1]"), "{wrong_sum}");
    let silence = play("verdict = \"drop\", reason = \"stale_chunk\"").expect_err("the verdict is wrong");
    assert!(silence.ends_with("verdict: expected drop, got multicast"), "{silence}");
}
