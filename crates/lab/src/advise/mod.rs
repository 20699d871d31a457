//! Whether in-network aggregation would make a training step shorter, by how much, and up to which link rate.
//!
//! A [`Profile`] says when each bucket of gradients is ready; [`Question::predict`] sends the buckets one after the other, as NCCL and
//! DDP do, over a link that does nothing else. SwitchML (Sapio et al., NSDI 2021, §3) made its Table 2 in this way.

mod models;
mod predict;
mod profile;
mod table2;

pub use models::{paper_question, profile_of};
pub use predict::{Bound, Prediction, Question, Scheme, rate_worth_it};
pub use profile::{Bucket, Profile};
pub use table2::Setting as Table2;
