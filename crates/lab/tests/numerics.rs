//! Accumulators side by side on made gradients, where the right answer is known.

use fanin_lab::findings::Findings;
use fanin_lab::numerics::{Accumulator, Comparison, Distribution, Entry, ExactSum, Question, compare, round_to};
use fanin_lab::recording::{Recording, Step};
use fanin_numeric::Telemetry;
use fanin_numeric::register_pair::FloatFormat;

/// A recording of one step and one parameter: `ranks` by worker.
fn recording(ranks: Vec<Vec<f32>>) -> Recording {
    let parameters = vec![("w".to_owned(), ranks[0].len())];
    Recording { label: "made".into(), parameters, steps: vec![Step { number: 0, ranks }], notes: Vec::new() }
}

fn question(accumulators: &[Accumulator], format: FloatFormat) -> Question {
    Question { accumulators: accumulators.to_vec(), format, workers: None }
}

/// Gradients of several binades, of both signs, from a counter.
fn gradients(workers: u64, elements: u64) -> Vec<Vec<f32>> {
    let bits =
        |seed: u64| (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = |seed: u64| {
        let bits = bits(seed);
        let magnitude = (1.0 + (bits >> 40) as f32 / 16_777_216.0) * 2f32.powi((bits % 9) as i32 - 12);
        if bits & 0x8000_0000 == 0 { magnitude } else { -magnitude }
    };
    (0..workers).map(|worker| (0..elements).map(|element| value(worker * elements + element)).collect()).collect()
}

fn entry(comparison: &Comparison, accumulator: Accumulator) -> &Entry {
    comparison.entries.iter().find(|entry| entry.accumulator == accumulator.name()).unwrap()
}

#[test]
fn every_accumulator_keeps_its_promise_and_its_place() {
    let made = recording(gradients(8, 1000));
    for format in [FloatFormat::Float32, FloatFormat::Float16, FloatFormat::Bfloat16] {
        let found = compare(&made, &question(&Accumulator::ALL, format)).unwrap();
        for one in &found.entries {
            assert_eq!((one.elements, one.saturation), (1000, 0), "{} {format:?}", one.accumulator);
            assert!(one.of_bound.is_none_or(|share| share <= 1.0), "{one:?}");
            let is_fixed =
                [Accumulator::BlockFixed, Accumulator::StaticFixed].map(Accumulator::name).contains(&one.accumulator);
            assert!(!is_fixed || one.of_bound.is_some_and(|share| share > 0.1), "{one:?}");
            assert!(one.median <= one.p99 && one.p99 <= one.largest, "{one:?}");
        }
        let largest = |accumulator| entry(&found, accumulator).largest;
        let exact = entry(&found, Accumulator::Exact);
        assert_eq!((exact.order_percent, exact.overflow, exact.lost_bits), (0.0, 0, 0));
        for other in Accumulator::ALL {
            assert!(largest(Accumulator::Exact) <= largest(other), "{other} beats the exact sum in {format:?}");
        }
        assert!(
            largest(Accumulator::ByteWire) > 10.0 * largest(Accumulator::HalfWire) || format == FloatFormat::Bfloat16
        );
        assert!(entry(&found, Accumulator::BlockFixed).order_percent == 0.0);
        assert!(entry(&found, Accumulator::FpisaA).left_shift > 0);
    }
    let found = compare(&made, &question(&Accumulator::ALL, FloatFormat::Float32)).unwrap();
    let largest = |accumulator| entry(&found, accumulator).largest;
    assert!(largest(Accumulator::FpisaGuarded) < largest(Accumulator::Fpisa), "guard bits help");
    assert!(largest(Accumulator::LogTables1000) < largest(Accumulator::LogTables256), "finer tables help");
    assert!(entry(&found, Accumulator::Fpisa).bias < 0.0, "FPISA's floor drifts downward");
    assert!(entry(&found, Accumulator::Ieee).order_percent > 1.0, "the order of native additions matters");
}

/// By hand: 1.999 shifted left by 7 fills the register but for 2^20, which is less than what is there.
#[test]
fn the_papers_headroom_overflows_and_the_safe_one_does_not() {
    let small = 2f32.powi(-7) * 1.999;
    let mut ranks = vec![vec![small]];
    ranks.extend(vec![vec![1.999]; 3]);
    let found = compare(&recording(ranks), &question(&Accumulator::ALL, FloatFormat::Float32)).unwrap();
    let paper = entry(&found, Accumulator::FpisaA);
    assert_eq!((paper.overflow, paper.not_finite, paper.left_shift), (1, 1, 1));
    let safe = entry(&found, Accumulator::FpisaASafe);
    assert_eq!((safe.overflow, safe.not_finite, safe.overwrite), (0, 0, 1));
    assert!(safe.largest > 0.015, "the overwrite loses the small one: {}", safe.largest);
}

#[test]
fn atp_sums_again_as_floats_what_leaves_its_range() {
    let found =
        compare(&recording(vec![vec![15.0, 0.5]; 2]), &question(&[Accumulator::StaticFixed], FloatFormat::Float32));
    let found = found.unwrap();
    assert_eq!((found.entries[0].overflow, found.entries[0].largest), (1, 0.0));
}

#[test]
fn a_sum_without_an_answer_is_counted_and_left_out() {
    let made = recording(vec![vec![f32::NAN, 1.0, f32::INFINITY], vec![1.0, 2.0, f32::INFINITY]]);
    let found =
        compare(&made, &question(&[Accumulator::Exact, Accumulator::BlockFixed], FloatFormat::Float32)).unwrap();
    assert_eq!(found.elements_without_sum, 2);
    assert_eq!((found.entries[0].elements, found.entries[0].largest), (1, 0.0));
    // A block with a NaN is NaN there (spec/PROTOCOL.md), the one number among it included.
    assert_eq!(found.entries[1].not_finite, 1);
}

#[test]
fn questions_without_an_answer_say_what_to_ask() {
    let made = recording(gradients(2, 10));
    let more = Question { workers: Some(3), ..question(&[Accumulator::Ieee], FloatFormat::Float32) };
    assert!(compare(&made, &more).unwrap_err().to_string().contains("3 workers, but made has 2 ranks: use 1 to 2"));
    assert!("fpisa-b".parse::<Accumulator>().unwrap_err().to_string().contains("use one of exact, ieee"));
    let summer = Accumulator::Ieee.prepare(FloatFormat::Float32, 2).unwrap();
    let wrong = summer.sum(&[&[1.0]], &mut [0.0], &mut Telemetry::default()).unwrap_err();
    assert!(wrong.to_string().contains("1 tensors for 2 workers"));
    let crowded = Accumulator::FpisaASafe.prepare(FloatFormat::Float32, 129).unwrap_err();
    assert!(format!("{crowded:#}").contains("fewer workers"), "{crowded:#}");
}

#[test]
fn distributions_keep_quantiles_to_one_part_in_256() {
    let mut errors = Distribution::default();
    (0..1000).for_each(|k| errors.add(f64::from(k) * 1e-9 * if k % 2 == 0 { 1.0 } else { -1.0 }));
    errors.add(f64::INFINITY);
    assert_eq!((errors.count, errors.zeros, errors.not_finite), (1000, 1, 1));
    for (share, wanted) in [(0.5, 499e-9), (0.99, 989e-9), (1.0, 999e-9)] {
        let found = errors.quantile(share);
        assert!((wanted..wanted * (1.0 + 2.0 / 256.0)).contains(&found), "{share}: {found:e}, wanted {wanted:e}");
    }
    assert!((errors.share_within(500e-9) - 0.5).abs() < 0.005 && errors.share_within(1e-6) == 1.0);
    assert!(errors.bias().abs() < 1e-9 && errors.largest == 999e-9);
    let curve = errors.curve();
    assert!(curve.windows(2).all(|pair| pair[0].1 <= pair[1].1) && curve.last().is_some_and(|last| last.1 == 100.0));
}

#[test]
fn exact_sums_are_exact_where_f64_alone_is_not() {
    let sum = ExactSum::of([1e20f32, 1.0, -1e20].into_iter());
    assert_eq!(sum.error_of(1.0), 0.0);
    assert_eq!(sum.error_of(0.0), -1.0);
    assert_eq!(round_to(FloatFormat::Float16, 1.0 + 2f32.powi(-12)), 1.0);
}

/// The row whose name has these words.
fn row<'a>(findings: &'a Findings, words: &str) -> &'a fanin_lab::findings::Row {
    findings
        .rows
        .iter()
        .find(|row| row.quantity.contains(words))
        .unwrap_or_else(|| panic!("no row of {words}: {findings:?}"))
}

