//! The tables from which the program computes CRC-32C eight bytes at a time.

/// The polynomial 0x1EDC6F41, bit-reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// Table k, from entry 256 k on: the remainder of a byte with k zero bytes behind it ("slicing-by-8", Kounavis and Berry,
/// ISCC 2005).
pub(crate) const TABLES: [u32; 8 * 256] = {
    let mut tables = [0u32; 8 * 256];
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

const fn remainder(byte: u32) -> u32 {
    let mut crc = byte;
    let mut bit = 0;
    while bit < 8 {
        crc = if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
        bit += 1;
    }
    crc
}
