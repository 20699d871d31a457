use super::*;

fn fates(gate: &mut Gate, count: usize) -> Vec<bool> {
    (0..count)
        .map(|_| {
            let passes = gate.passing(1) == 1;
            if passes {
                gate.pass(1)
            } else {
                gate.lose()
            }
            passes
        })
        .collect()
}

fn outgoing(probability: f64, seed: u64) -> Gate {
    Gate::pair(Some(Loss { probability, seed })).unwrap().0
}

#[test]
fn the_rate_is_the_one_asked_for() {
    for probability in [0.001, 0.01, 0.1, 0.5, 0.9] {
        let count = 400_000;
        let lost = fates(&mut outgoing(probability, 7), count).iter().filter(|passes| !**passes).count() as f64;
        let expected = probability * count as f64;
        let sigma = (expected * (1.0 - probability)).sqrt();
        assert!((lost - expected).abs() < 4.5 * sigma, "p {probability}: lost {lost}, expected {expected} +- {sigma}");
    }
}

#[test]
fn losses_are_independent_of_the_loss_before() {
    let fates = fates(&mut outgoing(0.2, 3), 400_000);
    let after_loss: Vec<_> = fates.windows(2).filter(|pair| !pair[0]).map(|pair| pair[1]).collect();
    let rate = after_loss.iter().filter(|passes| !**passes).count() as f64 / after_loss.len() as f64;
    assert!((rate - 0.2).abs() < 0.01, "loss rate after a loss is {rate}");
}

#[test]
fn the_ends_of_the_range_are_exact() {
    assert!(fates(&mut outgoing(0.0, 1), 100_000).iter().all(|passes| *passes));
    assert!(fates(&mut outgoing(1.0, 1), 1000).iter().all(|passes| !*passes));
}

#[test]
fn same_seed_same_fate_and_directions_differ() {
    assert_eq!(fates(&mut outgoing(0.3, 11), 5000), fates(&mut outgoing(0.3, 11), 5000));
    assert_ne!(fates(&mut outgoing(0.3, 11), 5000), fates(&mut outgoing(0.3, 12), 5000));
    let (mut out, mut back) = Gate::pair(Some(Loss { probability: 0.3, seed: 11 })).unwrap();
    assert_ne!(fates(&mut out, 5000), fates(&mut back, 5000));
}

#[test]
fn taking_runs_or_single_datagrams_loses_the_same_ones() {
    let single = fates(&mut outgoing(0.05, 5), 10_000);
    let mut gate = outgoing(0.05, 5);
    let mut runs = Vec::new();
    while runs.len() < single.len() {
        let kept = gate.passing(37.min(single.len() - runs.len()));
        gate.pass(kept);
        runs.extend(std::iter::repeat_n(true, kept));
        if runs.len() < single.len() && gate.passing(1) == 0 {
            gate.lose();
            runs.push(false);
        }
    }
    assert_eq!(single, runs);
}

#[test]
fn a_blackhole_does_not_move_the_stream() {
    let mut gate = outgoing(0.3, 9);
    gate.blackhole = true;
    assert!(fates(&mut gate, 500).iter().all(|passes| !*passes));
    gate.blackhole = false;
    assert_eq!(fates(&mut gate, 500), fates(&mut outgoing(0.3, 9), 500));
}

#[test]
fn a_probability_outside_its_range_is_refused() {
    for probability in [-0.1, 1.1, f64::NAN] {
        assert!(matches!(Gate::pair(Some(Loss { probability, seed: 0 })), Err(NetError::Option { .. })));
    }
}
