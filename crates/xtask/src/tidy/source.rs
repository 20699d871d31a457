//! What the source of a crate says about itself: without std, without unsafe code.

use super::SourceFile;
use super::sizes::is_test;
use crate::layers::{BESIDE, LAYERS, LOCK_FREE, NO_STD, UNSAFE_ALLOWED};

/// Things that a crate without std, clocks and randomness must not name, with what to use instead.
const STATE_BANS: &[(&str, &str)] = &[
    ("std::time", "pass the time in as fanin_protocol::time::Time"),
    ("std::thread", "let the caller own the threads: these crates are plain values"),
    ("std::net", "leave sockets to fanin-net: these crates are plain values"),
    ("std::fs", "let the caller read files: these crates are plain values"),
    ("static mut", "put it into a value that the caller owns"),
    ("thread_rng", "take a seeded generator from the caller, so that the same seed gives the same trace"),
    ("getrandom", "take a seeded generator from the caller, so that the same seed gives the same trace"),
];

/// What waits for a lock, or for somebody who holds one.
const WAITS: &[&str] = &[".lock()", "RwLock", "Condvar"];

/// Breaches in one Rust file.
pub fn check(file: &SourceFile) -> Vec<String> {
    if !file.path.ends_with(".rs") || is_test(&file.path) || !file.path.starts_with("crates/") {
        return Vec::new();
    }
    let mut breaches = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or(line);
        let mut breach = |message: String| breaches.push(format!("{}:{}: {message}", file.path, index + 1));
        if names_unsafe(code) && !unsafe_allowed(&file.path) {
            breach(format!("unsafe code outside {}: use a safe function, or move it there", UNSAFE_ALLOWED.join(", ")));
        }
        let is_lock_free = LOCK_FREE.iter().any(|place| file.path.starts_with(place));
        for wait in WAITS.iter().filter(|wait| is_lock_free && code.contains(**wait)) {
            breach(format!("`{wait}` where every packet passes: own the value, or use try_lock and do without"));
        }
        if is_pure(&file.path) {
            for (banned, instead) in STATE_BANS.iter().filter(|(banned, _)| code.contains(banned)) {
                breach(format!("`{banned}` in a crate without I/O, clocks and randomness: {instead}"));
            }
        }
    }
    breaches
}

/// Breaches in what the crates' root files declare.
pub fn check_roots(files: &[SourceFile]) -> Vec<String> {
    let root_of = |name: &str| {
        let path = format!("crates/{name}/src/lib.rs");
        files.iter().find(|file| file.path == path)
    };
    let mut breaches = Vec::new();
    for root in NO_STD.iter().filter_map(|name| root_of(name)) {
        if !has_attribute(&root.text, "no_std") {
            breaches.push(format!("{}: add `#![no_std]` (or under cfg_attr): a switch has no std", root.path));
        }
    }
    let crates = LAYERS.iter().flat_map(|layer| layer.crates).chain(BESIDE);
    for root in crates.filter_map(|name| root_of(name)) {
        let crate_folder = root.path.trim_end_matches("/lib.rs");
        let may_be_unsafe = UNSAFE_ALLOWED.iter().any(|allowed| allowed.starts_with(crate_folder));
        if !may_be_unsafe && !root.text.contains("#![forbid(unsafe_code)]") {
            breaches.push(format!("{}: add `#![forbid(unsafe_code)]`", root.path));
        }
    }
    breaches
}

fn has_attribute(text: &str, attribute: &str) -> bool {
    text.lines().any(|line| line.trim_start().starts_with("#![") && line.contains(attribute))
}

fn is_pure(path: &str) -> bool {
    NO_STD.iter().any(|name| path.starts_with(&format!("crates/{name}/src/")))
}

/// True for an unsafe block, function, impl or trait; false for the lint's name.
fn names_unsafe(code: &str) -> bool {
    // Strings and lints mention the word; code has it as a word of its own, followed by one of these.
    let mut rest = code;
    while let Some(position) = rest.find("unsafe ") {
        let before = rest[..position].chars().next_back();
        let after = &rest[position + "unsafe ".len()..];
        let starts = ["{", "fn ", "impl", "extern", "trait"].iter().any(|start| after.starts_with(start));
        if starts && !before.is_some_and(|letter| letter.is_alphanumeric() || letter == '_' || letter == '"') {
            return true;
        }
        rest = after;
    }
    false
}

fn unsafe_allowed(path: &str) -> bool {
    // Benchmarks and examples of the crates that may are their users, not their code: only `src` counts.
    UNSAFE_ALLOWED.iter().any(|allowed| path.starts_with(allowed))
        || path.contains("/benches/")
        || path.contains("/examples/")
}
