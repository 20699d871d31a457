//! Carries out one collective: what a rank copies and combines between the waits.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fanin_numeric::sum::{Reduction, Stores};

use crate::Error;
use crate::call::Call;
use crate::plan::{Path, Plan, overlap, share};
use crate::progress::Work;
use crate::region::Neighbours;
use crate::shared::Shared;
use crate::uplink::{Uplink, WindowDone};

/// Outputs from this size on are written past the caches: the caller will find them in memory anyway.
const STREAM_BYTES_MIN: usize = 4 << 20;

/// How stages and results are written: past the caches, since other cores read them. A line that one core has just changed
/// costs another one several times as much as a line in memory, measured by `benches/shm.rs`.
const FOR_OTHERS: Stores = Stores::Streaming;

/// One rank's part in one collective, window by window.
pub(crate) struct Engine<'a> {
    shared: &'a Arc<Shared>,
    call: &'a Call,
    /// Without the divisor.
    reduction: Reduction,
    uplink: Option<&'a mut (dyn Uplink + 'a)>,
    /// Number of the window with the vector's first bytes.
    first_window: u32,
    /// Known once all ranks have come.
    plan: Option<Rc<Plan>>,
    /// Windows are reduced before they are delivered.
    reduces: bool,
    stores: Stores,
    /// Scratch, so that no window allocates.
    inputs: Vec<*const u8>,
}

impl<'a> Engine<'a> {
    /// # Safety
    /// The call's pointers are as [`Group::run`](crate::Group::run) demands for as long as this value is used.
    pub(crate) unsafe fn new(
        shared: &'a Arc<Shared>,
        call: &'a Call,
        reduction: Reduction,
        uplink: Option<&'a mut (dyn Uplink + 'a)>,
        first_window: u32,
    ) -> Engine<'a> {
        let stores = if call.receives.len() >= STREAM_BYTES_MIN { Stores::Streaming } else { Stores::Cached };
        let inputs = Vec::with_capacity(shared.rank_count());
        Engine { shared, call, reduction, uplink, first_window, plan: None, reduces: false, stores, inputs }
    }

    /// Goes on as `plan` says.
    pub(crate) fn follow(&mut self, plan: Plan) {
        self.reduces = matches!(plan.path, Path::Staged(steps) if steps.reduces);
        self.plan = Some(Rc::new(plan));
    }

    /// The vector begins in `window`, not in the one that announced it.
    pub(crate) fn begin_at(&mut self, window: u32) {
        self.first_window = window;
    }

    fn plan(&self) -> Rc<Plan> {
        Rc::clone(self.plan.as_ref().expect("the plan is made before the first window is reduced"))
    }

    /// The part of the vector in `window`.
    fn range(&self, window: u32) -> Range<usize> {
        let start = window.wrapping_sub(self.first_window) as usize * self.shared.window_bytes();
        start..self.call.bytes.min(start + self.shared.window_bytes())
    }

    fn own_share(&self, window: u32) -> Range<usize> {
        share(&self.range(window), self.shared.rank(), self.shared.rank_count())
    }

    /// Where position `at` of the vector is in the own input; `at` is in the own contribution.
    fn own_input(&self, at: usize) -> *const u8 {
        self.call.input.wrapping_add(at - self.call.contributes.start)
    }

    fn own_output(&self, at: usize) -> *mut u8 {
        self.call.output.wrapping_add(at - self.call.receives.start)
    }

    /// Copies a part of the own contribution to the stage.
    fn stage_part(&self, window: u32, part: &Range<usize>) {
        let part = overlap(part, &self.call.contributes);
        if part.is_empty() {
            return;
        }
        let offset = part.start - self.range(window).start;
        let stage = self.shared.stage(self.shared.rank(), window).wrapping_add(offset);
        // SAFETY: the part is in the input and in the window; the slot is free, so nobody reads this stage now.
        unsafe { Reduction::COPY.apply(&[self.own_input(part.start)], &[stage], part.len(), FOR_OTHERS) }
    }

    /// Combines the contributions to `piece` of `window` at `to`. The own one is read where it is.
    fn combine(&mut self, window: u32, piece: &Range<usize>, to: *mut u8, stores: Stores) {
        let offset = piece.start - self.range(window).start;
        let plan = self.plan();
        self.inputs.clear();
        for rank in plan.contributors(piece) {
            let input = if rank == self.shared.rank() {
                self.own_input(piece.start)
            } else {
                self.shared.stage(rank, window).wrapping_add(offset).cast_const()
            };
            self.inputs.push(input);
        }
        // SAFETY: all have staged the window and leave it until this rank is done with it; `to` is this rank's to write,
        // and where it is the own input it is the same part of the vector.
        unsafe { self.reduction.with_divisor(self.call.divisor).apply(&self.inputs, &[to], piece.len(), stores) }
    }

    /// Combines the own share of the whole vector where the tensors are.
    pub(crate) fn run_direct(&mut self, neighbours: &mut Neighbours) -> Result<(), Error> {
        let places = self.resolve(neighbours)?;
        let own = share(&(0..self.call.bytes), self.shared.rank(), self.shared.rank_count());
        let mut outputs = Vec::with_capacity(places.len());
        let reduction = self.reduction.with_divisor(self.call.divisor);
        let plan = self.plan();
        for piece in plan.pieces(own) {
            let at = |start: *mut u8, part: &Range<usize>| start.wrapping_add(piece.start - part.start);
            self.inputs.clear();
            outputs.clear();
            for rank in plan.contributors(&piece) {
                self.inputs.push(at(places[rank].0, &plan.ranks[rank].contributes).cast_const());
            }
            outputs.extend(plan.receivers(&piece).map(|rank| at(places[rank].1, &plan.ranks[rank].receives)));
            // SAFETY: every place was checked to hold the rank's part; all ranks have come, so nobody writes an input or
            // touches an output, and each rank has a share of its own.
            unsafe { reduction.apply(&self.inputs, &outputs, piece.len(), self.stores) }
        }
        self.count_windows(self.call.bytes.div_ceil(self.shared.window_bytes()) as u64);
        Ok(())
    }

    /// Input and output of each rank in this process.
    fn resolve(&self, neighbours: &mut Neighbours) -> Result<Vec<(*mut u8, *mut u8)>, Error> {
        neighbours.trim();
        let own = self.shared.rank();
        let mut find = |rank: usize, place| match place {
            Some(place) => neighbours.resolve(self.shared, rank, place),
            None => Ok(std::ptr::null_mut()),
        };
        let plan = self.plan();
        let each = plan.ranks.iter().enumerate().map(|(rank, descriptor)| {
            if rank == own {
                return Ok((self.call.input.cast_mut(), self.call.output));
            }
            Ok((find(rank, descriptor.input)?, find(rank, descriptor.output)?))
        });
        each.collect()
    }
}

