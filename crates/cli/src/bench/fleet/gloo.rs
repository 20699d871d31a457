//! PyTorch's gloo beside fanin.

use std::time::Duration;

use serde_json::{Value, json};

use super::places::Place;
use super::torch::TorchRanks;
use super::{Baseline, Setting, Work};
use crate::bench::process::ask_all;

const SCRIPT: &str = include_str!("../../../../../python/fanin/bench_gloo.py");

/// gloo's ranks.
pub struct Gloo(TorchRanks);

/// Starts gloo's ranks and lets them join; or why not.
pub fn start(places: &[Place], setting: &Setting) -> Result<Gloo, String> {
    TorchRanks::start("gloo rank", SCRIPT, places, setting, &[]).map(Gloo).map_err(|error| format!("{error:#}"))
}

impl Baseline for Gloo {
    fn name(&self) -> &'static str {
        "gloo"
    }

    fn version(&self) -> &str {
        &self.0.version
    }

    fn sums(&self, _dtype: &str) -> bool {
        true
    }

    fn round(&mut self, work: &Work<'_>, limit: Duration) -> anyhow::Result<Vec<Value>> {
        let request = json!({ "op": "round", "bytes": work.bytes, "dtype": work.dtype, "repeat": work.repeat });
        let requests = vec![request.to_string(); self.0.ranks.len()];
        ask_all(&mut self.0.ranks, &requests, limit)
    }
}
