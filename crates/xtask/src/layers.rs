//! The layer table: which crate may use which. `tidy` compares it with `cargo metadata`, `generate` writes it into
//! ARCHITECTURE.md.

use anyhow::{Result, ensure};

/// One layer of the house.
pub struct Layer {
    /// Name in the table.
    pub name: &'static str,
    /// Its crates, without the `fanin-` prefix.
    pub crates: &'static [&'static str],
    /// What it never contains.
    pub never: &'static str,
}

/// From the bottom up: a crate may use every crate of the layers below it.
pub const LAYERS: &[Layer] = &[
    Layer { name: "facts", crates: &["wire", "numeric"], never: "I/O, clocks, allocation in hot paths" },
    Layer { name: "state", crates: &["protocol", "link"], never: "I/O, clocks, threads, globals, unseeded randomness" },
    Layer { name: "worlds", crates: &["net", "shm", "xdp", "sim"], never: "protocol decisions; each other" },
    Layer {
        name: "programs",
        crates: &["control", "server", "switch", "host", "lab"],
        never: "hand-parsed packets, protocol state",
    },
    Layer { name: "faces", crates: &["cli", "python"], never: "logic" },
];

/// Crates that may use anything and that nothing uses.
pub const BESIDE: &[&str] = &["harness", "xtask"];

/// Uses inside one layer that are wanted, `(user, used)`.
pub const WITHIN_LAYER: &[(&str, &str)] = &[
    ("link", "protocol"),
    ("server", "control"),
    ("switch", "control"),
    ("host", "control"),
    ("host", "server"),
    ("python", "cli"),
];

/// Crates that build without the standard library.
pub const NO_STD: &[&str] = &["wire", "numeric", "protocol", "link"];

/// Where `unsafe` code may stand: every other file is without it.
pub const UNSAFE_ALLOWED: &[&str] = &[
    "crates/numeric/src/simd",
    // Memory shared with other processes has no owner that the compiler could know.
    "crates/numeric/src/sum.rs",
    // The checksum of every datagram, with vector instructions.
    "crates/wire/src/checksum/fold.rs",
    "crates/net/src/sys.rs",
    "crates/shm/src/sys.rs",
    // Words and windows in shared memory, and the caller's tensors.
    "crates/shm/src/shared.rs",
    "crates/shm/src/engine.rs",
    // Cells that a model checker watches.
    "crates/shm/src/progress/model.rs",
    // Contracts that the compiler cannot check: `run` and `start`.
    "crates/shm/src/group.rs",
    "crates/shm/src/uplink.rs",
    // The maps' structures as bytes, and calls that the standard library does not have.
    "crates/xdp/src/state.rs",
    "crates/xdp/src/sys.rs",
    // The caller's memory, and `submit`, whose contract the compiler cannot check.
    "crates/host/src/memory.rs",
    "crates/host/src/session.rs",
    // The same contract, kept by the host group's thread.
    "crates/host/src/local.rs",
    // Registered memory as words.
    "crates/host/src/buffer.rs",
    // Measures `submit` itself, on every element type.
    "crates/cli/src/bench/worker.rs",
    "crates/python/src",
];

/// Where every packet passes: no code there waits for a lock, so no reader of counters and no user's thread can hold packets
/// up. Whose turn it is to carry a lane's packets is settled outside, once for many packets.
pub const LOCK_FREE: &[&str] = &[
    "crates/wire/src",
    "crates/numeric/src",
    "crates/protocol/src",
    "crates/net/src",
    "crates/host/src/lane.rs",
    "crates/host/src/memory.rs",
    "crates/switch/src/dataplane/carry.rs",
    "crates/switch/src/dataplane/thread.rs",
    "crates/switch/src/dataplane/outgoing.rs",
    "crates/switch/src/dataplane/peers.rs",
    "crates/switch/src/dataplane/publish.rs",
];

const BEGIN: &str = "<!-- layers -->";
const END: &str = "<!-- /layers -->";

/// `page` with the table between its markers replaced by the current one.
pub fn fill_in(page: &str) -> Result<String> {
    let (begin, end) = (page.find(BEGIN), page.find(END));
    let (Some(begin), Some(end)) = (begin, end) else {
        anyhow::bail!("ARCHITECTURE.md has no layer table: add the lines `{BEGIN}` and `{END}` where it belongs")
    };
    ensure!(begin < end, "ARCHITECTURE.md has `{END}` before `{BEGIN}`: swap them");
    Ok(format!("{}{BEGIN}\n{}{}", &page[..begin], table(), &page[end..]))
}

fn table() -> String {
    let mut text = String::from("| layer | crates | may use | never contains |\n| --- | --- | --- | --- |\n");
    for (index, layer) in LAYERS.iter().enumerate() {
        let below: Vec<_> = LAYERS[..index].iter().map(|layer| layer.name).collect();
        let mut may_use = if below.is_empty() { "generated constants".to_owned() } else { below.join(", ") };
        for (user, used) in WITHIN_LAYER.iter().filter(|(user, _)| layer.crates.contains(user)) {
            may_use += &format!("; `{user}` uses `{used}`");
        }
        text += &format!("| {} | {} | {may_use} | {} |\n", layer.name, code_list(layer.crates), layer.never);
    }
    text + &format!("| beside | {} | anything | being used |\n", code_list(BESIDE))
}

fn code_list(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" ")
}
