//! What the test files share: ranks as threads, calls, and expected results worked out one element at a time.
#![allow(dead_code, reason = "each test file uses its part")]

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use fanin_numeric::sum::{Element, Operation, Reduction, Stores};
use fanin_shm::{Call, Config, Error, Group};

/// A job's name that no other test uses.
pub fn fresh_key() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Bytes of a small window.
pub const WINDOW_BYTES: usize = 4096;

/// Small windows, so that short vectors fill many.
pub fn small_windows(key: &str, rank: u16, size: u16) -> Config {
    Config {
        window_bytes: WINDOW_BYTES,
        depth: 4,
        form_timeout: Duration::from_secs(20),
        ..Config::new(key, rank, size)
    }
}

/// Runs `rank` once per rank, each on a thread with its group, and returns what they return, in rank order.
pub fn with_ranks<T: Send>(
    size: u16,
    config: impl Fn(&str, u16, u16) -> Config + Sync,
    rank: impl Fn(Group, usize) -> T + Sync,
) -> Vec<T> {
    let key = fresh_key();
    let run = |index: u16| rank(Group::form(&config(&key, index, size)).expect("the group forms"), index.into());
    thread::scope(|scope| {
        let threads: Vec<_> = (0..size)
            .map(|index| {
                scope.spawn({
                    let run = &run;
                    move || run(index)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
    })
}

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.bits() % limit as u64) as usize
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// The input of `rank` for a case with this seed: any bits, which for floats are numbers of every size, infinities, NaN.
pub fn tensor(seed: u64, rank: usize, bytes: usize) -> Vec<u8> {
    let mut random = Random(seed ^ (rank as u64) << 40);
    (0..bytes.div_ceil(8)).flat_map(|_| random.bits().to_ne_bytes()).take(bytes).collect()
}

/// A call of an all-reduce of `bytes` bytes at `memory`, in place.
pub fn all_reduce(sequence: u64, element: Element, memory: *mut u8, bytes: usize) -> Call {
    Call {
        sequence,
        tag: bytes as u32,
        description: format!("all_reduce of {bytes} bytes of {element:?}"),
        operation: Operation::Sum,
        element,
        divisor: 1.0,
        bytes,
        contributes: 0..bytes,
        receives: 0..bytes,
        input: memory,
        output: memory,
        windows_done: Arc::default(),
    }
}

/// An all-reduce of float32 in place, as every rank calls it.
pub fn sum_floats(group: &mut Group, sequence: u64, values: &mut [f32]) -> Result<(), Error> {
    let call = all_reduce(sequence, Element::Float32, values.as_mut_ptr().cast(), size_of_val(values));
    // SAFETY: the slice is borrowed for the call.
    unsafe { group.run(&call, None) }
}

/// What a collective's vector becomes, one element at a time. `inputs` are the parts that the ranks contribute.
pub fn expected(
    operation: Operation,
    element: Element,
    divisor: f32,
    bytes: usize,
    inputs: &[(Range<usize>, Vec<u8>)],
) -> Vec<u8> {
    let reduction = Reduction::new(operation, element).expect("a meaningful case").with_divisor(divisor);
    let mut vector = vec![0; bytes];
    for at in (0..bytes).step_by(element.bytes()) {
        let holders = inputs.iter().filter(|(part, _)| part.contains(&at));
        let values: Vec<*const u8> = holders.map(|(part, input)| input[at - part.start..].as_ptr()).collect();
        let output = vector[at..].as_mut_ptr();
        // SAFETY: one element each; fanin-numeric's own tests compare this with sums worked out by hand.
        unsafe { reduction.apply(&values, &[output], element.bytes(), Stores::Cached) }
    }
    vector
}
