use super::*;

fn runs_of(lengths: &[usize]) -> Vec<(usize, usize)> {
    let mut batch = SendBatch::with_capacity(4096);
    for length in lengths {
        batch.next_slot(*length).unwrap();
    }
    batch.runs().iter().map(|run| (run.datagram_bytes, run.bytes)).collect()
}

#[test]
fn equal_lengths_share_a_run_and_a_short_tail_closes_it() {
    assert_eq!(runs_of(&[100, 100, 100]), [(100, 300)]);
    assert_eq!(runs_of(&[100, 100, 40]), [(100, 240)]);
    assert_eq!(runs_of(&[100, 40, 40, 40]), [(100, 140), (40, 80)]);
    assert_eq!(runs_of(&[100, 40, 100]), [(100, 140), (100, 100)]);
    assert_eq!(runs_of(&[40, 100]), [(40, 40), (100, 100)]);
}

#[test]
fn a_full_batch_and_an_impossible_length_are_told_apart() {
    let mut batch = SendBatch::with_capacity(1000);
    assert!(batch.next_slot(600).is_ok());
    assert_eq!(batch.next_slot(401), Err(SlotError::Full));
    assert_eq!(batch.next_slot(1001), Err(SlotError::Unsendable { bytes: 1001, bytes_max: 1000 }));
    assert_eq!(batch.next_slot(0), Err(SlotError::Unsendable { bytes: 0, bytes_max: 1000 }));
    assert!(batch.next_slot(400).is_ok());
    batch.clear();
    assert!(batch.is_empty() && batch.next_slot(1000).is_ok());
    let mut large = SendBatch::with_capacity(1 << 20);
    assert!(large.next_slot(DATAGRAM_BYTES_MAX).is_ok());
    assert!(matches!(large.next_slot(DATAGRAM_BYTES_MAX + 1), Err(SlotError::Unsendable { .. })));
}

#[test]
fn spare_space_counts_only_once_committed() {
    let mut batch = SendBatch::with_capacity(100);
    batch.spare(100).unwrap()[0] = 1;
    assert!(batch.is_empty());
    batch.spare(100).unwrap()[..2].copy_from_slice(&[7, 8]);
    batch.commit(2);
    assert_eq!((batch.len(), batch.bytes()), (1, 2));
    assert_eq!(&batch.memory()[..2], [7, 8]);
}
