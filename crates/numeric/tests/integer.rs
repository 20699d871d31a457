//! The exact formats through a whole aggregation: out, accumulated by the switch, back.

use fanin_numeric::accumulate;
use fanin_numeric::integer::*;
use proptest::collection::vec;
use proptest::prelude::*;

type Verb = fn(&[u8], &mut [i32]);

/// Aggregates the payloads of all workers with one verb and returns the answer.
fn aggregate(payloads: &[Vec<u8>], verb: Verb) -> Vec<u8> {
    let mut slot = vec![0; payloads[0].len() / 4];
    accumulate::overwrite(&payloads[0], &mut slot);
    for payload in &payloads[1..] {
        verb(payload, &mut slot);
    }
    let mut answer = vec![0; payloads[0].len()];
    accumulate::emit(&slot, &mut answer);
    answer
}

/// Each worker's values as payload, aggregated, as values.
fn reduce<T: Copy + Default>(
    workers: &[Vec<T>],
    width: usize,
    to: fn(&[T], &mut [u8]),
    verb: Verb,
    from: fn(&[u8], &mut [T]),
) -> Vec<T> {
    let payload = |values: &Vec<T>| {
        let mut payload = vec![0; width * values.len()];
        to(values, &mut payload);
        payload
    };
    let payloads: Vec<_> = workers.iter().map(payload).collect();
    let mut out = vec![T::default(); workers[0].len()];
    from(&aggregate(&payloads, verb), &mut out);
    out
}

/// The element-wise fold, by definition.
fn fold<T: Copy>(workers: &[Vec<T>], combine: impl Fn(T, T) -> T) -> Vec<T> {
    let columns = 0..workers[0].len();
    columns.map(|k| workers.iter().map(|w| w[k]).reduce(&combine).unwrap()).collect()
}

fn workers<T: std::fmt::Debug + Clone>(value: impl Strategy<Value = T> + Clone) -> impl Strategy<Value = Vec<Vec<T>>> {
    (1usize..40, 1usize..40).prop_flat_map(move |(n, count)| vec(vec(value.clone(), count), n))
}

/// Corners and everything between.
fn any_i64() -> impl Strategy<Value = i64> + Clone {
    prop_oneof![any::<i64>(), Just(i64::MIN), Just(i64::MAX), Just(-1), Just(0xffff), Just(0x1_0000), -5i64..5]
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn i32_reductions_are_exact(w in workers(any::<i32>())) {
        let plain = |verb| reduce(&w, 4, i32_to_payload, verb, payload_to_i32);
        let complement = |verb| reduce(&w, 4, i32_to_payload_complement, verb, payload_to_i32_complement);
        prop_assert_eq!(plain(accumulate::add), fold(&w, i32::wrapping_add));
        prop_assert_eq!(plain(accumulate::max), fold(&w, i32::max));
        prop_assert_eq!(plain(accumulate::or), fold(&w, |a, b| a | b));
        prop_assert_eq!(plain(accumulate::xor), fold(&w, |a, b| a ^ b));
        prop_assert_eq!(complement(accumulate::max), fold(&w, i32::min));
        prop_assert_eq!(complement(accumulate::or), fold(&w, |a, b| a & b));
    }

    /// Exact modulo 2^64, against sums in i128.
    #[test]
    fn i64_sums_are_exact(w in workers(any_i64())) {
        let sums = reduce(&w, 16, i64_to_limbs, accumulate::add, limbs_to_i64);
        let wide: Vec<Vec<i128>> = w.iter().map(|v| v.iter().map(|x| i128::from(*x)).collect()).collect();
        let expected: Vec<i64> = fold(&wide, |a, b| a + b).into_iter().map(|sum| sum as i64).collect();
        prop_assert_eq!(sums, expected);
    }

    /// The maximum of floats by IEEE's total order of numbers, bit for bit; a NaN anywhere wins, for Min too.
    #[test]
    fn float_maximum_and_minimum(w in workers(any::<u32>().prop_map(f32::from_bits))) {
        let pick = |wanted: core::cmp::Ordering| fold(&w, |a: f32, b: f32| match (a.is_nan() || b.is_nan(), a.total_cmp(&b)) {
            (true, _) => f32::NAN,
            (false, order) => if order == wanted { a } else { b },
        }).into_iter().map(|x| if x.is_nan() { f32::NAN } else { x }).collect::<Vec<_>>();
        let max = reduce(&w, 4, ordered_f32_to_payload, accumulate::max, payload_to_ordered_f32);
        prop_assert_eq!(bits(&max), bits(&pick(core::cmp::Ordering::Greater)));
        let min = reduce(&w, 4, ordered_f32_to_payload_complement, accumulate::max, payload_to_ordered_f32_complement);
        prop_assert_eq!(bits(&min), bits(&pick(core::cmp::Ordering::Less)));
    }

    /// An all-gather: one owner's bytes, any number of them, through words of zeros.
    #[test]
    fn raw_bytes_survive_an_or(bytes in vec(any::<u8>(), 0..100), owner in 0usize..4) {
        let words = words_for_bytes(bytes.len());
        let mut payloads = vec![vec![0; 4 * words]; 4];
        bytes_to_payload(&bytes, &mut payloads[owner]);
        let mut out = vec![0; bytes.len()];
        payload_to_bytes(&aggregate(&payloads, accumulate::or), &mut out);
        prop_assert_eq!(out, bytes);
    }

    #[test]
    fn byte_and_is_the_or_of_complements(w in workers(any::<u8>())) {
        let words = words_for_bytes(w[0].len());
        let payloads: Vec<_> = w.iter().map(|bytes| {
            let mut payload = vec![0; 4 * words];
            bytes_to_payload_complement(bytes, &mut payload);
            payload
        }).collect();
        let mut out = vec![0; w[0].len()];
        payload_to_bytes_complement(&aggregate(&payloads, accumulate::or), &mut out);
        prop_assert_eq!(out, fold(&w, |a, b| a & b));
    }

    /// The fused last contribution answers as the two steps do, and leaves the same slot.
    #[test]
    fn fused_verbs_equal_their_steps(contribution in vec(any::<u8>(), 0..40), held in vec(any::<i32>(), 40)) {
        type Fused = fn(&[u8], &mut [i32], &mut [u8]);
        let verbs: [(Verb, Fused); 5] = [
            (accumulate::overwrite, accumulate::overwrite_and_emit),
            (accumulate::add, accumulate::add_and_emit),
            (accumulate::max, accumulate::max_and_emit),
            (accumulate::or, accumulate::or_and_emit),
            (accumulate::xor, accumulate::xor_and_emit),
        ];
        let count = contribution.len() / 4;
        for (verb, fused) in verbs {
            let payload = &contribution[..4 * count];
            let (mut one, mut two) = (held[..count].to_vec(), held[..count].to_vec());
            let mut out = vec![0xa5; 4 * count];
            verb(payload, &mut one);
            fused(payload, &mut two, &mut out);
            prop_assert_eq!(&one, &two);
            prop_assert_eq!(out, one.iter().flat_map(|x| x.to_be_bytes()).collect::<Vec<_>>());
        }
    }
}

