//! Test data whose sum is known without a second all-reduce.
//!
//! Every rank holds the same periodic sequence of integers, shifted by its
//! rank. A block at the wrong place, one added twice or one left out changes
//! the sum. Floats are these integers divided by 256: small enough that sums
//! are exact in every format, ATP's counts of 10^-8 included, of which 1/256 is
//! a whole number, and that none leaves ATP's 32 bits.

use fanin_host::{DataType, ElementFormat};

/// A prime, so that no block size is a multiple of the period.
const PERIOD: usize = 8191;
/// Shift from rank to rank; any number that gives 256 ranks different places.
const RANK_SHIFT: usize = 17;
const WORD_BYTES: usize = 8;
/// Floats are integers divided by two to this power.
const FLOAT_SHIFT: u32 = 8;
/// ATP's fixed point holds sums up to 21.47 (ATP §3.8: 2^31 / 10^8).
const FIXED_SUM_MAX: i64 = 20 << FLOAT_SHIFT;

/// One rank's data in one round, and the sum of all ranks'.
pub struct Pattern {
    own: Vec<u64>,
    sum: Vec<u64>,
    element_bytes: usize,
}

/// The sequence that every rank shifts.
struct Sequence {
    values: Vec<i64>,
    data_type: DataType,
}

impl Pattern {
    /// Values of `rank` among `world_size`; another `round` has other values.
    pub fn new(data_type: DataType, format: ElementFormat, rank: u16, world_size: u16, round: u64) -> Pattern {
        let amplitude = amplitude(data_type, format, world_size);
        let values = (0..PERIOD as u64).map(|index| bounded(mix(index ^ round << 32), amplitude)).collect();
        let sequence = Sequence { values, data_type };
        let sum = |index| (0..world_size).fold(0, |sum, rank| sequence.value(rank, index).wrapping_add(sum));
        Pattern {
            own: sequence.tile(|index| sequence.value(rank, index)),
            sum: sequence.tile(sum),
            element_bytes: data_type.bytes(),
        }
    }

    /// Fills `words` with the rank's elements.
    pub fn fill(&self, words: &mut [u64]) {
        for part in words.chunks_mut(PERIOD) {
            part.copy_from_slice(&self.own[..part.len()]);
        }
    }

    /// Elements among the first `bytes` bytes that are not the sum.
    pub fn count_wrong(&self, words: &[u64], bytes: usize) -> u64 {
        let mut wrong = 0;
        for (part_index, part) in words.chunks(PERIOD).enumerate() {
            let first_byte = part_index * PERIOD * WORD_BYTES;
            let whole = first_byte + part.len() * WORD_BYTES <= bytes;
            if whole && *part == self.sum[..part.len()] {
                continue;
            }
            for (index, (got, expected)) in part.iter().zip(&self.sum).enumerate() {
                let left = bytes.saturating_sub(first_byte + index * WORD_BYTES).min(WORD_BYTES);
                wrong += count_different(*got, *expected, left, self.element_bytes);
            }
        }
        wrong
    }
}

impl Sequence {
    fn value(&self, rank: u16, index: usize) -> i64 {
        self.values[(index + RANK_SHIFT * usize::from(rank)) % PERIOD]
    }

    /// One period of words: eight bytes hold a whole number of elements.
    fn tile(&self, value: impl Fn(usize) -> i64) -> Vec<u64> {
        let per_word = WORD_BYTES / self.data_type.bytes();
        let word = |first: usize| {
            let mut bytes = [0; WORD_BYTES];
            for (place, element) in bytes.chunks_mut(self.data_type.bytes()).enumerate() {
                let encoded = encode(self.data_type, value((first * per_word + place) % PERIOD));
                element.copy_from_slice(&encoded[..element.len()]);
            }
            u64::from_ne_bytes(bytes)
        };
        (0..PERIOD).map(word).collect()
    }
}

/// Largest magnitude whose sum over all ranks every format on the way holds
/// exactly; `None` where sums wrap.
fn amplitude(data_type: DataType, format: ElementFormat, world_size: u16) -> Option<i64> {
    let in_memory: i64 = match data_type {
        DataType::Int32 | DataType::Int64 | DataType::Bytes => return None,
        DataType::Bfloat16 => 1 << 8,
        DataType::Float16 => 1 << 11,
        DataType::Float32 => 1 << 20,
    };
    let on_wire: i64 = match format {
        ElementFormat::Int32 => 1 << 20,
        ElementFormat::Float16 => 1 << 11,
        ElementFormat::Bfloat16 => 1 << 8,
        // Then the step of contributions and of the sum is at most 1.
        ElementFormat::Int8 => 127,
    };
    Some((in_memory.min(on_wire).min(FIXED_SUM_MAX) / i64::from(world_size)).max(1))
}

