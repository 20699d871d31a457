//! The repository's own checks and generators.
//!
//! `cargo xtask generate [--check]` writes, or compares, what is generated from `spec/fields.toml`.
//! `cargo xtask tidy` checks the rules of the house: layers, sizes, names that must not leak.
#![forbid(unsafe_code)]

mod generate;
mod layers;
mod spec;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask generate [--check]\n       cargo xtask tidy";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["generate"] => generate::run(&root(), false),
        ["generate", "--check"] => generate::run(&root(), true),
        ["tidy"] => tidy::run(&root()),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The repository's root: two folders above this crate.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
