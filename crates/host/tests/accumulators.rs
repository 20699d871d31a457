//! How the switch adds floats, from memory to memory: every accumulator, float type and operator that has one.
//!
//! The reference is the sum in f64, exact for the few values here; how far a result may be from it is what the accumulator
//! promises.

mod common;

use fanin_host::{Accumulator, AccumulatorCounts, CollectiveKind, DataType, ReduceOp, Session, SessionConfig, Stats};
use fanin_numeric::certificate::Contributions;
use fanin_numeric::float16::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use fanin_numeric::fpisa::Fpisa;
use fanin_numeric::register_pair::FloatFormat;
use fanin_protocol::{atp, switchml};

use common::{Path, World, collective};

const RANKS: u16 = 3;
const LENGTH: usize = 5000;

/// Values of both signs between 2^-7 and 2 in magnitude, with all their bits in use.
fn value(rank: u16, index: usize) -> f32 {
    let hash = (u32::from(rank) * 7919 + index as u32).wrapping_mul(2_654_435_761);
    let fraction = f32::from_bits(0x3f80_0000 | hash >> 9);
    let sign = if hash & 1 == 0 { 1.0 } else { -1.0 };
    sign * fraction * f32::powi(2.0, -((hash >> 1) as i32 & 7))
}

fn bits16(data_type: DataType, value: f32) -> u16 {
    if data_type == DataType::Float16 { f32_to_f16(value) } else { f32_to_bf16(value) }
}

fn widen(data_type: DataType, bits: u16) -> f32 {
    if data_type == DataType::Float16 { f16_to_f32(bits) } else { bf16_to_f32(bits) }
}

/// All ranks' sums of [`value`], widened, and one rank's counters.
fn reduce(path: Path, accumulator: Accumulator, data_type: DataType, operator: ReduceOp) -> (Vec<Vec<f32>>, Stats) {
    let adjust = |config| SessionConfig { accumulator: Some(accumulator), lane_count: Some(2), ..config };
    let world = World::on(path, RANKS);
    let ranks = world.run(adjust, |rank, session| {
        let kind = CollectiveKind::AllReduce;
        let sums = if data_type == DataType::Float32 {
            let input: Vec<f32> = (0..LENGTH).map(|index| value(rank, index)).collect();
            let mut output = vec![0f32; LENGTH];
            collective(&session, kind, data_type, operator, &input, &mut output).expect("completes");
            output
        } else {
            let input: Vec<u16> = (0..LENGTH).map(|index| bits16(data_type, value(rank, index))).collect();
            let mut output = vec![0u16; LENGTH];
            collective(&session, kind, data_type, operator, &input, &mut output).expect("completes");
            output.into_iter().map(|bits| widen(data_type, bits)).collect()
        };
        (sums, session.stats())
    });
    let stats = ranks[0].1.clone();
    (ranks.into_iter().map(|(sums, _)| sums).collect(), stats)
}

fn float_format(data_type: DataType) -> FloatFormat {
    match data_type {
        DataType::Float16 => FloatFormat::Float16,
        DataType::Bfloat16 => FloatFormat::Bfloat16,
        _ => FloatFormat::Float32,
    }
}

/// How far a sum of three of [`value`]'s may be off.
fn bound(path: Path, accumulator: Accumulator, data_type: DataType) -> f64 {
    let contributions = Contributions::bounded(RANKS.into(), 2.0);
    let certify = if path == Path::Atp { atp::certify } else { switchml::certify };
    let promised = certify(accumulator, float_format(data_type), &contributions);
    match accumulator {
        // Nothing is promised, since registers may overflow. But no two exponents differ by more than 7, the least of the
        // limits for left shifts, so nothing is overwritten: NUMERICS.md, section 3, has the bound of 2.4 then, and blocks
        // that overflow are sent again with a smaller one.
        Accumulator::FpisaA => {
            // A part is a number below 4 with an exponent of its own, and may replace what is below 2^-6.
            let replaced = if path == Path::Atp { f64::powi(2.0, -6) } else { 0.0 };
            replaced + Fpisa::paper(float_format(data_type)).certify(&contributions).absolute_error
        }
        // No promise beyond the rounding of each: opposite signs may cancel. Three look-ups of half a step, twice.
        Accumulator::LogTable => 0.05,
        // Sums are float32, and round once more.
        Accumulator::BlockFixed | Accumulator::StaticFixed => {
            promised.absolute_error + f64::powi(2.0, 2 - float_format(data_type).precision() as i32)
        }
        _ => promised.absolute_error,
    }
}

