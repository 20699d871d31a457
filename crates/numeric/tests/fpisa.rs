//! FPISA and FPISA-A against a definition on big integers, and what the paper leaves open.

mod common;
mod oracle;

use common::Random;
use fanin_numeric::Telemetry;
use fanin_numeric::certificate::Contributions;
use fanin_numeric::fpisa::Fpisa;
use fanin_numeric::fpisa_a::FpisaA;
use fanin_numeric::register_pair::{FloatFormat, NO_NUMBER, NoRoom, Registers, Rounding, marks};
use num_bigint::BigInt;
use oracle::{FORMATS, ROUNDINGS};

/// An element's registers by value: the exponent, and the sum in units of exponent 0; `None` after an overflow.
#[derive(Clone, Debug)]
struct Model {
    format: FloatFormat,
    guard_bits: u32,
    alignment: Rounding,
    left_shift_max: Option<u32>,
    exponent: u32,
    sum: Option<BigInt>,
    counts: Telemetry,
}

impl Model {
    /// Power of two of a unit of exponent 0.
    fn place(&self) -> i32 {
        self.format.bias() + (self.format.fraction_bits() + self.guard_bits) as i32
    }

    fn exponent_of(&self, x: f64) -> u32 {
        if x == 0.0 { 0 } else { (x.abs().log2().floor() as i32 + self.format.bias()).max(1) as u32 }
    }

    fn overwrite(&mut self, x: f64) {
        self.exponent = self.exponent_of(x);
        self.sum = Some(oracle::whole(x, self.place()));
    }

    fn aligned(&mut self, operand: &BigInt, exponent: u32) -> BigInt {
        let kept = oracle::round(operand, exponent.into(), self.alignment) << exponent;
        self.counts.lost_bits += u64::from(kept != *operand);
        self.counts.flushed_to_zero += u64::from(kept == BigInt::ZERO && *operand != BigInt::ZERO);
        kept
    }

    fn add(&mut self, x: f64) {
        let (exponent, x) = (self.exponent_of(x), oracle::whole(x, self.place()));
        let Some(sum) = self.sum.clone() else { return };
        let total = if exponent <= self.exponent {
            sum + self.aligned(&x, self.exponent)
        } else {
            match self.left_shift_max {
                Some(limit) if exponent - self.exponent <= limit => {
                    self.counts.left_shift += 1;
                    sum + x
                }
                Some(_) => {
                    self.counts.overwrite += u64::from(sum != BigInt::ZERO);
                    self.exponent = exponent;
                    x
                }
                None => {
                    self.exponent = exponent;
                    self.aligned(&sum, exponent) + x
                }
            }
        };
        let register: BigInt = &total >> self.exponent;
        let fits = i32::try_from(register).is_ok();
        self.counts.overflow += u64::from(!fits);
        self.sum = fits.then_some(total);
    }

    fn read_out(&self, rounding: Rounding) -> Option<f64> {
        self.sum.as_ref().map(|sum| oracle::to_format(sum, self.place(), self.format, rounding))
    }
}

/// The verbs of either accumulator.
enum Accumulator {
    Full(Fpisa),
    Approximate(FpisaA),
}

impl Accumulator {
    fn sum(&self, format: FloatFormat, values: &[u32]) -> (u32, i32, u32, Telemetry) {
        let (mut exponent, mut mantissa, mut out) = ([0], [0], vec![0; format.bytes()]);
        let mut slot = Registers { exponents: &mut exponent, mantissas: &mut mantissa };
        let mut counts = Telemetry::default();
        for (k, bits) in values.iter().enumerate() {
            let payload = oracle::payload(format, &[*bits]);
            match (self, k) {
                (Accumulator::Full(fpisa), 0) => fpisa.overwrite(&payload, &mut slot),
                (Accumulator::Full(fpisa), _) => fpisa.add(&payload, &mut slot, Some(&mut counts)),
                (Accumulator::Approximate(fpisa), 0) => fpisa.overwrite(&payload, &mut slot),
                (Accumulator::Approximate(fpisa), _) => fpisa.add(&payload, &mut slot, Some(&mut counts)),
            }
        }
        match self {
            Accumulator::Full(fpisa) => fpisa.emit(&slot, &mut out, None),
            Accumulator::Approximate(fpisa) => fpisa.emit(&slot, &mut out, None),
        }
        (oracle::words(format, &out)[0], mantissa[0], exponent[0].into(), counts)
    }
}

