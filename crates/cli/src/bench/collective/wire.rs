//! What links allow at best.

use fanin_wire::generated::HEADER_BYTES;

use crate::bench::fleet::Format;

/// Ethernet 14, IPv4 20, UDP 8: what htb charges beside the datagram's bytes.
pub const LOWER_HEADERS_BYTES: u64 = 42;

/// All headers of one of fanin's packets.
pub const HEADERS_BYTES: u64 = LOWER_HEADERS_BYTES + HEADER_BYTES as u64;

/// Least time for `bytes` of a tensor on a link, each way at once: the
/// elements as they travel, in full packets with all their headers.
pub fn wire_bound_ns(bytes: u64, dtype: &str, format: Format, element_count_max: u64, link_rate_bps: u64) -> f64 {
    let on_wire = bytes as f64 * growth(dtype, format) / goodput_ceiling(element_count_max, format, dtype);
    on_wire * 8.0 / link_rate_bps as f64 * 1e9
}

/// Share of a link's bits that are elements, in full packets.
pub fn goodput_ceiling(element_count_max: u64, format: Format, dtype: &str) -> f64 {
    let payload = (element_count_max * word_bytes(dtype, format)) as f64;
    payload / (payload + HEADERS_BYTES as f64)
}

/// Bytes on the wire for each byte of the tensor: 16-bit floats travel as
/// wide as 32-bit ones, int64 as four words of 16 bits each.
pub fn growth(dtype: &str, format: Format) -> f64 {
    let word = word_bytes(dtype, format) as f64;
    match dtype {
        "int64" => 4.0 * word / 8.0,
        "float16" | "bfloat16" => word / 2.0,
        _ => word / 4.0,
    }
}

/// What a ring sends over each link for each byte that a switch needs:
/// 2(n-1)/n of the tensor against the tensor as it travels to the switch.
pub fn ring_factor(ranks: u16, dtype: &str, format: Format) -> f64 {
    let ranks = f64::from(ranks);
    2.0 * (ranks - 1.0) / ranks / growth(dtype, format)
}

fn word_bytes(dtype: &str, format: Format) -> u64 {
    if dtype.starts_with("int") { Format::Int32.bytes() } else { format.bytes() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wire_bound_counts_headers_and_the_elements_as_they_travel() {
        let float32 = wire_bound_ns(64 << 20, "float32", Format::Int32, 256, 500_000_000);
        let expected_seconds = f64::from(64 << 20) * 8.0 / 5e8 * (1024.0 + 82.0) / 1024.0;
        assert!((float32 / 1e9 - expected_seconds).abs() < 1e-6);
        // A half in memory is a word on the wire; a long is four, whatever floats do.
        let half = wire_bound_ns(32 << 20, "float16", Format::Int32, 256, 500_000_000);
        let long = wire_bound_ns(32 << 20, "int64", Format::Float16, 256, 500_000_000);
        assert!((half - float32).abs() < 1.0 && (long - float32).abs() < 1.0);
        assert!(wire_bound_ns(64 << 20, "float32", Format::Float16, 256, 500_000_000) < 0.6 * float32);
    }

    #[test]
    fn a_ring_of_eight_sends_three_and_a_half_times_what_halves_need() {
        assert_eq!(ring_factor(8, "float32", Format::Int32), 1.75);
        assert_eq!(ring_factor(8, "float32", Format::Float16), 3.5);
        assert_eq!(ring_factor(2, "float32", Format::Int32), 1.0);
    }
}
