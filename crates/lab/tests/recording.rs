//! Recordings of gradients as files, good and bad.

use std::path::{Path, PathBuf};

use fanin_lab::atp::{Experiment, Options};
use fanin_lab::findings::Findings;
use fanin_lab::recording::Recording;

/// A folder that ends with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("fanin-recording-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }

    /// One rank's file: a parameter `w` at each of some steps.
    fn write(&self, rank: usize, world_size: usize, steps: &[&[f32]]) {
        let (mut header, mut data) = (String::new(), Vec::new());
        for (step, values) in steps.iter().enumerate() {
            let begin = data.len();
            values.iter().for_each(|value| data.extend_from_slice(&value.to_le_bytes()));
            let shape = values.len();
            header += &format!(
                ",\"step-{step}/rank-{rank}/w\":{{\"dtype\":\"F32\",\"shape\":[{shape}],\"data_offsets\":[{begin},{}]}}",
                data.len()
            );
        }
        let text = format!(
            "{{\"__metadata__\":{{\"content\":\"fanin gradients 1\",\"world_size\":\"{world_size}\"}}{header}}}"
        );
        self.write_raw(rank, text.as_bytes(), &data);
    }

    fn write_raw(&self, rank: usize, header: &[u8], data: &[u8]) {
        let mut content = (header.len() as u64).to_le_bytes().to_vec();
        content.extend_from_slice(header);
        content.extend_from_slice(data);
        std::fs::write(self.0.join(format!("rank-{rank}.safetensors")), content).unwrap();
    }

    fn refusal(&self) -> String {
        format!("{:#}", Recording::read(&self.0).unwrap_err())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn overflow(recording: &Path) -> Findings {
    let options = Options { is_quick: true, gradients: vec![recording.to_owned()], ..Options::default() };
    Experiment::Overflow.run(&options).unwrap()
}

/// The row whose name has these words.
fn ours<'a>(findings: &'a Findings, words: &str) -> &'a str {
    let row = findings.rows.iter().find(|row| row.quantity.contains(words));
    &row.unwrap_or_else(|| panic!("no row of {words}: {:?}", findings.rows)).ours
}

#[test]
fn the_sample_of_the_repository_is_read_and_run() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../experiments/gradients/mnist-small-4"));
    let recording = Recording::read(folder).unwrap();
    assert_eq!((recording.rank_count(), recording.label.as_str()), (4, "mnist-small-4"));
    assert!(recording.steps.len() > 3 && recording.steps[1].number == 12);
    assert!(recording.steps.iter().flat_map(|step| &step.ranks).all(|rank| rank.len() == 2386));
    assert!(recording.steps[0].ranks[0] != recording.steps[0].ranks[1], "each rank's own");
    // One file alone is not all of the run.
    let alone = Recording::read(&folder.join("rank-1.safetensors")).unwrap_err();
    assert!(format!("{alone:#}").contains("lacks rank 0 of 4"), "{alone:#}");
    let findings = overflow(folder);
    assert!(ours(&findings, "leave 32 bits").contains("0 of "), "{findings:?}");
    assert!(ours(&findings, "throughput with the step").starts_with("1.000, 0 chunks"), "{findings:?}");
}

#[test]
fn sums_that_overflow_and_false_positives_are_counted() {
    let folder = Folder::new("counts");
    // Packets of 62 elements. With two workers no value above 10.74 is safe, with eight none above 2.68.
    let mut steps = [vec![0.01f32; 62 * 4], vec![0.01f32; 62 * 4]];
    steps[0][0] = 20.0; // Both ranks: 40 is beyond 32 bits.
    steps[0][62 + 5] = 3.0; // 6 fits, and 24 with eight workers would not, but the other steps are small.
    for rank in 0..2 {
        folder.write(rank, 2, &[&steps[0], &steps[1], &steps[1], &steps[1]]);
    }
    let findings = overflow(&folder.0);
    assert!(ours(&findings, "leave 32 bits").starts_with("1 of 16 packets at 4 steps; the largest gradient is 20.000"));
    // One group of eight workers, which has four packets: the one with 3 is flagged, and 6 plus little fits; sixteen would
    // need more steps than there are.
    assert_eq!(ours(&findings, "false positives of the proactive way, 8 workers"), "250000 per million packets");
    let throughput = ours(&findings, "throughput with the step");
    // In each of three rounds.
    assert!(throughput.ends_with(" 3 chunks summed as floats, every sum right"), "{throughput}");
}