/// Every setting: the accumulator, its model and its read-out.
fn settings() -> Vec<(Accumulator, Model, Rounding)> {
    let mut settings = Vec::new();
    for format in FORMATS {
        let model = |guard_bits, alignment, left_shift_max| {
            let counts = Telemetry::default();
            Model { format, guard_bits, alignment, left_shift_max, exponent: 0, sum: Some(BigInt::ZERO), counts }
        };
        for alignment in ROUNDINGS {
            for read_out in ROUNDINGS {
                for guard_bits in [0, 1, 3, format.headroom_bits()] {
                    let full = Fpisa::new(format, guard_bits, alignment, read_out).unwrap();
                    settings.push((Accumulator::Full(full), model(guard_bits, alignment, None), read_out));
                }
                let safe = FpisaA::for_workers(format, 9, alignment, read_out).unwrap();
                let limit = format.headroom_bits() - 4;
                settings.push((Accumulator::Approximate(safe), model(0, alignment, Some(limit)), read_out));
            }
        }
        let paper = Accumulator::Approximate(FpisaA::paper(format));
        let limit = Some(format.headroom_bits());
        settings.push((paper, model(0, Rounding::Floor, limit), Rounding::TowardZero));
    }
    settings
}

fn assert_agrees(setting: &(Accumulator, Model, Rounding), values: &[u32]) {
    let (accumulator, model, read_out) = setting;
    let mut model = model.clone();
    for (k, bits) in values.iter().enumerate() {
        let x = oracle::value(model.format, *bits);
        if k == 0 { model.overwrite(x) } else { model.add(x) }
    }
    let (bits, mantissa, exponent, counts) = accumulator.sum(model.format, values);
    let context = || format!("{values:x?} with {model:?}, read out {read_out:?}");
    let found = oracle::value(model.format, bits);
    match model.read_out(*read_out) {
        Some(expected) => {
            assert_eq!(found, expected, "{}", context());
            assert_eq!(exponent, model.exponent, "{}", context());
            assert_eq!(BigInt::from(mantissa) << exponent, model.sum.clone().unwrap(), "{}", context());
        }
        None => {
            assert!(found.is_nan(), "{}", context());
            assert_eq!((exponent, mantissa), (NO_NUMBER.into(), marks::OVERFLOW), "{}", context());
        }
    }
    assert_eq!(counts, model.counts, "{}", context());
}

#[test]
fn pairs_of_corners_agree_with_the_definition() {
    for setting in settings() {
        let corners = oracle::corners(setting.1.format);
        for a in &corners {
            for b in &corners {
                assert_agrees(&setting, &[*a, *b]);
            }
        }
    }
}

#[test]
fn sequences_agree_with_the_definition() {
    let mut random = Random(11);
    for setting in settings() {
        let format = setting.1.format;
        let corners = oracle::corners(format);
        for _ in 0..150 {
            let spread = random.bits() % 30 + 1;
            let base = random.bits() % u64::from(format.field_max());
            let length = random.bits() % 40 + 1;
            let values = random.vec(length as usize, |bits| {
                if bits % 11 == 0 {
                    return corners[(bits >> 8) as usize % corners.len()];
                }
                let field = (base + (bits >> 40) % spread).min(u64::from(format.field_max()) - 1) as u32;
                let fraction = (bits >> 8) as u32 & ((1 << format.fraction_bits()) - 1);
                let sign = (bits as u32 >> 7 & 1) << (8 * format.bytes() - 1);
                sign | field << format.fraction_bits() | fraction
            });
            assert_agrees(&setting, &values);
        }
    }
}

