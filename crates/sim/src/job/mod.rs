//! Training jobs: ranks that compute, sum their gradients over the network, and start again.
//!
//! A [`Rank`] lives at a host and knows time, not packets. What carries its gradients is its [`Work`]: flows in a ring, an
//! [`aggregation::Endpoint`] of a protocol that aggregates in the network, or nothing but a time (`ideal`).
//!
//! | module | what it is |
//! | --- | --- |
//! | [`aggregation`] | the face of protocols that aggregate: endpoints at hosts, programs at switches |
//! | [`switchml`], [`atp`] | their values behind that face |
//! | [`panama`] | PANAMA's values behind it, on the trees of its controller |
//! | [`ideal`] | how long gradients take on a network of their own |
//! | [`model`] | gradients and computing times of published models |
//! | [`placement`] | which hosts a job gets |
//! | [`tree`] | switches between the ranks of a job |

pub mod aggregation;
pub mod atp;
pub mod ideal;
pub mod model;
pub mod panama;
pub mod placement;
mod rank;
mod ring;
pub mod switchml;
pub mod table1;
pub mod tree;
mod words;

pub use rank::{IterationRecord, Rank, Rounds, Work};
pub use ring::Ring;
