//! CRC-32C (Castagnoli), as iSCSI and SCTP use it.

#[cfg(all(feature = "std", target_arch = "x86_64"))]
#[allow(unsafe_code)]
mod fold;

/// CRC-32C of the concatenation of `parts`.
#[cfg(feature = "std")]
#[inline]
pub(crate) fn crc32c(parts: [&[u8]; 2]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if let Some(crc) = fold::crc32c(parts) {
        return crc;
    }
    by_library(parts)
}

/// Processors without 512-bit carry-less multiplication.
#[cfg(feature = "std")]
fn by_library(parts: [&[u8]; 2]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    parts.iter().for_each(|part| digest.update(part));
    digest.finalize() as u32
}

/// CRC-32C of the concatenation of `parts`.
#[cfg(not(feature = "std"))]
pub(crate) fn crc32c(parts: [&[u8]; 2]) -> u32 {
    by_table(parts)
}

#[cfg(any(test, not(feature = "std")))]
fn by_table(parts: [&[u8]; 2]) -> u32 {
    let bytes = parts.iter().flat_map(|part| part.iter());
    !bytes.fold(!0, |crc: u32, &byte| TABLE[usize::from(crc as u8 ^ byte)] ^ (crc >> 8))
}

/// The polynomial 0x1EDC6F41, bit-reversed.
#[cfg(any(target_arch = "x86_64", test, not(feature = "std")))]
const POLYNOMIAL: u32 = 0x82f6_3b78;

#[cfg(any(test, not(feature = "std")))]
const TABLE: [u32; 256] = {
    let mut table = [0u32; 256];
    let mut index = 0;
    while index < 256 {
        let mut crc = index as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_value_of_the_catalogue() {
        assert_eq!(crc32c([b"123456789", b""]), 0xe306_9283);
        assert_eq!(by_table([b"1234", b"56789"]), 0xe306_9283);
    }

    /// Every length up to a few vectors, then some, cut in two at various places.
    #[test]
    #[cfg(feature = "std")]
    fn table_and_instructions_agree() {
        let bytes: [u8; 9000] = core::array::from_fn(|index| (index * index + index / 251) as u8);
        for end in (0..700).chain((700..bytes.len()).step_by(37)) {
            for first in [0, end / 3, end.min(36), end] {
                let (first, second) = bytes[..end].split_at(first);
                let expected = by_table([first, second]);
                assert_eq!(crc32c([first, second]), expected, "length {end}");
                assert_eq!(by_library([first, second]), expected, "length {end}");
            }
        }
    }
}
