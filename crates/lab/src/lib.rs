//! Published experiments on the protocols' own values, on rated links in simulated time.
//!
//! [`world`] is the network and the jobs; [`atp`] has the experiments of the ATP paper (Lao et al., NSDI 2021), [`numerics`] those on
//! number formats, and the comparison of accumulators, [`panama`] those of the PANAMA paper (Gebara et al., MLSys 2021), as [`trial`]s of the
//! simulator of whole networks; [`replay`] repeats training steps there; [`kept`] keeps what runs came to; [`advise`] predicts what a switch would save.
#![forbid(unsafe_code)]

pub mod advise;
pub mod atp;
pub mod findings;
pub mod kept;
pub mod numerics;
pub mod panama;
pub mod recording;
pub mod replay;
pub mod trial;
pub mod world;
