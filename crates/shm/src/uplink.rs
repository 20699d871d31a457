//! The way to other hosts: local rank 0 hands each window's local result over before anyone delivers it.

use std::sync::Arc;

use crate::Error;
use crate::shared::Shared;

/// Combines a host's results with those of other hosts, window by window.
pub trait Uplink {
    /// Starts to combine the `window` with number `index` of this collective, which holds this host's result; the outcome
    /// is to be written over it. Returns at once; `done` tells when it is there, from any thread and in any order. Up to
    /// two windows less than the group's depth are on their way at a time. A barrier has one empty window.
    ///
    /// An average's sums are divided already, by the divisor of the whole job: the outcome is their sum.
    ///
    /// # Safety
    /// The window's bytes may be read and written until `done` is used up, by nobody else.
    unsafe fn start(&mut self, index: u64, window: *mut [u8], done: WindowDone);
}

/// Tells the ranks of this host that a window has been combined; dropped unused, it fails the group. As long as it exists,
/// the window's memory does.
#[must_use = "the ranks of this host wait for the window"]
pub struct WindowDone {
    shared: Option<Arc<Shared>>,
    window: u32,
}

impl WindowDone {
    pub(crate) fn new(shared: Arc<Shared>, window: u32) -> WindowDone {
        WindowDone { shared: Some(shared), window }
    }

    /// The window holds the outcome.
    pub fn complete(mut self) {
        if let Some(shared) = self.shared.take() {
            shared.progress().combined(self.window).publish_up_to(self.window.wrapping_add(1));
        }
    }

    /// There will be no outcome; all ranks of this host fail with `reason`.
    pub fn fail(mut self, reason: &str) {
        self.fail_with(reason);
    }

    fn fail_with(&mut self, reason: &str) {
        if let Some(shared) = self.shared.take() {
            shared.abort(&Error::Aborted { rank: shared.rank() as u16, reason: reason.to_owned() });
        }
    }
}

impl Drop for WindowDone {
    fn drop(&mut self) {
        self.fail_with("the way to the other hosts was closed in the middle of a collective");
    }
}
