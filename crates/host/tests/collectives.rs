//! Every collective over a real switch on loopback, against sums computed here.

mod common;

use std::time::Duration;

use common::{Path, World, collective};
use fanin_host::{CollectiveKind, DataType, ElementFormat, ReduceOp, Request, SessionConfig, Transport, WireFormat};

const RANKS: u16 = 3;

fn value(rank: u16, index: usize) -> f32 {
    ((index * 37 + usize::from(rank) * 101) % 1000) as f32 / 8.0 - 60.0
}

fn all_reduce_f32(adjust: impl Fn(SessionConfig) -> SessionConfig + Sync, lengths: &[usize], tolerance: f32) -> u64 {
    all_reduce_f32_in(World::new(RANKS), adjust, lengths, tolerance)
}

fn all_reduce_f32_in(
    world: World,
    adjust: impl Fn(SessionConfig) -> SessionConfig + Sync,
    lengths: &[usize],
    tolerance: f32,
) -> u64 {
    let resends = world.run(adjust, |rank, session| {
        for &length in lengths {
            let input: Vec<f32> = (0..length).map(|index| value(rank, index)).collect();
            let mut output = vec![0f32; length];
            let kind = CollectiveKind::AllReduce;
            collective(&session, kind, DataType::Float32, ReduceOp::Sum, &input, &mut output).expect("completes");
            for (index, sum) in output.iter().enumerate() {
                let expected: f32 = (0..RANKS).map(|rank| value(rank, index)).sum();
                assert!((sum - expected).abs() <= tolerance, "element {index} of {length}: {sum}, not {expected}");
            }
        }
        session.stats().resends
    });
    resends.into_iter().sum()
}

#[test]
fn all_reduce_sums_tensors_of_any_length() {
    for world in World::on_each_path(RANKS) {
        all_reduce_f32_in(world, |config| config, &[1, 31, 2048, 2049, 100_000, 1_000_003], 1e-3);
    }
}

#[test]
fn small_packets_and_several_lanes_give_the_same_sums() {
    let adjust =
        |config| SessionConfig { element_count: Some(64), lane_count: Some(3), slots_per_lane: Some(16), ..config };
    all_reduce_f32(adjust, &[1, 63, 64, 65, 10_000, 7], 1e-3);
}

#[test]
fn sums_come_by_multicast_where_the_network_carries_it_and_by_unicast_elsewhere() {
    for multicast in [true, false] {
        let world = World::new(RANKS);
        let adjust = |config| SessionConfig { multicast, lane_count: Some(2), ..config };
        let lanes = world.run(adjust, |rank, session| {
            let input = vec![f32::from(rank); 50_000];
            let mut output = vec![0f32; input.len()];
            let kind = CollectiveKind::AllReduce;
            collective(&session, kind, DataType::Float32, ReduceOp::Sum, &input, &mut output).expect("completes");
            assert!(output.iter().all(|&sum| sum == 3.0));
            let stats = session.stats();
            // One copy of each sum, whichever way it came.
            assert!(stats.datagrams_received < 2 * stats.contributions, "{stats:?}");
            stats.multicast_lane_count
        });
        if !multicast {
            assert_eq!(lanes, [0; RANKS as usize]);
        } else if lanes == [0; RANKS as usize] {
            println!("SKIPPED: loopback carries no multicast here");
        } else {
            assert_eq!(lanes, [2; RANKS as usize]);
        }
    }
}

#[test]
fn losses_are_recovered() {
    let adjust = |config| SessionConfig { element_count: Some(256), loss: Some((0.02, 7)), ..config };
    let resends = all_reduce_f32(adjust, &[200_000, 5, 100_000], 1e-3);
    assert!(resends > 0, "two per cent of losses need resends");
}

#[test]
fn halves_on_the_wire_keep_eleven_bits() {
    let adjust = |config| SessionConfig { element_format: ElementFormat::Float16, ..config };
    all_reduce_f32(adjust, &[10_000, 3], 0.25);
}

#[test]
fn bfloats_on_the_wire_keep_eight_bits() {
    let adjust = |config| SessionConfig { element_format: ElementFormat::Bfloat16, ..config };
    // Half of 2^-7 for each worker's rounding of up to 65, and for the sum's of up to 195.
    all_reduce_f32(adjust, &[10_000, 3], 3.0 * 0.25 + 0.5);
}