fn bounded(random: u64, amplitude: Option<i64>) -> i64 {
    match amplitude {
        None => random as i64,
        Some(amplitude) => (random % (2 * amplitude as u64 + 1)) as i64 - amplitude,
    }
}

/// SplitMix64: neighbouring inputs give unrelated outputs.
fn mix(input: u64) -> u64 {
    let mut z = input.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// The element's bytes in memory, first ones first.
fn encode(data_type: DataType, value: i64) -> [u8; WORD_BYTES] {
    let mut bytes = [0; WORD_BYTES];
    match data_type {
        DataType::Int64 => bytes = value.to_ne_bytes(),
        DataType::Int32 => bytes[..4].copy_from_slice(&(value as i32).to_ne_bytes()),
        DataType::Float32 => bytes[..4].copy_from_slice(&float(value).to_ne_bytes()),
        // Exact: the value has at most 8 significant bits.
        DataType::Bfloat16 => bytes[..2].copy_from_slice(&((float(value).to_bits() >> 16) as u16).to_ne_bytes()),
        DataType::Float16 => bytes[..2].copy_from_slice(&half(value).to_ne_bytes()),
        DataType::Bytes => bytes[0] = value as u8,
    }
    bytes
}

fn float(value: i64) -> f32 {
    value as f32 / (1 << FLOAT_SHIFT) as f32
}

/// binary16 of [`float`], which it holds exactly up to magnitudes of 2048.
fn half(value: i64) -> u16 {
    let magnitude = value.unsigned_abs();
    if magnitude == 0 {
        return 0;
    }
    let exponent = magnitude.ilog2();
    let mantissa = ((magnitude << 10) >> exponent) as u16 & 0x3ff;
    u16::from(value < 0) << 15 | (exponent as u16 + 15 - FLOAT_SHIFT as u16) << 10 | mantissa
}

fn count_different(got: u64, expected: u64, bytes: usize, element_bytes: usize) -> u64 {
    let (got, expected) = (got.to_ne_bytes(), expected.to_ne_bytes());
    let pairs = got[..bytes].chunks(element_bytes).zip(expected[..bytes].chunks(element_bytes));
    pairs.filter(|(got, expected)| got != expected).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPES: [DataType; 5] =
        [DataType::Float32, DataType::Float16, DataType::Bfloat16, DataType::Int32, DataType::Int64];

    fn buffer(pattern: &Pattern) -> Vec<u64> {
        let mut words = vec![0; 3 * PERIOD + 5];
        pattern.fill(&mut words);
        words
    }

    #[test]
    fn one_rank_is_its_own_sum_and_a_changed_element_is_counted() {
        for data_type in TYPES {
            let pattern = Pattern::new(data_type, ElementFormat::Int32, 0, 1, 3);
            let mut words = buffer(&pattern);
            let bytes = words.len() * WORD_BYTES;
            assert_eq!(pattern.count_wrong(&words, bytes), 0, "{}", data_type.name());
            words[PERIOD + 7] ^= 1;
            assert_eq!(pattern.count_wrong(&words, bytes), 1);
        }
    }

    #[test]
    fn a_rank_added_twice_in_place_of_another_is_seen() {
        let first = |word: u64| f32::from_bits(word as u32);
        let ranks: Vec<_> =
            (0..3).map(|rank| buffer(&Pattern::new(DataType::Float32, ElementFormat::Int32, rank, 3, 0))).collect();
        let sum = |a: usize, b: usize, c: usize| {
            let add = |(x, y): (f32, f32), z: f32| f64::from(x + y + z);
            add((first(ranks[a][9]), first(ranks[b][9])), first(ranks[c][9]))
        };
        assert_ne!(sum(0, 1, 2), sum(0, 1, 1));
    }

    #[test]
    fn bytes_past_the_end_do_not_count() {
        let pattern = Pattern::new(DataType::Float32, ElementFormat::Int32, 0, 1, 0);
        let mut words = buffer(&pattern);
        let bytes = words.len() * WORD_BYTES - 4;
        let last = words.len() - 1;
        words[last] ^= u64::from_ne_bytes([0, 0, 0, 0, 1, 1, 1, 1]);
        assert_eq!(pattern.count_wrong(&words, bytes), 0);
        assert_eq!(pattern.count_wrong(&words, bytes + 4), 1);
    }

    #[test]
    fn halves_are_the_known_bit_patterns() {
        for (value, bits) in
            [(0, 0), (256, 0x3c00), (-512, 0xc000), (768, 0x4200), (1023, 0x43fe), (2048, 0x4800), (1, 0x1c00)]
        {
            assert_eq!(half(value), bits, "{value}");
        }
    }
}
