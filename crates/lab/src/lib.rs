//! Published experiments on the protocols' own values, on rated links in simulated time.
//!
//! [`world`] is the network and the jobs; [`atp`] has the experiments of the ATP paper (Lao et al., NSDI 2021).
#![forbid(unsafe_code)]

pub mod atp;
pub mod findings;
pub mod recording;
pub mod world;
