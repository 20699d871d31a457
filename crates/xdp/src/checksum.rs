//! The tables from which the program computes CRC-32C, up to sixteen bytes at a time.

/// The polynomial 0x1EDC6F41, bit-reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// Table k, from entry 256 k on: the remainder of a byte with k zero bytes behind it ("slicing-by-8", Kounavis and Berry,
/// ISCC 2005).
pub(crate) const TABLES: [u32; 16 * 256] = {
    let mut tables = [0u32; 16 * 256];
    let mut index = 0;
    while index < tables.len() {
        tables[index] = if index < 256 {
            remainder(index as u32)
        } else {
            let shorter = tables[index - 256];
            tables[(shorter & 0xff) as usize] ^ (shorter >> 8)
        };
        index += 1;
    }
    tables
};

/// Table k, from entry 256 k on: what becomes of byte k of a CRC by so many zero bytes behind it.
pub(crate) fn behind_zeros(bytes: usize) -> [u32; 4 * 256] {
    let table: [u32; 32] = std::array::from_fn(|bit| (0..bytes).fold(1 << bit, |crc, _| step(crc)));
    std::array::from_fn(|index| {
        let state = (index as u32 & 0xff) << (8 * (index / 256));
        (0..32).filter(|bit| state >> bit & 1 == 1).fold(0, |sum, bit| sum ^ table[bit])
    })
}

fn step(crc: u32) -> u32 {
    TABLES[(crc & 0xff) as usize] ^ (crc >> 8)
}

const fn remainder(byte: u32) -> u32 {
    let mut crc = byte;
    let mut bit = 0;
    while bit < 8 {
        crc = if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
        bit += 1;
    }
    crc
}
