use rand_core::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::NetError;

/// Independent random loss of single datagrams.
///
/// The same seed and the same sequence of datagrams lose the same datagrams, whatever the batching and whether
/// offload is on. The two directions draw from separate streams, so arrivals never shift what is lost outbound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loss {
    /// Chance that a datagram is lost, 0.0 to 1.0.
    pub probability: f64,
    /// Seed of both streams.
    pub seed: u64,
}

/// A direction in which every datagram disappears, as when a link fails one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Blackhole {
    /// Nothing is swallowed.
    #[default]
    None,
    /// All that is sent is swallowed.
    Send,
    /// All that is received is swallowed.
    Receive,
    /// Both.
    Both,
}

impl Blackhole {
    pub(crate) fn swallows_send(self) -> bool {
        matches!(self, Self::Send | Self::Both)
    }

    pub(crate) fn swallows_receive(self) -> bool {
        matches!(self, Self::Receive | Self::Both)
    }
}

/// Decides the fate of the datagrams of one direction.
///
/// It keeps the number of datagrams up to the next loss instead of drawing for each one: without loss a whole
/// run of datagrams passes with one comparison.
#[derive(Debug)]
pub(crate) struct Gate {
    random: Xoshiro256PlusPlus,
    /// ln(1 - probability); 0 when nothing is ever lost.
    log_keep: f64,
    keep_count: u64,
    pub(crate) blackhole: bool,
}

impl Gate {
    /// The gates of the outgoing and the incoming direction.
    pub(crate) fn pair(loss: Option<Loss>) -> Result<(Self, Self), NetError> {
        let loss = loss.unwrap_or(Loss { probability: 0.0, seed: 0 });
        if !(0.0..=1.0).contains(&loss.probability) {
            return Err(NetError::Option { option: "loss.probability", problem: "accepted: 0.0 to 1.0" });
        }
        let outgoing = Xoshiro256PlusPlus::seed_from_u64(loss.seed);
        let mut incoming = outgoing.clone();
        incoming.jump();
        Ok((Self::new(outgoing, loss.probability), Self::new(incoming, loss.probability)))
    }

    fn new(random: Xoshiro256PlusPlus, probability: f64) -> Self {
        let mut gate = Self { random, log_keep: (-probability).ln_1p(), keep_count: 0, blackhole: false };
        gate.draw();
        gate
    }

    /// How many of the next `limit` datagrams pass before one is lost; 0 means that the next is lost.
    pub(crate) fn passing(&self, limit: usize) -> usize {
        if self.blackhole { 0 } else { limit.min(usize::try_from(self.keep_count).unwrap_or(usize::MAX)) }
    }

    /// Notes that `count` datagrams passed; `count` is at most what [`Gate::passing`] said.
    pub(crate) fn pass(&mut self, count: usize) {
        if self.log_keep != 0.0 {
            self.keep_count -= count as u64;
        }
    }

    /// Notes that the next datagram was lost. A blackhole leaves the random stream where it is.
    pub(crate) fn lose(&mut self) {
        if !self.blackhole {
            self.draw();
        }
    }

    /// Draws the gap to the next loss: gaps of a Bernoulli process are geometric.
    fn draw(&mut self) {
        if self.log_keep == 0.0 {
            self.keep_count = u64::MAX;
            return;
        }
        // 53 random bits in (0, 1]; never 0, whose logarithm is not finite.
        let unit = ((self.random.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
        // `as` saturates: a gap beyond u64 stands for "never again".
        self.keep_count = (unit.ln() / self.log_keep) as u64;
    }
}

#[cfg(test)]
mod tests;
