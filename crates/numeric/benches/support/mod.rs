//! How the benches of this crate measure.

use std::time::Instant;

/// Seconds for one pass, from a sample of several.
pub fn time(passes: usize, mut pass: impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..passes {
        pass();
    }
    start.elapsed().as_secs_f64() / passes as f64
}

/// The upper one of the two in the middle.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