#[test]
fn bytes_on_the_wire_keep_the_steps_of_a_block() {
    let adjust = |config| SessionConfig { element_format: ElementFormat::Int8, lane_count: Some(2), ..config };
    // Values below 128 have steps of 1: half of one per worker, and half of 2^2 for the sum.
    all_reduce_f32(adjust, &[10_000, 3, 4097], 3.0 * 0.5 + 2.0);
}

/// A datagram of 704 halves or 1408 bytes carries 352 words, and all three share the job's slots.
#[test]
fn narrow_formats_fill_packets_and_words_still_fit() {
    for (element_format, element_count) in [(ElementFormat::Float16, 704), (ElementFormat::Int8, 1408)] {
        let adjust = |config| SessionConfig { element_format, element_count: Some(element_count), ..config };
        World::new(RANKS).run(adjust, |rank, session| {
            let packets = || session.stats().contributions - session.stats().announces;
            session.all_reduce(&mut vec![1f32; 20_000], ReduceOp::Sum).expect("completes");
            let sum_packets = 20_000u64.div_ceil(element_count.into());
            assert_eq!(packets(), sum_packets);
            let mut longs: Vec<i64> = (0..3001).map(|index| index << 33 | i64::from(rank)).collect();
            session.all_reduce(&mut longs, ReduceOp::Sum).expect("completes");
            for (index, sum) in longs.iter().enumerate() {
                assert_eq!(*sum, 3 * ((index as i64) << 33) + 3, "element {index}");
            }
            // Four words each, 352 to a packet.
            assert_eq!(packets(), sum_packets + (4 * 3001u64).div_ceil(352));
            let mut words: Vec<i32> = (0..3001).map(|index| index + i32::from(rank)).collect();
            session.all_reduce(&mut words, ReduceOp::Max).expect("completes");
            assert!(words.iter().enumerate().all(|(index, largest)| *largest == index as i32 + 2));
        });
    }
}

#[test]
fn the_p4app_layout_sums_too() {
    let adjust = |config| SessionConfig { wire_format: WireFormat::P4app, ..config };
    all_reduce_f32(adjust, &[10_000, 3, 257], 1e-3);
}

#[test]
fn integers_are_exact_under_every_operator() {
    use ReduceOp::{BitAnd, BitOr, BitXor, Max, Min, Sum};
    let at = |rank: u16, index: usize| (index as i32).wrapping_mul(2_654_435_761u32 as i32) ^ (i32::from(rank) << 7);
    World::on_each_path(RANKS).for_each(|world| {
        world.run(
            |config| config,
            |rank, session| {
                for operator in [Sum, Max, Min, BitAnd, BitOr, BitXor] {
                    let input: Vec<i32> = (0..5000).map(|index| at(rank, index)).collect();
                    let mut output = vec![0i32; 5000];
                    let kind = CollectiveKind::AllReduce;
                    collective(&session, kind, DataType::Int32, operator, &input, &mut output).expect("completes");
                    for (index, &result) in output.iter().enumerate() {
                        let all = (0..RANKS).map(|rank| at(rank, index));
                        let expected = match operator {
                            Max => all.max(),
                            Min => all.min(),
                            BitAnd => all.reduce(|a, b| a & b),
                            BitOr => all.reduce(|a, b| a | b),
                            BitXor => all.reduce(|a, b| a ^ b),
                            _ => all.reduce(i32::wrapping_add),
                        };
                        assert_eq!(Some(result), expected, "{operator:?} of element {index}");
                    }
                }
            },
        );
    });
}

#[test]
fn sixty_four_bit_sums_carry() {
    let at = |rank: u16, index: usize| (index as i64).wrapping_mul(0x1234_5678_9abc_def1) - i64::from(rank);
    World::on_each_path(RANKS).for_each(|world| {
        world.run(
            |config| config,
            |rank, session| {
                let input: Vec<i64> = (0..3001).map(|index| at(rank, index)).collect();
                let mut output = vec![0i64; 3001];
                let kind = CollectiveKind::AllReduce;
                collective(&session, kind, DataType::Int64, ReduceOp::Sum, &input, &mut output).expect("completes");
                for (index, &sum) in output.iter().enumerate() {
                    assert_eq!(Some(sum), (0..RANKS).map(|rank| at(rank, index)).reduce(i64::wrapping_add));
                }
            },
        );
    });
}