#[test]
fn table_2_comes_out_on_drawn_numbers_and_runs_on_recorded_ones() {
    use fanin_lab::atp::Options;
    use fanin_lab::numerics::Experiment;
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../experiments/gradients/mnist-small-4");
    let options = Options { gradients: vec![folder.into()], is_quick: true, ..Options::default() };
    let findings = Experiment::LibraTable2.run(&options).unwrap();
    for words in ["R2, integers", "R2, look-ups, 256 steps an octave", "R1, look-ups, 1000 steps, drawn"] {
        assert!(row(&findings, words).holds == Some(true), "{:?}", row(&findings, words));
    }
    assert!(row(&findings, "R1, look-ups, 1000 steps, mnist-small-4").ours.starts_with("99.9"));
    let bad = Options { parameters: Some("steps = 5".into()), ..Options::default() };
    let refused = format!("{:#}", Experiment::LibraTable2.run(&bad).unwrap_err());
    assert!(refused.contains("begin with a copy of experiments/libra/table2.toml"), "{refused}");
}

fn run_on(experiment: fanin_lab::numerics::Experiment, recording: &str) -> Findings {
    let options = fanin_lab::atp::Options { gradients: vec![recording.into()], ..Default::default() };
    experiment.run(&options).unwrap()
}

const SMALL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../experiments/gradients/mnist-small-4");

