//! Memory for tensors that the ranks of a host can sum where it lies.
#![allow(unsafe_code)]

use fanin_shm::Region;

/// Zeroed memory from [`Session::allocate`](crate::Session::allocate), aligned for every data type.
pub struct Buffer {
    memory: Memory,
    bytes: usize,
}

enum Memory {
    Registered(Region),
    Own(Vec<u64>),
}

impl Buffer {
    pub(crate) fn registered(region: Region, bytes: usize) -> Buffer {
        Buffer { memory: Memory::Registered(region), bytes }
    }

    pub(crate) fn own(bytes: usize) -> Buffer {
        Buffer { memory: Memory::Own(vec![0; bytes.div_ceil(size_of::<u64>())]), bytes }
    }

    /// Whether collectives on it need no copy. Not so where ranks share no memory, or other hosts take part.
    pub fn is_registered(&self) -> bool {
        matches!(self.memory, Memory::Registered(_))
    }

    /// First byte; valid as long as this value.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        match &mut self.memory {
            Memory::Registered(region) => region.as_ptr(),
            Memory::Own(words) => words.as_mut_ptr().cast(),
        }
    }

    /// Length, bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The memory as 64-bit words; a last part of one is not in it. No collective may be in progress on it.
    pub fn as_mut_words(&mut self) -> &mut [u64] {
        let count = self.bytes / size_of::<u64>();
        // SAFETY: the memory has that many bytes, aligned and zeroed at first; other ranks write to it only in a collective
        // that this rank has submitted, and the caller has none in progress.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr().cast(), count) }
    }
}
