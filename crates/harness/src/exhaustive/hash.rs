//! A fast 128-bit hash, wide enough that a collision among millions of
//! states is out of the question.

use std::hash::{BuildHasher, Hasher};

/// Two independent 64-bit lanes.
#[derive(Clone, Copy)]
pub struct Wide {
    a: u64,
    b: u64,
}

impl Wide {
    pub fn new() -> Wide {
        Wide { a: 0x243f_6a88_85a3_08d3, b: 0x1319_8a2e_0370_7344 }
    }

    pub fn wide(&self) -> u128 {
        let [a, b] = [self.a, self.b].map(|lane| (lane ^ lane >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93));
        u128::from(a ^ a >> 32) << 64 | u128::from(b ^ b >> 32)
    }

    fn word(&mut self, word: u64) {
        self.a = (self.a ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
        self.b = (self.b.rotate_left(23) ^ word).wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
    }
}

impl Hasher for Wide {
    fn finish(&self) -> u64 {
        self.wide() as u64
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(u64::from_le_bytes(word));
        }
        self.word(bytes.len() as u64);
    }

    fn write_u8(&mut self, number: u8) {
        self.word(number.into());
    }

    fn write_u16(&mut self, number: u16) {
        self.word(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.word(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        self.word(number);
    }

    fn write_usize(&mut self, number: usize) {
        self.word(number as u64);
    }
}

/// For keys that are hashes already.
#[derive(Clone, Copy, Default)]
pub struct Ready;

pub struct Pass(u64);

impl BuildHasher for Ready {
    type Hasher = Pass;

    fn build_hasher(&self) -> Pass {
        Pass(0)
    }
}

impl Hasher for Pass {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u128(&mut self, number: u128) {
        self.0 = number as u64;
    }
}

/// [`Wide`] for maps.
#[derive(Clone, Copy, Default)]
pub struct WideBuild;

impl BuildHasher for WideBuild {
    type Hasher = Wide;

    fn build_hasher(&self) -> Wide {
        Wide::new()
    }
}