#[test]
fn float_order_at_the_corners() {
    let ascending = [
        f32::NEG_INFINITY,
        f32::MIN,
        -1.0,
        -f32::MIN_POSITIVE,
        -f32::from_bits(1),
        -0.0,
        0.0,
        f32::from_bits(1),
        f32::MIN_POSITIVE,
        1.0,
        f32::MAX,
        f32::INFINITY,
        f32::NAN,
    ];
    let ranks = |to: fn(&[f32], &mut [u8])| {
        let mut payload = [0; 4 * 13];
        to(&ascending, &mut payload);
        let mut ranks = [0; 13];
        payload_to_i32(&payload, &mut ranks);
        ranks
    };
    assert!(ranks(ordered_f32_to_payload).is_sorted_by(|a, b| a < b));
    // The complement turns the numbers around and leaves NaN on top.
    let complement = ranks(ordered_f32_to_payload_complement);
    assert!(complement[..12].is_sorted_by(|a, b| a > b));
    assert_eq!(complement[12], i32::MAX);
}

#[test]
fn limbs_are_sixteen_bits_least_significant_first() {
    let mut payload = [0; 16];
    i64_to_limbs(&[0x1122_3344_5566_7788], &mut payload);
    assert_eq!(payload, [0, 0, 0x77, 0x88, 0, 0, 0x55, 0x66, 0, 0, 0x33, 0x44, 0, 0, 0x11, 0x22]);
}

/// The most that the limbs promise: 32768 workers that all send -1, whose limb sums still fit i32.
#[test]
fn limbs_hold_32768_workers() {
    let mut payload = [0; 16];
    i64_to_limbs(&[-1], &mut payload);
    let mut slot = [0; 4];
    for _ in 0..32768 {
        accumulate::add(&payload, &mut slot);
    }
    assert!(slot.iter().all(|sum| *sum > 0));
    accumulate::emit(&slot, &mut payload);
    let mut out = [0];
    limbs_to_i64(&payload, &mut out);
    assert_eq!(out, [-32768]);
}

#[test]
fn the_switch_wraps_and_does_not_panic() {
    let mut slot = [i32::MAX, i32::MIN];
    accumulate::add(&[0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff], &mut slot);
    assert_eq!(slot, [i32::MIN, i32::MAX]);
}

#[test]
#[should_panic(expected = "pass matching slices")]
fn a_slot_of_another_length_is_refused() {
    accumulate::add(&[0; 8], &mut [0; 3]);
}
