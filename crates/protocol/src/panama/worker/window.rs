//! How many packets may be out in one tree (PANAMA Fig. 5).

use super::CongestionControl;

/// Parts of a packet that the window counts in: a cut leaves fractions, which Fig. 5 keeps.
const PARTS: u64 = 1 << 16;
/// A window that is cut for ever still lets a Result come.
const WINDOW_MIN: u64 = PARTS;

#[derive(Clone, Debug)]
pub(super) struct Window {
    control: CongestionControl,
    /// In parts, as all of these.
    size: u64,
    slow_start_threshold: u64,
    /// Share of marked Results, of `PARTS`.
    alpha: u64,
    received: u64,
    marked: u64,
    /// Packets that may have been out when the last round ended.
    out: u64,
    /// What the fullest switch has room for, in packets.
    cap: u64,
}

impl Window {
    pub fn new(control: CongestionControl) -> Window {
        let (initial, threshold) = match control {
            CongestionControl::Dctcp { cwnd_initial, ssthresh_initial, .. } => (cwnd_initial, ssthresh_initial),
            CongestionControl::Fixed { window } => (window, window),
        };
        Window {
            control,
            size: (u64::from(initial) * PARTS).max(WINDOW_MIN),
            slow_start_threshold: u64::from(threshold) * PARTS,
            alpha: PARTS,
            received: 0,
            marked: 0,
            out: 1,
            cap: u64::from(u16::MAX),
        }
    }

    /// Packets that may be out.
    pub fn packets(&self) -> u64 {
        (self.size / PARTS).min(self.cap).max(1)
    }

    /// A Result came: the implicit acknowledgement. Returns whether the window was cut.
    pub fn on_result(&mut self, is_marked: bool, cwnd_cap: u16) -> bool {
        self.received += 1;
        self.marked += u64::from(is_marked);
        // Fig. 5 asks for equality, which a window that was cut or capped meanwhile might never meet.
        let is_cut = self.received >= self.round() && self.end_round();
        self.take_cap(cwnd_cap);
        is_cut
    }

    /// Results that make a round.
    fn round(&self) -> u64 {
        match self.control {
            CongestionControl::Dctcp { whole_rounds: true, .. } => self.out,
            _ => self.packets(),
        }
    }

    fn end_round(&mut self) -> bool {
        let CongestionControl::Dctcp { gain_shift, grows_when_marked, .. } = self.control else { return false };
        let share = self.marked * PARTS / self.received;
        self.alpha = self.alpha - (self.alpha >> gain_shift) + (share >> gain_shift);
        let is_cut = self.marked > 0;
        (self.received, self.marked) = (0, 0);
        self.out = self.packets();
        if !is_cut || grows_when_marked {
            self.size += if self.size < self.slow_start_threshold { self.size } else { PARTS };
        }
        if is_cut {
            self.size = (self.size - self.size * self.alpha / (2 * PARTS)).max(WINDOW_MIN);
            self.slow_start_threshold = self.size;
        }
        is_cut
    }

    /// Caps the window itself, as Fig. 5 does: it does not grow behind the cap.
    fn take_cap(&mut self, cwnd_cap: u16) {
        self.cap = u64::from(cwnd_cap).max(1);
        if !matches!(self.control, CongestionControl::Fixed { .. }) {
            self.size = self.size.min(self.cap * PARTS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIG_5: CongestionControl = CongestionControl::FIG_5;

    fn round(window: &mut Window, marked: u64) {
        let size = window.packets();
        for number in 0..size {
            window.on_result(number < marked, u16::MAX);
        }
    }

    #[test]
    fn it_doubles_up_to_the_threshold_and_then_grows_by_one() {
        let mut window = Window::new(FIG_5);
        let sizes: [u64; 8] = core::array::from_fn(|_| {
            let size = window.packets();
            round(&mut window, 0);
            size
        });
        assert_eq!(sizes, [2, 4, 8, 16, 32, 64, 65, 66]);
    }

    #[test]
    fn marks_cut_it_by_half_their_average_share_and_end_slow_start() {
        let mut window = Window::new(FIG_5);
        round(&mut window, 0);
        round(&mut window, 0);
        // Two rounds without marks took alpha from 1 to (15/16)^2; one of all marks makes it 1 - 15/16 (1 - 0.8789) = 0.8865.
        round(&mut window, 8);
        assert_eq!(window.packets(), 4, "8 (1 - 0.8865 / 2) = 4.45");
        round(&mut window, 0);
        assert_eq!(window.packets(), 5, "above the threshold: by one");
    }

    #[test]
    fn with_growth_in_marked_rounds_it_is_cut_from_one_more() {
        let grows = CongestionControl::Dctcp {
            cwnd_initial: 2,
            ssthresh_initial: 2,
            gain_shift: 4,
            grows_when_marked: true,
            whole_rounds: false,
        };
        let mut window = Window::new(grows);
        (0..18).for_each(|_| round(&mut window, 0));
        assert_eq!(window.packets(), 20);
        // Alpha is (15/16)^18 = 0.313, then 0.296 with one mark in 20: 21 (1 - 0.296 / 2) = 17.89, where 20 would become 17.04.
        round(&mut window, 1);
        assert_eq!(window.size * 100 / PARTS, 1788, "of {} packets", window.packets());
    }

    #[test]
    fn whole_rounds_cut_once_for_what_was_out() {
        let cuts = |whole_rounds| {
            let control = CongestionControl::Dctcp {
                cwnd_initial: 64,
                ssthresh_initial: 2,
                gain_shift: 4,
                grows_when_marked: false,
                whole_rounds,
            };
            let mut window = Window::new(control);
            while !window.on_result(true, u16::MAX) {}
            // What was out when it was cut has met the same queue.
            (0..64).filter(|_| window.on_result(true, u16::MAX)).count()
        };
        assert_eq!((cuts(false), cuts(true)), (7, 1), "to 32, 16, 8, 4, 2, 1 and 1, and to 16");
    }

    #[test]
    fn the_share_decays_until_a_mark_hardly_cuts() {
        let mut window = Window::new(FIG_5);
        for _ in 0..100 {
            round(&mut window, 0);
        }
        let before = window.packets();
        round(&mut window, 1);
        assert!(window.packets() + 1 >= before, "one mark in {before}: {}", window.packets());
    }

    #[test]
    fn the_cap_holds_it_down_and_lets_go() {
        let mut window = Window::new(FIG_5);
        for _ in 0..200 {
            window.on_result(false, 5);
        }
        assert_eq!(window.packets(), 5);
        window.on_result(false, 0);
        assert_eq!(window.packets(), 1, "a switch without room still lets one packet through");
        for _ in 0..400 {
            window.on_result(false, u16::MAX);
        }
        assert!(window.packets() > 5);
    }

    #[test]
    fn it_never_closes() {
        let mut window = Window::new(FIG_5);
        for _ in 0..1000 {
            window.on_result(true, u16::MAX);
        }
        assert_eq!(window.packets(), 1);
    }

    #[test]
    fn a_fixed_one_follows_the_cap_only() {
        let mut window = Window::new(CongestionControl::Fixed { window: 40 });
        for _ in 0..100 {
            assert!(!window.on_result(true, u16::MAX));
        }
        assert_eq!(window.packets(), 40);
        window.on_result(false, 7);
        assert_eq!(window.packets(), 7);
    }
}
