//! Which part of a map belongs to which job.

/// A map's entries, given away in contiguous ranges, first fit.
#[derive(Debug)]
pub(crate) struct Allotment {
    size: u32,
    /// Begin and length, ascending.
    taken: Vec<(u32, u32)>,
}

impl Allotment {
    pub fn new(size: u32) -> Allotment {
        Allotment { size, taken: Vec::new() }
    }

    /// The begin of a range of `count` free entries.
    pub fn take(&mut self, count: u32) -> Option<u32> {
        let mut begin = 0;
        let mut place = 0;
        for (index, &(taken, length)) in self.taken.iter().enumerate() {
            if taken - begin >= count {
                break;
            }
            begin = taken + length;
            place = index + 1;
        }
        (self.size - begin >= count).then(|| {
            self.taken.insert(place, (begin, count));
            begin
        })
    }

    /// Gives back the range that begins at `begin`.
    pub fn give_back(&mut self, begin: u32) {
        self.taken.retain(|&(taken, _)| taken != begin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_do_not_overlap_and_come_back() {
        let mut map = Allotment::new(10);
        assert_eq!((map.take(4), map.take(4), map.take(3)), (Some(0), Some(4), None));
        assert_eq!(map.take(2), Some(8));
        map.give_back(0);
        assert_eq!((map.take(3), map.take(1), map.take(1)), (Some(0), Some(3), None));
        map.give_back(4);
        map.give_back(8);
        assert_eq!((map.take(7), map.take(6)), (None, Some(4)));
    }
}
