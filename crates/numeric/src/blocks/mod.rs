//! Twins of scalar kernels that compilers turn into vector instructions: loops without branches over blocks of fixed
//! length, compiled once for each level (`simd::versions`).
//!
//! A block that meets something rare (a value that is no number, an overflow) is left to the scalar reference as a whole.
//! So the twins hold the usual case only, and the rare one exists once.

mod fpisa;

pub(crate) use fpisa::*;