#[test]
fn parts_go_where_they_belong() {
    const PART: usize = 2500;
    let whole = PART * usize::from(RANKS);
    World::on_each_path(RANKS).for_each(|world| {
        world.run(
            |config| config,
            |rank, session| {
                let input: Vec<f32> = (0..whole).map(|index| value(rank, index)).collect();
                let mut part = vec![0f32; PART];
                let scatter = CollectiveKind::ReduceScatter;
                collective(&session, scatter, DataType::Float32, ReduceOp::Average, &input, &mut part)
                    .expect("completes");
                for (index, mean) in part.iter().enumerate() {
                    let at = usize::from(rank) * PART + index;
                    let expected = (0..RANKS).map(|rank| value(rank, at)).sum::<f32>() / f32::from(RANKS);
                    assert!((mean - expected).abs() < 1e-3, "element {index} of part {rank}");
                }
                let own: Vec<f32> = (0..PART).map(|index| value(rank, index)).collect();
                let mut all = vec![0f32; whole];
                let gather = CollectiveKind::AllGather;
                collective(&session, gather, DataType::Float32, ReduceOp::Sum, &own, &mut all).expect("completes");
                for (index, &got) in all.iter().enumerate() {
                    assert_eq!(got, value((index / PART) as u16, index % PART), "gathered element {index}");
                }
            },
        );
    });
}

#[test]
fn roots_send_and_receive() {
    World::on_each_path(RANKS).for_each(|world| {
        world.run(
            |config| config,
            |rank, session| {
                let input: Vec<u8> = (0..1003).map(|index| (index % 251) as u8 ^ rank as u8).collect();
                let mut output = vec![0u8; 1003];
                let broadcast = CollectiveKind::Broadcast { root: 2 };
                collective(&session, broadcast, DataType::Bytes, ReduceOp::Sum, &input, &mut output)
                    .expect("completes");
                assert!(output.iter().enumerate().all(|(index, &byte)| byte == (index % 251) as u8 ^ 2));
                let ones = vec![1i32; 700];
                let mut sum = vec![0i32; 700];
                let reduce = CollectiveKind::Reduce { root: 1 };
                collective(&session, reduce, DataType::Int32, ReduceOp::Sum, &ones, &mut sum).expect("completes");
                assert!(sum.iter().all(|&sum| sum == if rank == 1 { i32::from(RANKS as u8) } else { 0 }));
                let nothing: [u8; 0] = [];
                let kind = CollectiveKind::Barrier;
                collective(&session, kind, DataType::Bytes, ReduceOp::Sum, &nothing, &mut Vec::<u8>::new())
                    .expect("ends");
            },
        );
    });
}

#[test]
fn a_block_with_infinity_is_reported_and_not_hidden() {
    World::new(RANKS).run(
        |config| SessionConfig { element_count: Some(32), ..config },
        |rank, session| {
            let mut input = vec![1f32; 96];
            if rank == 1 {
                input[40] = f32::INFINITY;
            }
            let mut output = vec![0f32; 96];
            let kind = CollectiveKind::AllReduce;
            collective(&session, kind, DataType::Float32, ReduceOp::Sum, &input, &mut output).expect("completes");
            assert!(output[32..64].iter().all(|value| value.is_nan()), "the block of element 40");
            assert!(output[..32].iter().chain(&output[64..]).all(|&value| value == f32::from(RANKS)));
            assert_eq!(session.stats().blocks_non_finite, 1);
        },
    );
}

/// Parts lie at the same place of every rank's output, so a block of another rank's part has a place there that is not its own.
#[test]
fn a_nan_stays_out_of_the_outputs_of_those_who_do_not_receive_it() {
    const PART: usize = 96;
    let sum = f32::from(RANKS);
    World::new(RANKS).run(
        |config| SessionConfig { element_count: Some(32), ..config },
        |rank, session| {
            let mut input = vec![1f32; PART * usize::from(RANKS)];
            if rank == 1 {
                // In the first block of the last part.
                input[PART * usize::from(RANKS - 1)] = f32::NAN;
            }
            let mut part = vec![0f32; PART];
            let scatter = CollectiveKind::ReduceScatter;
            collective(&session, scatter, DataType::Float32, ReduceOp::Sum, &input, &mut part).expect("completes");
            let (first, others) = part.split_at(32);
            assert!(
                first.iter().all(|value| if rank == RANKS - 1 { value.is_nan() } else { *value == sum }),
                "{first:?}"
            );
            assert!(others.iter().all(|value| *value == sum), "{others:?}");

            let (root, kept) = (1, vec![7f32; input.len()]);
            let mut output = kept.clone();
            let reduce = CollectiveKind::Reduce { root };
            collective(&session, reduce, DataType::Float32, ReduceOp::Sum, &input, &mut output).expect("completes");
            assert!(rank == root || output == kept, "rank {rank} has no place for the sum");
            let non_finite = output.iter().filter(|value| value.is_nan()).count();
            assert_eq!(non_finite, if rank == root { 32 } else { 0 });
        },
    );
}

