//! How many chunks may be out (ATP §3.7).

use super::CongestionControl;

/// Parts of a chunk that the window counts in, so that it can grow by less than one.
const PARTS: u64 = 1 << 16;
/// A window that halves for ever still lets an acknowledgement come.
const WINDOW_MIN: u64 = PARTS;

#[derive(Clone, Debug)]
pub(super) struct Window {
    control: CongestionControl,
    max: u64,
    size: u64,
    slow_start_threshold: u64,
    /// Position up to which chunks were out at the last cut: what they tell was reacted to.
    cut_until: u64,
}

impl Window {
    pub fn new(control: CongestionControl, window_max: u32) -> Window {
        let max = u64::from(window_max) * PARTS;
        let size = match control {
            CongestionControl::Aimd { window_initial, .. } => (u64::from(window_initial) * PARTS).min(max),
            CongestionControl::Off => max,
            CongestionControl::Fixed { window } => (u64::from(window) * PARTS).min(max),
        };
        Window { control, max, size: size.max(WINDOW_MIN), slow_start_threshold: max, cut_until: 0 }
    }

    /// Chunks that may be out.
    pub fn chunks(&self) -> u64 {
        self.size / PARTS
    }

    /// A Parameter came without a mark: by one MTU for each in slow start, above by one MTU for a whole window.
    pub fn grow(&mut self) {
        let CongestionControl::Aimd { step, .. } = self.control else { return };
        let step = u64::from(step) * PARTS;
        let growth = if self.size < self.slow_start_threshold { step } else { (step * PARTS / self.size).max(1) };
        self.size = (self.size + growth).min(self.max);
    }

    /// The chunk at `position` met a long queue or was lost: halves the window, once for all that was out.
    pub fn cut(&mut self, position: u64, sent_until: u64) -> bool {
        if !matches!(self.control, CongestionControl::Aimd { .. }) || position < self.cut_until {
            return false;
        }
        self.cut_until = sent_until;
        self.size = (self.size / 2).max(WINDOW_MIN);
        self.slow_start_threshold = self.size;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_starts_slowly_grows_by_an_mtu_and_halves_once_a_window() {
        let mut window = Window::new(CongestionControl::Aimd { window_initial: 200, step: 5 }, 1024);
        assert_eq!(window.chunks(), 200);
        for _ in 0..10 {
            window.grow();
        }
        assert_eq!(window.chunks(), 250, "slow start: five for each");
        assert!(window.cut(300, 500));
        assert_eq!(window.chunks(), 125);
        assert!(!window.cut(499, 600), "out at the last cut");
        assert_eq!(window.chunks(), 125);
        for _ in 0..125 {
            window.grow();
        }
        assert!((129..=130).contains(&window.chunks()), "five for a window: {}", window.chunks());
        assert!(window.cut(500, 700));
        assert_eq!(window.chunks(), 64);
    }

    #[test]
    fn it_never_closes_and_never_exceeds_its_bound() {
        let mut window = Window::new(CongestionControl::Aimd { window_initial: 4, step: 5 }, 16);
        for position in 0..40 {
            window.cut(position, position + 1);
        }
        assert_eq!(window.chunks(), 1);
        for _ in 0..10_000 {
            window.grow();
        }
        assert_eq!(window.chunks(), 16);
        let mut off = Window::new(CongestionControl::Off, 16);
        assert!(!off.cut(0, 16));
        assert_eq!(off.chunks(), 16);
        let mut fixed = Window::new(CongestionControl::Fixed { window: 5 }, 16);
        fixed.grow();
        assert!(!fixed.cut(0, 16));
        assert_eq!(fixed.chunks(), 5);
    }
}