#[test]
fn every_accumulator_keeps_its_promise_with_every_float_type() {
    let of_atp = Accumulator::ALL.into_iter().filter(|accumulator| accumulator.suits_atp());
    let cases = Accumulator::ALL.into_iter().map(|accumulator| (Path::Switch, accumulator));
    for (path, accumulator) in cases.chain(of_atp.map(|accumulator| (Path::Atp, accumulator))) {
        for data_type in [DataType::Float32, DataType::Float16, DataType::Bfloat16] {
            let (ranks, stats) = reduce(path, accumulator, data_type, ReduceOp::Sum);
            let case = format!("{} of {data_type:?} on {path:?}", accumulator.label());
            assert_eq!(stats.accumulator, accumulator.label());
            // Only scaled floats announce exponents, and blocks that are sent again because FPISA-A's registers overflowed.
            if accumulator != Accumulator::BlockFixed {
                let overflowed = stats.blocks_overflowed;
                match path {
                    // What is late goes again, floats too.
                    Path::Atp => assert_eq!(stats.float_resends > 0, overflowed > 0, "{case}"),
                    _ => assert_eq!(stats.announces, overflowed, "{case}"),
                }
                assert!(stats.blocks_overflowed == 0 || accumulator == Accumulator::FpisaA, "{case}");
            }
            for (index, sum) in ranks[0].iter().enumerate() {
                let input = |rank| {
                    let value = value(rank, index);
                    if data_type == DataType::Float32 { value } else { widen(data_type, bits16(data_type, value)) }
                };
                let exact: f64 = (0..RANKS).map(|rank| f64::from(input(rank))).sum();
                let error = (f64::from(*sum) - exact).abs();
                let bound = bound(path, accumulator, data_type);
                assert!(bound < 0.1 && error <= bound, "{case}, element {index}: {sum} for {exact}");
                if accumulator == Accumulator::Exact && data_type == DataType::Float32 {
                    assert_eq!(*sum, exact as f32, "element {index} is the nearest number");
                }
            }
            // FPISA-A overwrites, and look-ups round; but whatever they give, all ranks get it.
            let bits = |sums: &Vec<f32>| sums.iter().map(|sum| sum.to_bits()).collect::<Vec<_>>();
            assert!(ranks.iter().all(|sums| bits(sums) == bits(&ranks[0])), "{case}");
        }
    }
}

#[test]
fn means_are_divided_once() {
    for accumulator in [Accumulator::Ieee, Accumulator::Fpisa, Accumulator::Exact, Accumulator::StaticFixed] {
        for data_type in [DataType::Float32, DataType::Float16, DataType::Bfloat16] {
            let (ranks, _) = reduce(Path::Switch, accumulator, data_type, ReduceOp::Average);
            let (sums, _) = reduce(Path::Atp, accumulator, data_type, ReduceOp::Sum);
            let spacing = f64::powi(2.0, 1 - float_format(data_type).precision() as i32);
            for (mean, sum) in ranks[0].iter().zip(&sums[0]) {
                // The sums of two runs may differ where the order matters.
                let room = 2.0 * bound(Path::Atp, accumulator, data_type) + spacing;
                let error = (f64::from(*mean) - f64::from(*sum) / f64::from(RANKS)).abs();
                assert!(error <= room, "{}: {mean} for {sum} / 3", accumulator.label());
            }
        }
    }
}