impl Work for Engine<'_> {
    fn stage(&mut self, window: u32) {
        let range = self.range(window);
        if !self.reduces {
            return self.stage_part(window, &range);
        }
        // Nobody else reads the own share, and this rank reads it from its input.
        let own = self.own_share(window);
        self.stage_part(window, &(range.start..own.start));
        self.stage_part(window, &(own.end..range.end));
    }

    fn reduce(&mut self, window: u32) {
        let (own, start) = (self.own_share(window), self.range(window).start);
        let result = self.shared.result(window);
        // Divided also where other hosts' results are still to come: an undivided sum may be more than a 16-bit float holds.
        for piece in self.plan().pieces(own) {
            self.combine(window, &piece, result.wrapping_add(piece.start - start), FOR_OTHERS);
        }
    }

    fn send_up(&mut self, window: u32) {
        let bytes = self.range(window).len();
        let memory = std::ptr::slice_from_raw_parts_mut(self.shared.result(window), bytes);
        let done = WindowDone::new(Arc::clone(self.shared), window);
        let index = window.wrapping_sub(self.first_window).into();
        let uplink = self.uplink.as_mut().expect("checked before the collective began");
        // SAFETY: all ranks have reduced the window and wait for `done`; its memory lives as long as `done` does.
        unsafe { uplink.start(index, memory, done) }
    }

    fn deliver(&mut self, window: u32) {
        self.write_output(window);
        self.count_windows(1);
    }
}

impl Engine<'_> {
    /// For reports, so nothing depends on the order.
    fn count_windows(&self, count: u64) {
        self.call.windows_done.fetch_add(count, Ordering::Relaxed);
    }

    /// The own output's part of `window`.
    fn write_output(&mut self, window: u32) {
        let range = self.range(window);
        let own = overlap(&range, &self.call.receives);
        if own.is_empty() {
            return;
        }
        if self.reduces {
            let result = self.shared.result(window).wrapping_add(own.start - range.start).cast_const();
            // SAFETY: the result is complete and stays until this rank is done with the window; the output is the own one.
            unsafe { Reduction::COPY.apply(&[result], &[self.own_output(own.start)], own.len(), self.stores) }
            return;
        }
        for piece in self.plan().pieces(own) {
            let output = self.own_output(piece.start);
            self.combine(window, &piece, output, self.stores);
        }
    }
}
