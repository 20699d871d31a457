//! The tests that every target passes: all vectors of `spec/vectors`, and vectors that are wrong on purpose.

use std::path::Path;

use super::{Target, Vector, load_folder, replay};

/// Fewer would mean that the folder was not found.
const VECTOR_COUNT_MIN: usize = 40;
/// What the deliberate bug of the `canary` feature breaks first.
const CANARY_MISMATCH: &str = "appendix_a_trace.toml, step 4 (t5";

/// What came of playing all vectors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
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
        let Tally { vectors, packets, failures } = self;
        println!("{} of {vectors} vectors, {packets} packets", vectors - failures.len());
        if cfg!(feature = "canary") {
            let found = failures.iter().any(|failure| failure.starts_with(CANARY_MISMATCH));
            return assert!(found, "the deliberate bug went unseen: {failures:?}");
        }
        assert!(failures.is_empty(), "{}", failures.join("\n"));
        assert!(*vectors >= VECTOR_COUNT_MIN, "only {vectors} vectors found");
    }
}

/// Plays the vectors of `spec/vectors` that `is_wanted` takes by file name, each to a target of its own.
///
/// # Panics
/// A vector cannot be read.
pub fn replay_all<T: Target>(is_wanted: impl Fn(&str) -> bool, mut target: impl FnMut() -> T) -> Tally {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../spec/vectors"));
    let vectors = load_folder(folder).unwrap_or_else(|error| panic!("{error}"));
    let mut tally = Tally::default();
    for (file, vector) in vectors.iter().filter(|(file, _)| is_wanted(file)) {
        tally.vectors += 1;
        match replay(file, vector, &mut target()) {
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
