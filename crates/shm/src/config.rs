use std::time::Duration;

use crate::Error;
use crate::progress::DEPTH_MIN;

/// Most ranks of one group.
pub const LOCAL_SIZE_MAX: u16 = 64;
/// Windows are whole pages, so that no element and no cache line lies in two.
const WINDOW_ALIGN: usize = 4096;
const WINDOW_BYTES_MAX: usize = 64 << 20;
const DEPTH_MAX: usize = 64;

/// How the ranks of one host form a group. All but `local_rank`, `form_timeout` and `spin` must be equal on all of them.
#[derive(Clone, Debug)]
pub struct Config {
    /// Who belongs together: the job's id and its token. Others of the same user cannot come in without it.
    pub key: String,
    /// This rank among those of the host; 0 is the leader.
    pub local_rank: u16,
    /// Ranks on the host, at most [`LOCAL_SIZE_MAX`].
    pub local_size: u16,
    /// Bytes of a window, a multiple of 4096. With an uplink it must be equal on all hosts.
    pub window_bytes: usize,
    /// Windows in the ring, a power of two from 4 to 64. With an uplink, two less are on their way to other hosts at a time.
    pub depth: usize,
    /// True if the leader passes an [`Uplink`](crate::Uplink) to each collective.
    pub has_uplink: bool,
    /// How long to wait for all ranks to come.
    pub form_timeout: Duration,
    /// How long a wait spins before it gives the processor away. Ignored where ranks outnumber cores.
    pub spin: Duration,
}

impl Config {
    /// Windows of 256 KiB, 4 in the ring, no uplink, 30 s to come together.
    pub fn new(key: impl Into<String>, local_rank: u16, local_size: u16) -> Config {
        Config {
            key: key.into(),
            local_rank,
            local_size,
            window_bytes: 256 << 10,
            depth: 4,
            has_uplink: false,
            form_timeout: Duration::from_secs(30),
            spin: Duration::from_micros(100),
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let problem = |problem: String| Err(Error::Config(problem));
        if self.local_size == 0 || self.local_size > LOCAL_SIZE_MAX || self.local_rank >= self.local_size {
            return problem(format!(
                "local rank {} of {}: there are 1 to {LOCAL_SIZE_MAX} ranks, counted from 0",
                self.local_rank, self.local_size
            ));
        }
        let window_is_whole = self.window_bytes > 0 && self.window_bytes.is_multiple_of(WINDOW_ALIGN);
        if !window_is_whole || self.window_bytes > WINDOW_BYTES_MAX {
            return problem(format!(
                "windows of {} bytes: use a multiple of {WINDOW_ALIGN} up to {WINDOW_BYTES_MAX}",
                self.window_bytes
            ));
        }
        // A power of two divides the range of window numbers, so slots stay in order when the numbers wrap.
        if !self.depth.is_power_of_two() || self.depth < DEPTH_MIN as usize || self.depth > DEPTH_MAX {
            return problem(format!("a ring of {} windows: use a power of two from 4 to {DEPTH_MAX}", self.depth));
        }
        if self.key.is_empty() || self.key.len() > 1024 {
            return problem("the key is empty or longer than 1024 bytes: use the job's id and token".to_owned());
        }
        Ok(())
    }
}
