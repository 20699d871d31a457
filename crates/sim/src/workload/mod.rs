//! What hosts send: flows of given sizes to given places, from seeded streams of their own.
//!
//! Arrivals, sizes, destinations and paths come from separate generators for each host and kind of traffic, so that another
//! protocol, or more traffic elsewhere, leaves what is offered here as it was.

mod sizes;

use fanin_link::Random;
pub use sizes::{SizeTable, Sizes};

/// A flow to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// When.
    pub at_ps: u64,
    /// Host.
    pub destination: u16,
    /// Payload.
    pub bytes: u64,
    /// Picks its path.
    pub hash: u16,
}

/// A stream of flows from one host, in the order of their starts.
#[derive(Clone, Debug)]
pub enum Source {
    /// Flows known beforehand, latest first.
    Listed(Vec<Flow>),
    /// Poisson arrivals.
    Poisson(Box<Poisson>),
}

impl Source {
    /// When the next flow starts; `u64::MAX` when there is none.
    #[inline]
    pub fn next_ps(&self) -> u64 {
        match self {
            Source::Listed(flows) => flows.last().map_or(u64::MAX, |flow| flow.at_ps),
            Source::Poisson(poisson) => poisson.next_ps,
        }
    }

    /// Flows known beforehand that would start at `end_ps` or later.
    pub fn late_count(&self, end_ps: u64) -> usize {
        match self {
            Source::Listed(flows) => flows.iter().filter(|flow| flow.at_ps >= end_ps).count(),
            Source::Poisson(_) => 0,
        }
    }

    /// Takes the next flow.
    ///
    /// # Panics
    /// If there is none.
    pub fn take(&mut self) -> Flow {
        match self {
            Source::Listed(flows) => flows.pop().expect("next_ps has said that there is one"),
            Source::Poisson(poisson) => poisson.take(),
        }
    }
}

/// Flows with exponential gaps, sizes from a table, to hosts chosen evenly.
#[derive(Clone, Debug)]
pub struct Poisson {
    next_ps: u64,
    gap_mean_ps: f64,
    end_ps: u64,
    host: u16,
    host_count: u32,
    sizes: Sizes,
    gaps: Random,
    lengths: Random,
    places: Random,
    paths: Random,
}

impl Poisson {
    /// A stream from `host` to all others that ends at `end_ps`.
    pub fn new(
        host: u16,
        host_count: u32,
        sizes: Sizes,
        gap_mean_ps: f64,
        end_ps: u64,
        random: &mut Random,
    ) -> Poisson {
        let (gaps, lengths, places, paths) = (random.split(), random.split(), random.split(), random.split());
        let mut poisson =
            Poisson { next_ps: 0, gap_mean_ps, end_ps, host, host_count, sizes, gaps, lengths, places, paths };
        poisson.advance();
        poisson
    }

    fn take(&mut self) -> Flow {
        let other = self.places.below(u64::from(self.host_count) - 1) as u16;
        let flow = Flow {
            at_ps: self.next_ps,
            destination: if other < self.host { other } else { other + 1 },
            bytes: self.sizes.draw(&mut self.lengths),
            hash: self.paths.bits() as u16,
        };
        self.advance();
        flow
    }

    fn advance(&mut self) {
        let next = self.next_ps.saturating_add(exponential_ps(self.gap_mean_ps, &mut self.gaps));
        self.next_ps = if next < self.end_ps { next } else { u64::MAX };
    }
}

/// A gap of a Poisson process. libm's logarithm, not the platform's: the same bits on every machine.
pub fn exponential_ps(mean_ps: f64, random: &mut Random) -> u64 {
    (-libm::log(unit(random)) * mean_ps) as u64
}

/// Evenly from (0, 1].
pub(crate) fn unit(random: &mut Random) -> f64 {
    const STEP: f64 = 1.0 / (1u64 << 53) as f64;
    ((random.bits() >> 11) + 1) as f64 * STEP
}