/// Everything that is no sum of floats takes the ways it always took.
#[test]
fn other_collectives_do_not_notice_the_accumulator() {
    let of_atp = [(Path::Atp, Accumulator::Fpisa), (Path::Atp, Accumulator::Exact)];
    for (path, accumulator) in Accumulator::ALL.map(|accumulator| (Path::Switch, accumulator)).into_iter().chain(of_atp)
    {
        let adjust = |config| SessionConfig { accumulator: Some(accumulator), ..config };
        World::on(path, RANKS).run(adjust, |rank, session| {
            let mut longs: Vec<i64> = (0..999).map(|index| index << 33 | i64::from(rank)).collect();
            session.all_reduce(&mut longs, ReduceOp::Sum).expect("completes");
            assert!(longs.iter().enumerate().all(|(index, sum)| *sum == 3 * ((index as i64) << 33) + 3));
            let mut largest = vec![f32::from(rank), -f32::from(rank)];
            session.all_reduce(&mut largest, ReduceOp::Max).expect("completes");
            assert_eq!(largest, [2.0, 0.0]);
            let mut all = vec![0u8; 30];
            let kind = CollectiveKind::AllGather;
            let mine = [rank as u8; 10];
            collective(&session, kind, DataType::Bytes, ReduceOp::Sum, &mine, &mut all).expect("completes");
            assert!(all.iter().enumerate().all(|(index, byte)| usize::from(*byte) == index / 10));
            session.barrier().expect("completes");
        });
    }
}

/// Sums beyond +-21.47 leave static-fixed's 32 bits: those blocks go again, and come out as block fixed point has them, also
/// where one rank alone gets the elements.
#[test]
fn blocks_that_overflow_are_sent_again_and_reported() {
    let adjust = |config| SessionConfig {
        accumulator: Some(Accumulator::StaticFixed),
        element_count: Some(256),
        loss: Some((0.01, 11)),
        ..config
    };
    let stats = World::new(RANKS).run(adjust, |rank, session| {
        let large = |index: usize| if (1000..1010).contains(&index) { 30.0 + index as f32 } else { 0.5 };
        let mut values: Vec<f32> = (0..20_000).map(large).collect();
        let outcome = session.all_reduce(&mut values, ReduceOp::Sum).expect("completes");
        assert_eq!(outcome.overflowed_elements, 10);
        assert!(values.iter().enumerate().all(|(index, sum)| *sum == 3.0 * large(index)), "rank {rank}");
        let input: Vec<f32> = (0..3 * 300).map(|index| if index == 650 { 40.0 } else { 1.0 }).collect();
        let mut part = vec![0f32; 300];
        let kind = CollectiveKind::ReduceScatter;
        collective(&session, kind, DataType::Float32, ReduceOp::Sum, &input, &mut part).expect("completes");
        assert!(part.iter().enumerate().all(|(at, sum)| *sum == if (rank, at) == (2, 50) { 120.0 } else { 3.0 }));
        session.stats()
    });
    // Elements 1000 to 1009 lie in one block, 650 in another. Those who do not get a sum are told as well.
    assert!(stats.iter().all(|stats| (stats.blocks_overflowed, stats.elements_overflowed) == (2, 11)), "{stats:?}");
}

/// FPISA-A keeps the larger of 2^20 and 2^-20, whichever comes first, and the switch says so to whoever asks, and of which tensor.
#[test]
fn what_the_switch_has_met_can_be_asked_for() {
    let adjust = |accumulator| move |config| SessionConfig { accumulator, ..config };
    for path in [Path::Switch, Path::Atp] {
        let world = World::on(path, 2);
        world.run(adjust(Some(Accumulator::FpisaA)), |rank, session| {
            let counts = counts_of_three_tensors(rank, &session);
            let total = counts.total;
            assert_eq!((total.overwrite + total.flushed_to_zero, total.overflow), (100, 0), "{path:?}: {counts:?}");
            let names: Vec<&str> = counts.tensors.iter().map(|(name, _)| name.as_str()).collect();
            // The worst first, the one that met nothing not at all, and two steps of a tensor are one row.
            assert_eq!(names, ["all_reduce float32 x 100 sum", "all_reduce float16 x 70 sum"], "{path:?}: {counts:?}");
            let [(_, replaced), (_, shortened)] = counts.tensors[..] else { panic!("{counts:?}") };
            assert_eq!(replaced.overwrite + replaced.flushed_to_zero, 100, "{path:?}: {counts:?}");
            assert_eq!((shortened.overwrite, shortened.flushed_to_zero), (0, 0), "{path:?}: {counts:?}");
            assert_eq!(shortened.left_shift + shortened.lost_bits, 2 * 70, "{path:?}: {counts:?}");
            if rank == 0 {
                let sample = |name: &str| format!("tensor=\"{name}\",cause=");
                // Names come with the next report.
                within(|| world.get("/metrics").contains(&sample(names[0])));
                let (metrics, status) = (world.get("/metrics"), world.get("/api/status"));
                assert!(metrics.contains(&sample(names[1])) && !metrics.contains("float32 x 60"), "{metrics}");
                assert!(names.iter().all(|name| status.contains(&format!("\"name\":\"{name}\""))), "{status}");
            }
            session.barrier().expect("completes");
        });
    }
    World::new(1).run(adjust(None), |_, session| assert!(matches!(session.accumulator_counts(), Ok(None))));
}

