//! Breaks a contract on purpose, by one byte: `scripts/memory.sh` shows with it that the memory checker is at work.

use fanin_numeric::sum::{Reduction, Stores};

fn main() {
    let input = Box::new([1u8; 64]);
    let mut output = Box::new([0u8; 65]);
    // SAFETY: none. The input has 64 bytes and 65 are read, which the checker must end the program for.
    unsafe { Reduction::COPY.apply(&[input.as_ptr()], &[output.as_mut_ptr()], 65, Stores::Cached) }
    println!("nobody noticed that {} bytes were read of {}", output.len(), input.len());
}