#[test]
fn steps_that_a_lost_rank_lacks_are_left_out_and_named() {
    let folder = Folder::new("lost");
    let step: &[f32] = &[1.0, 2.0];
    folder.write(0, 3, &[step; 12]);
    folder.write(1, 3, &[step; 2]);
    folder.write(2, 3, &[step; 11]);
    let recording = Recording::read(&folder.0).unwrap();
    assert_eq!(recording.steps.iter().map(|step| step.number).collect::<Vec<_>>(), [0, 1]);
    assert_eq!((recording.rank_count(), recording.parameters), (3, vec![("w".to_owned(), 2)]));
    let said = "10 of 12 steps are left out, for rank 1 did not record them: 2, 3, 4, 5, 6, 7, 8, 9, ...";
    let last = "1 of 12 steps are left out, for rank 2 did not record them: 11";
    assert_eq!(recording.notes, [said, last]);
    assert!(overflow(&folder.0).notes.iter().any(|note| note.ends_with(said)), "experiments say it as well");
}

#[test]
fn what_cannot_be_used_is_refused_with_what_to_do() {
    let folder = Folder::new("refused");
    assert!(folder.refusal().contains("no *.safetensors: record gradients"), "{}", folder.refusal());
    folder.write(0, 2, &[&[1.0, 2.0]]);
    assert!(folder.refusal().contains("step 0 lacks rank 1 of 2: put the files of all ranks"), "{}", folder.refusal());
    folder.write(1, 2, &[&[1.0]]);
    assert!(folder.refusal().contains("rank 1 has other parameters at step 0"), "{}", folder.refusal());
    folder.write(0, 2, &[&[1.0, 2.0], &[1.0]]);
    folder.write(1, 2, &[&[1.0, 2.0], &[1.0]]);
    assert!(folder.refusal().contains("rank 0 has other parameters at step 1"), "{}", folder.refusal());
    folder.write(0, 1, &[&[1.0]]);
    folder.write(1, 1, &[&[1.0]]);
    assert!(folder.refusal().contains("step 0 has rank 1, the run 1 ranks"), "{}", folder.refusal());
    let bad: [(&[u8], &str); 5] = [
        (b"{}", "not \"fanin gradients 1\""),
        (b"{", "no JSON object"),
        (b"{\"__metadata__\":{\"content\":\"fanin gradients 1\"}}", "does not say world_size"),
        (
            b"{\"__metadata__\":{\"content\":\"fanin gradients 1\"},\"w\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}",
            "tensor w is not named step-S/rank-R/PARAMETER",
        ),
        (
            b"{\"__metadata__\":{\"content\":\"fanin gradients 1\"},\"step-0/rank-1/w\":{\"dtype\":\"F32\",\"data_offsets\":[0,400]}}",
            "outside of the file",
        ),
    ];
    for (header, why) in bad {
        folder.write_raw(1, header, &[0; 8]);
        assert!(folder.refusal().contains(why), "{why}: {}", folder.refusal());
        assert!(folder.refusal().contains("rank-1.safetensors cannot be used"), "{}", folder.refusal());
    }
    std::fs::write(folder.0.join("rank-1.safetensors"), [0xff; 20]).unwrap();
    assert!(folder.refusal().contains("ends inside its header"), "{}", folder.refusal());
}
