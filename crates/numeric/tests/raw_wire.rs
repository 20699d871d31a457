//! Raw floats: bytes as they lie in memory, and their way to the accumulators and back.

use fanin_numeric::float16::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use fanin_numeric::{KernelLevel, byte_order, limit_kernel_level, raw_wire};

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

/// At every place of every length up to some vectors, with each kernel that this machine has. What is not divided comes out unchanged.
#[test]
fn one_sum_that_is_not_finite_is_noticed_wherever_it_lies() {
    for level in [KernelLevel::Scalar, KernelLevel::Avx2, KernelLevel::Avx512] {
        limit_kernel_level(level);
        for count in 1..70 {
            for at in 0..count {
                let mut floats: Vec<f32> = (0..count).map(|index| -f32::MAX / (index + 1) as f32).collect();
                // The largest finite number of each format, and below the infinity, whose bits come next.
                let (mut halves, mut bfloats) = (vec![0xfbffu16; count], vec![0xff7fu16; count]);
                for is_finite in [true, false] {
                    let (mut payload, mut narrow) = (vec![0; 4 * count + 1], vec![0; 2 * count + 1]);
                    let (mut out, mut out_16) = (vec![0.0; count], vec![0; count]);
                    raw_wire::write_f32(&floats, &mut payload[1..]);
                    assert_eq!(raw_wire::read_f32(&payload[1..], 1.0, &mut out), is_finite, "{count}, {at}");
                    assert_eq!(out, floats);
                    raw_wire::write_16(&halves, &mut narrow[1..]);
                    assert_eq!(raw_wire::read_f16(&narrow[1..], 1.0, &mut out_16), is_finite, "{count}, {at}");
                    assert_eq!(out_16, halves);
                    raw_wire::write_16(&bfloats, &mut narrow[1..]);
                    assert_eq!(raw_wire::read_bf16(&narrow[1..], 1.0, &mut out_16), is_finite, "{count}, {at}");
                    assert_eq!(out_16, bfloats);
                    (floats[at], halves[at], bfloats[at]) = (f32::NEG_INFINITY, 0xfc00, 0xff80);
                }
            }
        }
    }
}