#[test]
fn exactly_128_numbers_of_largest_mantissa_fit() {
    let format = FloatFormat::Float32;
    let fpisa = Accumulator::Full(Fpisa::paper(format));
    for x in [0x3fff_ffff, 0xbfff_ffff] {
        let (bits, mantissa, _, counts) = fpisa.sum(format, &[x; 128]);
        assert_eq!(mantissa.unsigned_abs(), 128 * ((1 << 24) - 1));
        assert_eq!(oracle::value(format, bits), 128.0 * oracle::value(format, x));
        assert_eq!(counts.overflow, 0);
        // The next one overflows, the sum says so, and what follows changes neither it nor the count.
        let (bits, mantissa, exponent, counts) = fpisa.sum(format, &[vec![x; 140], vec![x ^ 1 << 31; 140]].concat());
        assert_eq!((bits, mantissa, exponent), (0x7fc0_0001, marks::OVERFLOW, NO_NUMBER.into()));
        assert_eq!(counts.overflow, 1);
    }
    assert_eq!(Fpisa::paper(format).workers_max(), 128);
}

#[test]
fn infinities_nan_and_overflows_are_kept_apart_in_any_order() {
    for format in FORMATS {
        let fraction_bits = format.fraction_bits();
        let infinity = format.field_max() << fraction_bits;
        let (sign, nan) = (1 << (8 * format.bytes() - 1), infinity | 1 << (fraction_bits - 1));
        let (minus, overflow) = (infinity | sign, nan | 1);
        let one = (format.bias() as u32) << fraction_bits;
        let cases = [
            (vec![one, infinity], infinity),
            (vec![one, minus, one], minus),
            (vec![infinity, minus], nan),
            (vec![overflow, one], overflow),
            (vec![overflow | sign, one], overflow),
            (vec![overflow, infinity], infinity),
            (vec![overflow, nan], nan),
            (vec![infinity, one, infinity], infinity),
            // A signalling NaN, and one with another payload.
            (vec![one, infinity | 1], nan),
            (vec![one, nan | 2, overflow], nan),
        ];
        for (values, expected) in cases {
            let backwards: Vec<u32> = values.iter().rev().copied().collect();
            for accumulator in
                [Accumulator::Full(Fpisa::paper(format)), Accumulator::Approximate(FpisaA::paper(format))]
            {
                assert_eq!(accumulator.sum(format, &values).0, expected, "{values:x?}");
                assert_eq!(accumulator.sum(format, &backwards).0, expected, "{backwards:x?}");
            }
        }
    }
}

#[test]
fn zeros_and_cancelled_sums_are_positive_zero() {
    for format in FORMATS {
        let one = (format.bias() as u32) << format.fraction_bits();
        let sign = 1 << (8 * format.bytes() - 1);
        let fpisa = Accumulator::Full(Fpisa::paper(format));
        for values in [vec![0], vec![sign], vec![sign, sign], vec![one, one | sign], vec![one | sign, one, sign]] {
            assert_eq!(fpisa.sum(format, &values).0, 0, "{values:x?}");
        }
        // A zero leaves the exponent alone, first or not.
        assert_eq!(fpisa.sum(format, &[0, 1]).0, 1);
        assert_eq!(fpisa.sum(format, &[1, 0, sign]).0, 1);
    }
}

#[test]
fn fpisa_a_loses_a_sum_that_is_larger_than_what_replaces_it() {
    // Two left shifts make a register of 127 with the exponent of 1, which 64 then replaces: the error is twice the result.
    let format = FloatFormat::Float32;
    let values = [1.0f32, 63.0, 63.0, 64.0].map(f32::to_bits);
    let safe = FpisaA::for_workers(format, 4, Rounding::Floor, Rounding::NearestEven).unwrap();
    assert_eq!(safe.left_shift_max(), 5);
    let (bits, _, _, counts) = Accumulator::Approximate(safe).sum(format, &values);
    assert_eq!((f32::from_bits(bits), counts.overwrite, counts.left_shift), (64.0, 1, 2));
    // With the paper's whole headroom it is exact.
    let (bits, _, _, counts) = Accumulator::Approximate(FpisaA::paper(format)).sum(format, &values);
    assert_eq!((f32::from_bits(bits), counts.overwrite, counts.left_shift), (191.0, 0, 3));
    // But then two such contributions overflow.
    let overflowing = [1.0f32, 255.9, 255.9].map(f32::to_bits);
    let (bits, _, _, counts) = Accumulator::Approximate(FpisaA::paper(format)).sum(format, &overflowing);
    assert_eq!((bits, counts.overflow), (0x7fc0_0001, 1));
}

