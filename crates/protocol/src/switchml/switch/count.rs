//! Stage 3: first, middle or last contribution?

use super::slot::SlotCopy;

#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    first: bool,
    last: bool,
}

impl Position {
    pub fn is_first(self) -> bool {
        self.first
    }

    pub fn is_last(self) -> bool {
        self.last
    }
}

/// Counts modulo the worker count (SwitchML Alg. 3, line 8); with one worker
/// a contribution is first and last at once.
#[inline(always)]
pub(super) fn stage(copy: &mut SlotCopy, worker_count: u16) -> Position {
    let first = copy.contribution_count == 0;
    let last = copy.contribution_count + 1 == worker_count;
    copy.contribution_count = if last { 0 } else { copy.contribution_count + 1 };
    Position { first, last }
}
