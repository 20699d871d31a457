use super::*;
use crate::Loss;

const LIMITS: Limits = Limits { datagrams: 128, bytes: 65_000 };

fn batch_of(lengths: &[usize]) -> SendBatch {
    let mut batch = SendBatch::with_capacity(1 << 20);
    for length in lengths {
        batch.next_slot(*length).unwrap();
    }
    batch
}

/// Plans the whole batch; per frame (datagram_count, bytes), and the number lost.
fn plan_all(batch: &SendBatch, gate: &mut Gate, limits: Limits) -> (Vec<(usize, usize)>, Vec<Piece>, u64) {
    let (mut plan, mut cursor, mut lost) = (Plan::new(), Cursor::default(), 0);
    let (mut frames, mut pieces) = (Vec::new(), Vec::new());
    loop {
        lost += plan.fill(batch, &mut cursor, gate, limits);
        if plan.frames().is_empty() {
            return (frames, pieces, lost);
        }
        for frame in plan.frames() {
            let own = &plan.pieces()[frame.piece_first..frame.piece_first + frame.piece_count];
            assert_eq!(own.iter().map(|piece| piece.bytes).sum::<usize>(), frame.bytes);
            frames.push((frame.datagram_count, frame.bytes));
            pieces.extend_from_slice(own);
        }
    }
}

fn lossless() -> Gate {
    Gate::pair(None).unwrap().0
}

#[test]
fn equal_datagrams_fill_frames_up_to_either_limit() {
    let (frames, pieces, lost) = plan_all(&batch_of(&[1064; 100]), &mut lossless(), LIMITS);
    assert_eq!(frames, [(61, 61 * 1064), (39, 39 * 1064)]);
    assert_eq!((pieces.len(), lost), (2, 0));
    let (frames, ..) = plan_all(&batch_of(&[64; 300]), &mut lossless(), LIMITS);
    assert_eq!(frames, [(128, 8192), (128, 8192), (44, 44 * 64)]);
    let (frames, ..) = plan_all(&batch_of(&[64; 3]), &mut lossless(), Limits { datagrams: 1, bytes: 65_000 });
    assert_eq!(frames, [(1, 64); 3]);
}

#[test]
fn a_datagram_beyond_the_byte_limit_still_goes_alone() {
    let (frames, ..) = plan_all(&batch_of(&[65_507, 65_507]), &mut lossless(), LIMITS);
    assert_eq!(frames, [(1, 65_507), (1, 65_507)]);
}

#[test]
fn a_change_of_length_begins_a_frame_and_a_tail_ends_one() {
    let (frames, ..) = plan_all(&batch_of(&[100, 100, 40, 100, 200]), &mut lossless(), LIMITS);
    assert_eq!(frames, [(3, 240), (1, 100), (1, 200)]);
}

#[test]
fn more_frames_than_one_call_takes_are_all_planned() {
    let lengths: Vec<_> = (1..200).collect();
    let (frames, ..) = plan_all(&batch_of(&lengths), &mut lossless(), LIMITS);
    assert_eq!(frames, lengths.iter().map(|length| (1, *length)).collect::<Vec<_>>());
}

#[test]
fn lost_datagrams_leave_gaps_but_frames_stay_full() {
    let loss = Some(Loss { probability: 0.3, seed: 1 });
    for datagrams in [1, 64, 128] {
        let limits = Limits { datagrams, ..LIMITS };
        let batch = batch_of(&[100; 2000]);
        let (frames, pieces, lost) = plan_all(&batch, &mut Gate::pair(loss).unwrap().0, limits);
        let kept: usize = frames.iter().map(|frame| frame.0).sum();
        assert_eq!(kept as u64 + lost, 2000);
        let mut expected = Gate::pair(loss).unwrap().0;
        let offsets: Vec<_> =
            pieces.iter().flat_map(|piece| (piece.start..piece.start + piece.bytes).step_by(100)).collect();
        let survivors: Vec<_> = (0..2000)
            .filter(|_| {
                let passes = expected.passing(1) == 1;
                if passes {
                    expected.pass(1)
                } else {
                    expected.lose()
                }
                passes
            })
            .map(|index| index * 100)
            .collect();
        assert_eq!(offsets, survivors, "frames of {datagrams}");
    }
}

#[test]
fn losing_all_but_the_tail_sends_the_tail_at_its_own_length() {
    let batch = batch_of(&[100, 100, 40]);
    // Find a seed that loses the first two and keeps the tail.
    let found = (0..200).any(|seed| {
        let mut gate = Gate::pair(Some(Loss { probability: 0.5, seed })).unwrap().0;
        let (frames, pieces, lost) = plan_all(&batch, &mut gate, LIMITS);
        let only_tail = lost == 2 && pieces == [Piece { start: 200, bytes: 40 }];
        assert!(!only_tail || frames == [(1, 40)]);
        only_tail
    });
    assert!(found, "no seed of 200 lost exactly the first two");
}