fn counts_of_three_tensors(rank: u16, session: &Session) -> AccumulatorCounts {
    let mut replaced = vec![2f32.powi(if rank == 0 { 20 } else { -20 }); 100];
    session.all_reduce(&mut replaced, ReduceOp::Sum).expect("completes");
    let mut harmless = vec![1.5f32; 60];
    session.all_reduce(&mut harmless, ReduceOp::Sum).expect("completes");
    for _ in 0..2 {
        // 1 and 2: the larger one's mantissa moves one place into the headroom if it comes last, else the smaller one's last bit
        // is dropped.
        let input = [f32_to_f16(if rank == 0 { 2.0 } else { 1.0 + 2f32.powi(-10) }); 70];
        let (kind, data_type) = (CollectiveKind::AllReduce, DataType::Float16);
        collective(session, kind, data_type, ReduceOp::Sum, &input, &mut vec![0u16; 70]).expect("completes");
    }
    // At once all there is to count is there, unless a thread of the switch does not get to answer on a busy machine.
    let counts = || session.accumulator_counts().expect("the switch answers").expect("it counts");
    let shortened = |met: &fanin_numeric::Telemetry| met.left_shift + met.lost_bits == 2 * 70;
    within(|| matches!(&counts().tensors[..], [_, (_, met)] if shortened(met)));
    counts()
}