#[test]
fn threads_submit_side_by_side_to_sessions_of_their_own() {
    let worlds = [World::new(RANKS), World::new(RANKS)];
    std::thread::scope(|scope| {
        for world in &worlds {
            scope.spawn(|| {
                world.run(
                    |config| SessionConfig { collective_timeout: Duration::from_secs(30), ..config },
                    |_, session| {
                        for round in 0..50 {
                            let input = vec![round; 4000];
                            let mut output = vec![0i32; 4000];
                            let kind = CollectiveKind::AllReduce;
                            collective(&session, kind, DataType::Int32, ReduceOp::Sum, &input, &mut output)
                                .expect("completes");
                            assert!(output.iter().all(|&sum| sum == round * i32::from(RANKS as u8)));
                        }
                    },
                );
            });
        }
    });
}

#[test]
fn every_rank_gets_the_same_bytes_whatever_the_path() {
    for world in World::on_each_path(5) {
        let sums = world.run(
            |config| config,
            |rank, session| {
                let input: Vec<f32> = (0..300_007).map(|index| value(rank, index) * 1.000_123).collect();
                let mut output = vec![0f32; input.len()];
                let kind = CollectiveKind::AllReduce;
                collective(&session, kind, DataType::Float32, ReduceOp::Average, &input, &mut output).expect("ends");
                output.iter().map(|value| value.to_bits()).collect::<Vec<u32>>()
            },
        );
        assert!(sums.iter().all(|sum| *sum == sums[0]));
    }
}

#[test]
fn sessions_say_what_carries_them() {
    let transport = |path| World::on(path, 4).run(|config| config, |_, session| session.stats().transport);
    assert_eq!(transport(Path::Switch), ["udp"; 4]);
    assert_eq!(transport(Path::SharedMemory), ["shared memory"; 4]);
    assert_eq!(transport(Path::TwoHosts), ["shared memory and udp"; 4]);
    let mixed = World::on(Path::SharedMemory, 2).run(
        |config| if config.rank == 1 { SessionConfig { transport: Transport::Udp, ..config } } else { config },
        |_, session| session.stats().transport,
    );
    assert_eq!(mixed, ["udp"; 2], "one rank decides for all");
}

#[test]
fn registered_memory_is_summed_where_it_lies() {
    for world in World::on_each_path(RANKS) {
        let registered = world.run(
            |config| config,
            |rank, session| {
                let mut buffer = session.allocate(8 * 200_001).expect("there is as much memory");
                for (index, word) in buffer.as_mut_words().iter_mut().enumerate() {
                    *word = (index as u64) << 8 | u64::from(rank);
                }
                let memory = buffer.as_mut_ptr();
                let request = Request {
                    kind: CollectiveKind::AllReduce,
                    data_type: DataType::Int64,
                    operator: ReduceOp::Sum,
                    input: memory,
                    output: memory,
                    element_count: 200_001,
                    label: String::new(),
                };
                // SAFETY: the buffer holds the elements and lives until the call returns.
                unsafe { session.run(request) }.expect("completes");
                let ranks = u64::from(RANKS);
                let expected = |index: usize| (index as u64 * ranks) << 8 | (0..ranks).sum::<u64>();
                assert!(buffer.as_mut_words().iter().enumerate().all(|(index, word)| *word == expected(index)));
                buffer.is_registered()
            },
        );
        let path = world.path;
        assert!(registered.iter().all(|registered| *registered == (path == Path::SharedMemory)), "{path:?}");
    }
}

#[test]
fn an_average_of_large_halves_stays_finite_on_every_path() {
    const FORTY_THOUSAND: u16 = 0x78e2;
    for world in World::on_each_path(4) {
        world.run(
            |config| config,
            |_, session| {
                let input = vec![FORTY_THOUSAND; 5000];
                let mut output = vec![0u16; 5000];
                let kind = CollectiveKind::AllReduce;
                collective(&session, kind, DataType::Float16, ReduceOp::Average, &input, &mut output).expect("ends");
                assert!(output.iter().all(|&mean| mean == FORTY_THOUSAND));
            },
        );
    }
}
