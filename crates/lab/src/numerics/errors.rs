//! Errors against the exact sum, and their distribution in bounded memory.

/// Classes are the leading bits of a float32, so that one is at most `2^-8` of its values wide.
const CLASS_SHIFT: u32 = 15;
/// Classes of one octave.
const CLASSES: usize = 1 << (23 - CLASS_SHIFT);
const OCTAVES: usize = 256;

/// A sum as two f64 whose sum it is, as good as exact: Knuth's two-sum keeps what each addition rounds off.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ExactSum {
    /// The sum, rounded.
    pub rounded: f64,
    rest: f64,
}

impl ExactSum {
    /// Of some values.
    pub fn of(values: impl Iterator<Item = f32>) -> ExactSum {
        values.fold(ExactSum::default(), |sum, value| sum.add(value.into()))
    }

    fn add(self, value: f64) -> ExactSum {
        let sum = self.rounded + value;
        let kept = sum - self.rounded;
        let lost = (self.rounded - (sum - kept)) + (value - kept);
        ExactSum { rounded: sum, rest: self.rest + lost }
    }

    /// `value - sum`; not a number where either is none.
    pub fn error_of(self, value: f32) -> f64 {
        (f64::from(value) - self.rounded) - self.rest
    }
}

/// Errors, counted in classes.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    /// Elements that are numbers.
    pub count: u64,
    /// Elements without any error.
    pub zeros: u64,
    /// Results that are no numbers, infinities among them; in no class.
    pub not_finite: u64,
    /// Largest magnitude.
    pub largest: f64,
    signed_sum: f64,
    /// By octave, its classes; none for an octave without errors.
    octaves: Vec<Vec<u64>>,
}

impl Default for Distribution {
    fn default() -> Self {
        Distribution {
            count: 0,
            zeros: 0,
            not_finite: 0,
            largest: 0.0,
            signed_sum: 0.0,
            octaves: vec![Vec::new(); OCTAVES],
        }
    }
}

impl Distribution {
    /// Counts one error.
    pub fn add(&mut self, error: f64) {
        if !error.is_finite() {
            self.not_finite += 1;
            return;
        }
        self.count += 1;
        self.signed_sum += error;
        self.largest = self.largest.max(error.abs());
        if error == 0.0 {
            self.zeros += 1;
            return;
        }
        // Errors of float32 sums are whole multiples of the least float32.
        let bits = (error.abs() as f32).to_bits().min(f32::MAX.to_bits());
        let class = (bits >> CLASS_SHIFT) as usize;
        let octave = &mut self.octaves[class / CLASSES];
        octave.resize(CLASSES, 0);
        octave[class % CLASSES] += 1;
    }

    /// Classes that hold errors, the least first: the largest magnitude in it, and how many.
    fn classes(&self) -> impl Iterator<Item = (f64, u64)> {
        let of_octave = |(octave, classes): (usize, &'_ Vec<u64>)| {
            let ends = (0..classes.len()).map(move |class| upper_end(octave * CLASSES + class));
            ends.zip(classes.clone()).collect::<Vec<_>>()
        };
        self.octaves.iter().enumerate().flat_map(of_octave).filter(|(_, count)| *count > 0)
    }

    /// The mean, sign included: which way the sums drift.
    pub fn bias(&self) -> f64 {
        self.signed_sum / self.count.max(1) as f64
    }

    /// A magnitude that the given share (0 to 1) of all elements does not exceed, to one part in 256.
    pub fn quantile(&self, share: f64) -> f64 {
        let wanted = (share * self.count as f64).ceil() as u64;
        if wanted <= self.zeros {
            return 0.0;
        }
        let mut seen = self.zeros;
        for (end, count) in self.classes() {
            seen += count;
            if seen >= wanted {
                return end.min(self.largest);
            }
        }
        self.largest
    }

    /// The share of elements (0 to 1) whose error is not above a magnitude, to one part in 256 of it.
    pub fn share_within(&self, magnitude: f64) -> f64 {
        if magnitude >= self.largest {
            return 1.0;
        }
        let within: u64 = self.classes().take_while(|(end, _)| *end <= magnitude).map(|(_, count)| count).sum();
        (self.zeros + within) as f64 / self.count.max(1) as f64
    }

    /// The share without error (0 to 1), of all elements.
    pub fn exact_share(&self) -> f64 {
        self.zeros as f64 / (self.count + self.not_finite).max(1) as f64
    }

    /// Points `(magnitude, percent of elements not above it)`, four a factor of ten.
    pub fn curve(&self) -> Vec<(f64, f64)> {
        let Some((least, _)) = self.classes().next() else { return Vec::new() };
        let (low, high) = (least.log10() * 4.0, self.largest.log10() * 4.0);
        let place = |quarter: i32| 10f64.powf(f64::from(quarter) / 4.0);
        let places = (low.floor() as i32..=high.ceil() as i32).map(place);
        places.map(|magnitude| (magnitude, 100.0 * self.share_within(magnitude))).collect()
    }
}

fn upper_end(class: usize) -> f64 {
    let bits = (class as u32 + 1) << CLASS_SHIFT;
    f64::from(f32::from_bits(bits.min(f32::MAX.to_bits())))
}