#[test]
fn ratios_among_workers_are_counted_by_phase() {
    let findings = run_on(fanin_lab::numerics::Experiment::FpisaFig7, SMALL);
    assert_eq!(findings.rows.len(), 3, "{findings:?}");
    let table = &findings.sheets[0].rows;
    assert_eq!(table.len(), 20);
    for phase in 1..4 {
        // Shares grow with the ratio; early steps of a small network are like the paper's.
        assert!(table.windows(2).all(|pair| pair[0][phase] <= pair[1][phase]), "{table:?}");
        assert!((60.0..100.0).contains(&table[6][phase]), "{table:?}");
    }
}

#[test]
fn errors_of_fpisa_a_have_their_causes_beside_them() {
    let findings = run_on(fanin_lab::numerics::Experiment::FpisaFig8, SMALL);
    assert!(row(&findings, "mnist-small-4, fpisa-a, early: overflow").ours.ends_with("% of elements"));
    let papers = row(&findings, "mnist-small-4, fpisa-a, final: overflow");
    assert_eq!(papers.holds, Some(false), "the paper's headroom overflows");
    let safe = row(&findings, "mnist-small-4, fpisa-a-safe, final: overflow");
    assert_eq!((safe.ours.as_str(), safe.holds), ("0.00 % of elements", None), "{findings:?}");
    assert!(findings.notes.iter().any(|note| note.contains("above 95 %")), "{findings:?}");
    let errors = &findings.sheets[0].rows;
    assert_eq!(errors.len(), 9);
    for numbers in errors {
        assert!((numbers[1] + numbers[2] + numbers[3] - 100.0).abs() < 1e-6, "{numbers:?}");
    }
    // fpisa, the last three: no overwrites, and errors a thousand times smaller than fpisa-a's.
    assert!(errors[6][4] == 0.0 && errors[6][7] < 1e-3 * errors[0][7].max(errors[1][7]), "{errors:?}");
}

#[test]
fn the_theorems_hold_on_recorded_gradients_and_are_not_loose() {
    let findings = run_on(fanin_lab::numerics::Experiment::SwitchmlTheorems, SMALL);
    assert_eq!(findings.rows.len(), 6);
    assert!(findings.rows.iter().all(|row| row.holds == Some(true)), "{findings:?}");
    for numbers in &findings.sheets[0].rows {
        assert!((0.2..=0.5).contains(&numbers[2]), "nearest rounding halves the bound: {numbers:?}");
        assert!((0.3..=1.0).contains(&numbers[3]), "{numbers:?}");
    }
}
