//! Raw floats: bytes as they lie in memory, and their way to the accumulators and back.

use fanin_numeric::float16::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use fanin_numeric::{byte_order, raw_wire};

#[test]
fn floats_go_out_as_they_lie_in_memory() {
    let values: Vec<f32> = (0..37).map(|index| index as f32 * -1.5).chain([f32::NAN, f32::INFINITY]).collect();
    let mut payload = vec![0; 4 * values.len()];
    raw_wire::write_f32(&values, &mut payload);
    let memory: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    assert_eq!(payload, memory);
    let mut halves = vec![0; 6];
    raw_wire::write_16(&[0x3c00, 0x1234, 0xffff], &mut halves);
    assert_eq!(halves, [0x00, 0x3c, 0x34, 0x12, 0xff, 0xff]);
}

/// Every length up to beyond two vectors, at every offset of an element.
#[test]
fn reversing_bytes_twice_changes_nothing_and_once_gives_network_order() {
    for width in [2, 4] {
        for count in 0..70 {
            let payload: Vec<u8> = (0..count * width).map(|at| (at * 37 % 251) as u8).collect();
            let (mut turned, mut back) = (vec![0; payload.len() + 1], vec![0; payload.len()]);
            byte_order::reverse(&payload, width, &mut turned[1..]);
            for (element, original) in turned[1..].chunks(width).zip(payload.chunks(width)) {
                assert!(element.iter().eq(original.iter().rev()), "{count} elements of {width} bytes");
            }
            byte_order::reverse(&turned[1..], width, &mut back);
            assert_eq!(back, payload);
        }
    }
}

#[test]
fn means_divide_once_and_sums_that_are_not_finite_are_noticed() {
    let mut payload = vec![0; 12];
    raw_wire::write_f32(&[1.0, -7.0, 1e-3], &mut payload);
    let mut out = [0f32; 3];
    assert!(raw_wire::read_f32(&payload, 1.0, &mut out));
    assert_eq!(out, [1.0, -7.0, 1e-3]);
    assert!(raw_wire::read_f32(&payload, 3.0, &mut out));
    assert_eq!(out, [1.0 / 3.0, -7.0 / 3.0, 1e-3 / 3.0]);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        raw_wire::write_f32(&[1.0, bad, 2.0], &mut payload);
        assert!(!raw_wire::read_f32(&payload, 1.0, &mut out), "{bad}");
    }
    let (mut halves, mut out) = (vec![0; 4], [0u16; 2]);
    raw_wire::write_16(&[f32_to_f16(10.0), f32_to_f16(1.0)], &mut halves);
    assert!(raw_wire::read_f16(&halves, 3.0, &mut out));
    assert_eq!(f16_to_f32(out[0]), f16_to_f32(f32_to_f16(10.0 / 3.0)));
    raw_wire::write_16(&[f32_to_bf16(10.0), 0x7f80], &mut halves);
    assert!(!raw_wire::read_bf16(&halves, 3.0, &mut out));
    assert_eq!(bf16_to_f32(out[0]), bf16_to_f32(f32_to_bf16(10.0 / 3.0)));
    raw_wire::write_16(&[0x7bff, 0xfc00], &mut halves);
    assert!(!raw_wire::read_f16(&halves, 1.0, &mut out));
}
