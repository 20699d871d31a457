//! A record of everything that happened, as a hash and, if wanted, as text.

use fanin_protocol::time::Time;

/// Folds every step into one number; the same seed must give the same number.
pub struct Trace {
    hash: u64,
    steps: u64,
    print: bool,
}

impl Trace {
    /// An empty record; `print` writes each step to standard output.
    pub fn new(print: bool) -> Trace {
        Trace { hash: 0xcbf2_9ce4_8422_2325, steps: 0, print }
    }

    /// Records one step: what it was, whom it concerned, which bytes.
    pub fn step(&mut self, now: Time, name: &str, numbers: [u64; 3], bytes: &[u8], text: impl FnOnce() -> String) {
        self.steps += 1;
        self.fold(now.as_ns());
        self.fold(u64::from(name.as_bytes()[0]) << 8 | name.len() as u64);
        numbers.iter().for_each(|&number| self.fold(number));
        for word in bytes.chunks(8) {
            let mut padded = [0; 8];
            padded[..word.len()].copy_from_slice(word);
            self.fold(u64::from_le_bytes(padded));
        }
        if self.print {
            println!("{:>12} ns {name:<10} {}", now.as_ns(), text());
        }
    }

    fn fold(&mut self, word: u64) {
        self.hash = (self.hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }

    /// Hash over all steps so far.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Steps so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }
}