fn within(mut holds: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !holds() {
        assert!(std::time::Instant::now() < deadline, "not within thirty seconds");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// What ATP's server has made again of floats is looked at as well.
#[test]
fn what_is_not_finite_is_counted_in_blocks_that_were_made_again() {
    for (accumulator, large) in [(None, 1e6), (Some(Accumulator::Fpisa), 3e38)] {
        let adjust = |config| SessionConfig { accumulator, ..config };
        World::on(Path::Atp, RANKS).run(adjust, |rank, session| {
            let mut values = vec![1.0f32; 20_000];
            // In one block what may leave the format and cancels, so that the sum is a number; in another one what does, and a NaN beside it.
            (values[10], values[15_000]) = ([large, large, -large][usize::from(rank)], large);
            values[15_001] = if rank == 1 { f32::NAN } else { 1.0 };
            let outcome = session.all_reduce(&mut values, ReduceOp::Sum).expect("completes");
            assert!(outcome.overflowed_elements >= 1, "{accumulator:?}: {outcome:?}");
            assert_eq!(outcome.non_finite_blocks, 1, "{accumulator:?}: {outcome:?}");
            assert_eq!(session.stats().blocks_non_finite, 1);
            assert!(values[15_001].is_nan() && values[10].is_finite() && values[15_002] == 3.0);
        });
    }
}

/// Infinities and NaN stay with their element, and are counted.
#[test]
fn what_is_not_finite_stays_where_it_is() {
    use Accumulator::{Exact, Fpisa, FpisaA, Ieee};
    let cases = [Ieee, Fpisa, FpisaA, Exact].map(|accumulator| (Path::Switch, accumulator));
    for (path, accumulator) in cases.into_iter().chain([(Path::Atp, Fpisa), (Path::Atp, Exact)]) {
        let adjust = |config| SessionConfig { accumulator: Some(accumulator), ..config };
        World::on(path, RANKS).run(adjust, |rank, session| {
            let mut values = vec![1.0f32; 600];
            if rank == 1 {
                (values[7], values[8]) = (f32::INFINITY, f32::NAN);
            }
            let outcome = session.all_reduce(&mut values, ReduceOp::Sum).expect("completes");
            assert_eq!((outcome.non_finite_blocks, outcome.overflowed_elements), (1, 0), "{}", accumulator.label());
            assert_eq!(values[7], f32::INFINITY);
            assert!(values[8].is_nan());
            assert!(values.iter().enumerate().all(|(index, sum)| index == 7 || index == 8 || *sum == 3.0));
        });
    }
}

/// In parts under ATP: what is sent again takes along what a slot holds, or, exact, goes alone.
#[test]
fn losses_are_recovered_with_raw_floats() {
    let accumulators = [Accumulator::Fpisa, Accumulator::Ieee, Accumulator::Exact];
    for (path, accumulator) in [Path::Switch, Path::Atp].into_iter().flat_map(|path| accumulators.map(|it| (path, it)))
    {
        let (accumulator, loss) = (Some(accumulator), Some((0.02, 7)));
        let adjust = move |config| SessionConfig { accumulator, loss, element_count: Some(256), ..config };
        let resends = World::on(path, RANKS).run(adjust, |rank, session| {
            let mut values: Vec<f32> = (0..100_000).map(|index| f32::from(rank) + (index % 64) as f32).collect();
            session.all_reduce(&mut values, ReduceOp::Sum).expect("completes");
            assert!(values.iter().enumerate().all(|(index, sum)| *sum == 3.0 + 3.0 * (index % 64) as f32));
            session.stats().resends
        });
        assert!(resends.iter().sum::<u64>() > 0, "two per cent of losses need resends");
    }
}

/// A host's ranks would add in an order and with roundings of their own, so each talks to the switch.
#[test]
fn ranks_of_one_host_do_not_sum_before_the_switch() {
    let adjust = |config| SessionConfig { accumulator: Some(Accumulator::Exact), ..config };
    World::on(Path::SharedMemory, RANKS).run(adjust, |rank, session| {
        assert_eq!(session.transport(), "udp");
        // Float additions lose the 1 wherever a large one comes before it: in two of the three elements, in any order.
        let mut values = vec![1e8f32, 1.0, -1e8];
        values.rotate_left(rank.into());
        session.all_reduce(&mut values, ReduceOp::Sum).expect("completes");
        assert_eq!(values, [1.0; 3]);
    });
}

/// Under ATP what leaves the accumulator's format comes as floats, added as binary64: right, and reported.
#[test]
fn sums_that_overflow_under_atp_come_as_floats() {
    let huge = f32::from_bits(0x7f00_0000);
    let adjust =
        |accumulator| move |config| SessionConfig { accumulator: Some(accumulator), element_count: Some(64), ..config };
    // -2^127 last: two registers of 2^127 are one carry away from the end.
    for accumulator in [Accumulator::Fpisa, Accumulator::LogTable] {
        let stats = World::on(Path::Atp, RANKS).run(adjust(accumulator), |rank, session| {
            let large = if accumulator == Accumulator::LogTable { 2f32.powi(33) } else { huge };
            let mut values = vec![1.0; 640];
            values[70] = if rank == 2 { -large } else { large };
            values[71] = if accumulator == Accumulator::LogTable { large } else { 1.0 };
            let outcome = session.all_reduce(&mut values, ReduceOp::Sum).expect("completes");
            assert_eq!(values[70], large);
            assert!(values.iter().enumerate().all(|(at, sum)| (70..72).contains(&at) || (sum - 3.0).abs() < 0.02));
            (outcome.overflowed_elements, session.stats())
        });
        // Each element once: 71, and 70 if the negative one did not come in time.
        let is_told = |(elements, stats): &(u64, Stats)| (1..=2).contains(elements) && stats.blocks_overflowed == 1;
        assert!(accumulator == Accumulator::Fpisa || stats.iter().all(is_told), "{stats:?}");
    }
    // Native addition has no way back from an infinity; floats have.
    let sums = World::on(Path::Atp, RANKS).run(adjust(Accumulator::Ieee), |rank, session| {
        let mut values = vec![if rank == 2 { -3e38 } else { 3e38 }; 100];
        let outcome = session.all_reduce(&mut values, ReduceOp::Sum).expect("completes");
        (values, outcome.overflowed_elements)
    });
    for (values, elements) in sums {
        assert!(values.iter().all(|sum| *sum == 3e38) || elements == 0, "{elements}: {values:?}");
        assert!(values.iter().all(|sum| sum.is_finite()), "{elements}: {values:?}");
    }
    // 3 x 40,000 is more than binary16 holds, wherever it is added up, and a third of it is not. An element is one however many have
    // found it infinite.
    let accumulators = [Accumulator::Fpisa, Accumulator::FpisaA, Accumulator::Ieee, Accumulator::LogTable];
    for accumulator in accumulators {
        let means = World::on(Path::Atp, RANKS).run(adjust(accumulator), |_, session| {
            let (input, mut output) = (vec![f32_to_f16(40_000.0); 100], vec![0u16; 100]);
            let (kind, operator) = (CollectiveKind::AllReduce, ReduceOp::Average);
            collective(&session, kind, DataType::Float16, operator, &input, &mut output).expect("completes");
            let stats = session.stats();
            let values: Vec<_> = output.into_iter().map(f16_to_f32).collect();
            (values, stats.blocks_overflowed, stats.elements_overflowed)
        });
        for told in means {
            assert_eq!(told, (vec![40_000.0; 100], 2, 100), "{}", accumulator.label());
        }
    }
}

/// A slot and few of them: most is added at the server, a part in the switch, and the sum is the nearest number all the same.
#[test]
fn exact_sums_are_exact_whoever_adds_them() {
    let mut config = fanin_switch::Config::local(std::net::Ipv4Addr::LOCALHOST.into());
    config.data.atp_slot_count = 4;
    let adjust = |config| SessionConfig {
        accumulator: Some(Accumulator::Exact),
        element_count: Some(64),
        loss: Some((0.01, 3)),
        ..config
    };
    let worlds = World::around(&config, Path::Atp, RANKS);
    let ranks = worlds.run(adjust, |rank, session| {
        let scale = |index: usize| f32::powi(2.0, (index % 60) as i32 - 30 * i32::from(rank));
        let input: Vec<f32> = (0..20_000).map(|index| value(rank, index) * scale(index)).collect();
        let mut output = input.clone();
        session.all_reduce(&mut output, ReduceOp::Sum).expect("completes");
        (input, output)
    });
    for index in 0..20_000 {
        let exact: f64 = ranks.iter().map(|(input, _)| f64::from(input[index])).sum();
        // Rounded once as f64, which is far finer: a tie of that is not met.
        assert!(ranks.iter().all(|(_, output)| output[index] == exact as f32), "element {index}: {exact}");
    }
}

/// float16 ends at 65,504: a larger sum is infinite, and a mean where the sum itself travels as float16.
#[test]
fn sums_that_float16_does_not_hold_are_infinite_and_means_depend_on_the_accumulator() {
    let reduced = |accumulator: Accumulator, value: f32, operator: ReduceOp| {
        let adjust = |config| SessionConfig { accumulator: Some(accumulator), ..config };
        let results = World::new(2).run(adjust, |_, session| {
            let mut output = vec![0u16];
            let (kind, input) = (CollectiveKind::AllReduce, [f32_to_f16(value)]);
            collective(&session, kind, DataType::Float16, operator, &input, &mut output).expect("completes");
            f16_to_f32(output[0])
        });
        results[0]
    };
    for accumulator in Accumulator::ALL {
        let sum = reduced(accumulator, 60_000.0, ReduceOp::Sum);
        assert_eq!(sum, f32::INFINITY, "{}", accumulator.label());
        let travels = matches!(accumulator, Accumulator::Ieee | Accumulator::Exact | Accumulator::LogTable);
        let mean = reduced(accumulator, 40_000.0, ReduceOp::Average);
        assert_eq!(mean, if travels { f32::INFINITY } else { 40_000.0 }, "{}", accumulator.label());
    }
}

/// Logarithms of 16 bits end at 2^32.8. However often a sum leaves them it is one element, and a value that is the sum as it is
/// is none.
#[test]
fn sums_beyond_the_tables_are_counted_by_element() {
    let adjust = |config| SessionConfig { accumulator: Some(Accumulator::LogTable), ..config };
    World::new(RANKS).run(adjust, |rank, session| {
        let mut alone = vec![if rank == 0 { 2f32.powi(40) } else { 0.0 }; 5];
        let outcome = session.all_reduce(&mut alone, ReduceOp::Sum).expect("completes");
        assert_eq!((alone, outcome.overflowed_elements), (vec![2f32.powi(40); 5], 0));
        let mut together = vec![1.0, 2f32.powi(33), if rank == 0 { -2f32.powi(40) } else { 2f32.powi(38) }];
        let outcome = session.all_reduce(&mut together, ReduceOp::Sum).expect("completes");
        assert_eq!(outcome.overflowed_elements, 2);
        // As block fixed point has them, with steps of 2^11.
        assert_eq!(together[1..], [3.0 * 2f32.powi(33), -2f32.powi(39)]);
        assert!(together[0].abs() <= 3.0 * 2048.0);
    });
}

#[test]
fn a_tolerance_chooses_the_cheapest_accumulator_that_keeps_it() {
    let chosen = |tolerance: f64| {
        let adjust = move |config| SessionConfig { tolerance: Some(tolerance), ..config };
        World::new(RANKS).run(adjust, |_, session| session.stats().accumulator)[0]
    };
    assert_eq!(chosen(1e-5), "ieee");
    assert_eq!(chosen(2e-7), "block-fixed");
    // The sum of three numbers just above 4/3 each is rounded to a multiple of 2^-21.
    assert_eq!(chosen(1.8e-7), "exact");
    let of_atp = |tolerance: f64| {
        let adjust = move |config| SessionConfig { tolerance: Some(tolerance), ..config };
        World::on(Path::Atp, RANKS).run(adjust, |_, session| session.stats().accumulator)[0]
    };
    assert_eq!((of_atp(1e-5), of_atp(1.8e-7)), ("ieee", "exact"));
}

#[test]
fn settings_that_cannot_work_are_refused_with_what_to_do() {
    let world = World::new(2);
    let refused = |config: SessionConfig| fanin_host::Session::connect(config).err().expect("is refused").message;
    let base = || world.config(0);
    let cases = [
        (SessionConfig { tolerance: Some(1e-9), ..base() }, "Ask for a tolerance of"),
        (SessionConfig { tolerance: Some(f64::NAN), ..base() }, "Ask for a tolerance of"),
        (
            SessionConfig { tolerance: Some(f64::NAN), accumulator: Some(Accumulator::Ieee), ..base() },
            "ask for a tolerance of",
        ),
        (
            SessionConfig { tolerance: Some(1e-9), accumulator: Some(Accumulator::Ieee), ..base() },
            "no accumulator keeps that; ask for a tolerance of",
        ),
        (
            SessionConfig { tolerance: Some(1e-6), accumulator: Some(Accumulator::FpisaA), ..base() },
            "fpisa-a promises no largest error, and 1e-6 is asked for: leave the accumulator out",
        ),
        (
            SessionConfig { tolerance: Some(1e-6), element_format: fanin_host::ElementFormat::Int8, ..base() },
            "or the tolerance out",
        ),
        (
            SessionConfig { tolerance: Some(1e-6), accumulator: Some(Accumulator::LogTable), ..base() },
            "leave the accumulator out",
        ),
        (
            SessionConfig {
                accumulator: Some(Accumulator::Ieee),
                element_format: fanin_host::ElementFormat::Int8,
                ..base()
            },
            "leave the element format at int32",
        ),
        (
            SessionConfig {
                accumulator: Some(Accumulator::Ieee),
                wire_format: fanin_host::WireFormat::P4app,
                ..base()
            },
            "use the wire format fanin",
        ),
        (
            SessionConfig {
                accumulator: Some(Accumulator::BlockFixed),
                algorithm: fanin_host::Algorithm::Atp,
                ..base()
            },
            "leave the accumulator out",
        ),
        (
            SessionConfig {
                accumulator: Some(Accumulator::Ieee),
                algorithm: fanin_host::Algorithm::Atp,
                atp_scale: fanin_host::Scale::Dynamic,
                ..base()
            },
            "leave atp_scale at `static`",
        ),
    ];
    for (config, hint) in cases {
        let message = refused(config);
        assert!(message.contains(hint), "{message}");
    }
}

#[test]
fn ranks_that_disagree_are_told() {
    let world = World::new(2);
    let of = |rank| if rank == 0 { Accumulator::Ieee } else { Accumulator::Fpisa };
    let errors: Vec<_> = std::thread::scope(|scope| {
        let join = |rank| {
            let config = SessionConfig {
                accumulator: Some(of(rank)),
                join_timeout: std::time::Duration::from_secs(2),
                ..world.config(rank)
            };
            scope.spawn(move || fanin_host::Session::connect(config).err().map(|error| error.message))
        };
        let threads: Vec<_> = (0..2).map(join).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    });
    let told = errors.iter().flatten().any(|message| message.contains("disagree on accumulator"));
    assert!(told, "{errors:?}");
}