/// Random contributions stay within the certified error, and some come near to it.
#[test]
fn errors_stay_within_the_certificate() {
    let mut random = Random(5);
    for (accumulator, model, read_out) in settings() {
        let (format, mut closest) = (model.format, 0.0f64);
        for _ in 0..200 {
            let worker_count = random.bits() % 8 + 1;
            let base = format.field_max() / 2 - 2;
            let values = random.vec(worker_count as usize, |bits| {
                let field = base - (bits >> 40) as u32 % 4;
                (bits as u32 & 1) << (8 * format.bytes() - 1)
                    | field << format.fraction_bits()
                    | (bits >> 8) as u32 & ((1 << format.fraction_bits()) - 1)
            });
            let floats: Vec<f64> = values.iter().map(|bits| oracle::value(format, *bits)).collect();
            // Few values of few bits: f64 holds the sum exactly.
            let exact: f64 = floats.iter().sum();
            let contributions = Contributions {
                worker_count: worker_count as u32,
                magnitude_max: floats.iter().fold(0.0, |max, x| x.abs().max(max)),
                magnitude_sum: floats.iter().map(|x| x.abs()).sum(),
            };
            let certificate = match &accumulator {
                Accumulator::Full(fpisa) => fpisa.certify(&contributions),
                Accumulator::Approximate(fpisa) => fpisa.certify(&contributions),
            };
            assert!(!certificate.order_independent);
            if certificate.absolute_error.is_infinite() {
                continue;
            }
            let error = (oracle::value(format, accumulator.sum(format, &values).0) - exact).abs();
            assert!(error <= certificate.absolute_error, "{values:x?}, {error:e} with {model:?}");
            closest = closest.max(error / certificate.absolute_error);
        }
        let is_sharp = model.left_shift_max.is_none() && model.guard_bits < 2;
        assert!(!is_sharp || closest > 0.2, "{closest} of the bound with {model:?}, read out {read_out:?}");
    }
}

#[test]
fn certificates_end_where_registers_may_overflow_and_formats_end() {
    let format = FloatFormat::Float32;
    let of = |count, max| Contributions::bounded(count, max);
    let fpisa = Fpisa::new(format, 2, Rounding::NearestEven, Rounding::NearestEven).unwrap();
    assert_eq!(fpisa.workers_max(), 32);
    // 31 additions of half a unit at 2^-25, and half a unit of a sum below 2^6.
    let expected = 31.0 * 0.5 * 2f64.powi(-25) + 2f64.powi(5 - 24);
    assert_eq!(fpisa.certify(&of(32, 1.0)).absolute_error, expected);
    assert!(fpisa.certify(&of(33, 1.0)).absolute_error.is_infinite());
    assert!(fpisa.certify(&of(2, 3e38)).absolute_error.is_infinite());
    assert!(FpisaA::paper(format).certify(&of(2, 1.0)).absolute_error.is_infinite());
    let safe = FpisaA::for_workers(format, 8, Rounding::Floor, Rounding::TowardZero).unwrap();
    assert!(safe.certify(&of(8, 1.0)).absolute_error >= 8.0);
    assert!(safe.certify(&of(9, 1.0)).absolute_error.is_infinite());
}

#[test]
fn what_the_register_has_no_room_for_is_refused() {
    let error = Fpisa::new(FloatFormat::Float32, 8, Rounding::Floor, Rounding::Floor).unwrap_err();
    assert_eq!(error, NoRoom { wanted: 8, headroom_bits: 7 });
    assert!(error.to_string().contains("use fewer guard bits"));
    assert!(Fpisa::new(FloatFormat::Bfloat16, 23, Rounding::Floor, Rounding::Floor).is_ok());
    let most = |count| FpisaA::for_workers(FloatFormat::Float32, count, Rounding::Floor, Rounding::Floor);
    assert_eq!(most(128).unwrap().left_shift_max(), 0);
    assert_eq!(most(129).unwrap_err(), NoRoom { wanted: 8, headroom_bits: 7 });
}
