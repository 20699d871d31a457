//! Ranks in Python: processes with PyTorch that have found each other.

use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};

use super::places::{Place, python, start_ranks};
use super::{JOIN_LIMIT, Setting};
use crate::bench::process::{Process, ask_all};

/// The first import of PyTorch reads gigabytes, once per rank.
const IMPORT_LIMIT: Duration = Duration::from_secs(300);

/// Ranks in one group of gloo's.
pub struct TorchRanks {
    pub ranks: Vec<Process>,
    /// PyTorch's.
    pub version: String,
}

impl TorchRanks {
    /// Starts `script`, which speaks the protocol of `bench_gloo.py`, once per
    /// place, and lets all join.
    pub fn start(
        what: &str,
        script: &str,
        places: &[Place],
        setting: &Setting,
        environment: &[(&str, &str)],
    ) -> anyhow::Result<TorchRanks> {
        let python = python();
        let command = [python.clone(), "-c".into(), script.into()];
        let mut ranks = start_ranks(what, places, &command, environment)?;
        let probes = vec![json!({ "op": "probe" }).to_string(); ranks.len()];
        let replies = ask_all(&mut ranks, &probes, IMPORT_LIMIT).with_context(|| {
            format!("{} cannot run it; FANIN_PYTHON names an interpreter with PyTorch", python.display())
        })?;
        let version = replies[0].get("version").and_then(Value::as_str).unwrap_or("unknown");
        let version = format!("PyTorch {version}");
        join(&mut ranks, &places[0].address, setting)?;
        Ok(TorchRanks { ranks, version })
    }
}

fn join(ranks: &mut [Process], address: &str, setting: &Setting) -> anyhow::Result<()> {
    let timeout_ms = setting.timeout_ms.max(60_000);
    let listen = json!({
        "op": "listen", "address": address, "world_size": setting.ranks, "timeout_ms": timeout_ms,
    });
    let port = ask_all(&mut ranks[..1], &[listen.to_string()], JOIN_LIMIT)?[0]["port"].clone();
    let connect = |rank| {
        json!({
            "op": "connect", "address": address, "port": port, "rank": rank, "world_size": setting.ranks,
            "timeout_ms": timeout_ms,
        })
        .to_string()
    };
    let requests: Vec<_> = (0..setting.ranks).map(connect).collect();
    ask_all(ranks, &requests, JOIN_LIMIT).map(drop)
}
