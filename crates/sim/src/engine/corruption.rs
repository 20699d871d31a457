//! Packets that arrive damaged and are thrown away by whoever receives them.
//!
//! A link's packets arrive in the order in which they were sent, so that losing the n-th one depends on the link and the seed only: not on threads or windows. How many
//! arrive whole before the next that does not is drawn at once (a geometric distribution), so links without corruption cost nothing, and others a countdown.

use fanin_link::Random;

use crate::packet::{Kind, Packet};
use crate::workload::unit;

/// Apart from that of traffic and jobs, so that both stay as they are.
const STREAM: u64 = 0x636f_7272_7570_7400;

/// One direction of a link that loses packets.
#[derive(Clone, Debug)]
pub struct Corruption {
    random: Random,
    /// Logarithm of the chance that a packet arrives whole.
    log_whole: f64,
    /// Packets that arrive whole before the next that does not.
    whole: u64,
    lost: u64,
}

impl Corruption {
    /// For the link with this place in the network, of which a packet is lost with a chance above 0 and below 1.
    pub fn new(seed: u64, place: u32, chance: f64) -> Corruption {
        let mut corruption = Corruption {
            random: Random::new(seed ^ STREAM ^ u64::from(place) << 32),
            log_whole: libm::log1p(-chance),
            whole: 0,
            lost: 0,
        };
        corruption.whole = corruption.draw();
        corruption
    }

    fn draw(&mut self) -> u64 {
        // libm's logarithm, not the platform's: the same bits on every machine.
        (libm::log(unit(&mut self.random)) / self.log_whole) as u64
    }

    /// Whether the packet that arrives now is lost. Pause frames are not: ports repeat them for as long as a pause lasts (IEEE 802.3 annex 31B), and one that was lost once
    /// would stop a link for good here.
    #[cold]
    #[inline(never)]
    pub fn takes(&mut self, packet: &Packet) -> bool {
        if packet.kind == Kind::Pause {
            return false;
        }
        if let Some(left) = self.whole.checked_sub(1) {
            self.whole = left;
            return false;
        }
        self.whole = self.draw();
        self.lost += 1;
        true
    }

    /// Packets lost so far.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(seed: u64, place: u32, chance: f64) -> Vec<u32> {
        let mut corruption = Corruption::new(seed, place, chance);
        let lost: Vec<u32> = (0..200_000).filter(|_| corruption.takes(&Packet::default())).collect();
        assert_eq!(corruption.lost(), lost.len() as u64);
        lost
    }

    #[test]
    fn as_many_are_lost_as_the_chance_says_and_no_pattern_is_in_them() {
        let lost_1 = lost(1, 0, 0.01);
        // Four standard deviations of a binomial distribution.
        assert!((lost_1.len() as f64 - 2000.0).abs() < 4.0 * 1980f64.sqrt(), "{} lost", lost_1.len());
        let twins = lost_1.windows(2).filter(|pair| pair[1] == pair[0] + 1).count() as f64;
        assert!((twins - 20.0).abs() < 4.0 * 20f64.sqrt(), "{twins} after one another");
        assert_eq!(lost_1, lost(1, 0, 0.01));
        assert!(lost_1 != lost(1, 1, 0.01) && lost_1 != lost(2, 0, 0.01), "links and seeds are independent");
        assert!(lost(1, 0, 1e-9).len() < 2);
    }

    #[test]
    fn pause_frames_are_spared() {
        let mut corruption = Corruption::new(1, 0, 0.5);
        let frame = Packet { kind: Kind::Pause, ..Packet::default() };
        assert!((0..100).all(|_| !corruption.takes(&frame)));
    }
}
