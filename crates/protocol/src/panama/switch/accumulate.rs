//! Stage 4: buffers per port, and the adder tree over them (PANAMA §5, Fig. 6a).

use alloc::vec;
use alloc::vec::Vec;
use core::hash::Hasher;

use fanin_numeric::ieee;
use fanin_wire::panama::{ElementFormat, Header};

use super::job::Tree;
use super::place::{Place, State};

/// The payloads of one tree at one switch: by place, a buffer for each child. The program's decisions do not depend on them.
pub trait Buffers: Clone {
    /// Buffers for `place_count` VIDs of `child_count` children, of up to `element_count_max` elements.
    fn new(place_count: usize, child_count: usize, element_count_max: u16) -> Self;
    /// Keeps a child's payload.
    fn store(&mut self, place: usize, child: usize, format: ElementFormat, payload: &[u8]);
    /// Sums the children of `children`, a bit for each, in their order; `element_count` elements. The sum takes their place.
    fn sum(&mut self, place: usize, children: u64, element_count: u16);
    /// Writes what [`Buffers::sum`] made, or what was stored as child 0.
    fn emit(&self, place: usize, format: ElementFormat, payload: &mut [u8]);
    /// Hashes a place, for the exhaustive checker.
    fn hash_place(&self, place: usize, hasher: &mut impl Hasher);
}

/// Decisions without payloads, for simulators.
#[derive(Clone, Copy, Debug)]
pub struct HeadersOnly;

impl Buffers for HeadersOnly {
    fn new(_: usize, _: usize, _: u16) -> Self {
        HeadersOnly
    }
    fn store(&mut self, _: usize, _: usize, _: ElementFormat, _: &[u8]) {}
    fn sum(&mut self, _: usize, _: u64, _: u16) {}
    fn emit(&self, _: usize, _: ElementFormat, _: &mut [u8]) {}
    fn hash_place(&self, _: usize, _: &mut impl Hasher) {}
}

/// Floats of 32 bits, whatever the packets' format; what a sum of 16-bit formats loses is lost when it leaves.
///
/// The sum of n contributions is made by neighbours, pair by pair, so that equal inputs give equal bits in whatever order they
/// came, and rounding errors grow with log2 n: |error| <= (log2 n) u / (1 - (log2 n) u) times the sum of magnitudes, u = 2^-24
/// (Higham, Accuracy and Stability of Numerical Algorithms, 2002, §4.2).
#[derive(Clone)]
pub struct Floats {
    values: Vec<f32>,
    child_count: usize,
    stride: usize,
}

impl Floats {
    fn buffer(&mut self, place: usize, child: usize) -> &mut [f32] {
        let first = (place * self.child_count + child) * self.stride;
        &mut self.values[first..first + self.stride]
    }

    /// `left += right`, by elements.
    fn add(&mut self, place: usize, left: usize, right: usize, element_count: usize) {
        let first = (place * self.child_count + left) * self.stride;
        let (head, tail) = self.values[first..].split_at_mut((right - left) * self.stride);
        head[..element_count].iter_mut().zip(&tail[..element_count]).for_each(|(left, right)| *left += *right);
    }
}

impl Buffers for Floats {
    fn new(place_count: usize, child_count: usize, element_count_max: u16) -> Self {
        let stride = usize::from(element_count_max);
        Floats { values: vec![0.0; place_count * child_count * stride], child_count, stride }
    }

    fn store(&mut self, place: usize, child: usize, format: ElementFormat, payload: &[u8]) {
        let slot = &mut self.buffer(place, child)[..payload.len() / format.bytes()];
        match format {
            ElementFormat::Float32 => ieee::overwrite_f32(payload, slot),
            ElementFormat::Float16 => ieee::overwrite_f16(payload, slot),
            ElementFormat::Bfloat16 => ieee::overwrite_bf16(payload, slot),
        }
    }

    fn sum(&mut self, place: usize, children: u64, element_count: u16) {
        let mut left: [u8; 64] = [0; 64];
        let mut count = 0;
        for child in (0..64).filter(|child| children >> child & 1 == 1) {
            left[count] = child;
            count += 1;
        }
        let mut step = 1;
        while step < count {
            for pair in (0..count - step).step_by(2 * step) {
                self.add(place, left[pair].into(), left[pair + step].into(), element_count.into());
            }
            step *= 2;
        }
        if count > 0 && left[0] > 0 {
            let from = (place * self.child_count + usize::from(left[0])) * self.stride;
            let to = place * self.child_count * self.stride;
            self.values.copy_within(from..from + usize::from(element_count), to);
        }
    }

    fn emit(&self, place: usize, format: ElementFormat, payload: &mut [u8]) {
        let first = place * self.child_count * self.stride;
        let sum = &self.values[first..first + payload.len() / format.bytes()];
        match format {
            ElementFormat::Float32 => ieee::emit_f32(sum, payload),
            ElementFormat::Float16 => ieee::emit_f16(sum, payload),
            ElementFormat::Bfloat16 => ieee::emit_bf16(sum, payload),
        }
    }

    fn hash_place(&self, place: usize, hasher: &mut impl Hasher) {
        let first = place * self.child_count * self.stride;
        for value in &self.values[first..first + self.child_count * self.stride] {
            hasher.write_u32(value.to_bits());
        }
    }
}

/// Puts an admitted Contribution into its port's buffer.
pub(super) fn store<B: Buffers>(tree: &mut Tree<B>, child: usize, port: u8, vid: u64, header: &Header, payload: &[u8]) {
    let index = tree.index(vid);
    let place = tree.place_mut(vid);
    place.ports |= 1 << port;
    place.ecn |= header.flags.ecn;
    place.fin = header.flags.fin;
    place.cwnd_cap = place.cwnd_cap.min(header.cwnd_cap);
    place.worker_count = place.worker_count.saturating_add(header.worker_count);
    place.collective_tag = header.collective_tag;
    if header.element_count > 0 {
        place.filled |= 1 << child;
        place.element_count = header.element_count;
        place.element_format = header.element_format;
        tree.buffers.store(index, child, header.element_format, payload);
    }
}

/// Sums a VID's buffers.
pub(super) fn sum<B: Buffers>(tree: &mut Tree<B>, vid: u64) {
    let index = tree.index(vid);
    let Place { filled, element_count, .. } = *tree.place(vid);
    tree.buffers.sum(index, filled, element_count);
}

/// Puts the Result from above in the place of what was here.
pub(super) fn replace<B: Buffers>(tree: &mut Tree<B>, vid: u64, header: &Header, payload: &[u8]) {
    let index = tree.index(vid);
    let place = tree.place_mut(vid);
    *place = Place {
        state: State::Result,
        ports: place.ports,
        filled: u64::from(header.element_count > 0),
        ecn: header.flags.ecn,
        fin: header.flags.fin,
        cwnd_cap: header.cwnd_cap,
        worker_count: header.worker_count,
        collective_tag: header.collective_tag,
        element_count: header.element_count,
        element_format: header.element_format,
    };
    if header.element_count > 0 {
        tree.buffers.store(index, 0, header.element_format, payload);
    }
}
