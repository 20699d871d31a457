//! The rules of the house that matter, as checks. Every message says what to do instead.

mod crates;
mod leaks;
mod sizes;
mod source;

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::layers;

/// A tracked text file.
pub struct SourceFile {
    /// Path from the repository's root, with `/`.
    pub path: String,
    /// Its text.
    pub text: String,
}

/// Checks the repository at `root`; the error lists every breach.
pub fn run(root: &Path) -> Result<()> {
    let files = tracked_files(root)?;
    let mut breaches = crates::check(&crates::packages(root)?);
    for file in &files {
        breaches.extend(sizes::check(file));
        breaches.extend(source::check(file));
        breaches.extend(leaks::check(file));
    }
    breaches.extend(source::check_roots(&files));
    breaches.extend(check_layer_table(&files));
    if breaches.is_empty() {
        println!("tidy: {} files are in order", files.len());
        return Ok(());
    }
    bail!("{}\ntidy: {} breaches", breaches.join("\n"), breaches.len())
}

/// ARCHITECTURE.md shows the table that [`layers`] holds.
fn check_layer_table(files: &[SourceFile]) -> Option<String> {
    let Some(page) = files.iter().find(|file| file.path == "ARCHITECTURE.md") else {
        return Some(
            "ARCHITECTURE.md is missing: write it, with a line `<!-- layers -->` and a line `<!-- /layers -->`".into(),
        );
    };
    match layers::fill_in(&page.text) {
        Ok(filled) if filled == page.text => None,
        Ok(_) => Some("ARCHITECTURE.md: the layer table is out of date: run `cargo xtask generate`".into()),
        Err(error) => Some(error.to_string()),
    }
}

/// Every text file that git tracks, with its text in the work tree.
fn tracked_files(root: &Path) -> Result<Vec<SourceFile>> {
    let output = Command::new("git").args(["ls-files", "-z"]).current_dir(root).output().context("cannot start git")?;
    ensure!(output.status.success(), "git ls-files failed: run tidy in a clone, not in an unpacked archive");
    let paths = String::from_utf8(output.stdout).context("a tracked path is not UTF-8")?;
    let read = |path: &str| {
        // A file that is tracked but deleted, or not text, has no lines to judge.
        let text = fs::read_to_string(root.join(path)).ok()?;
        Some(SourceFile { path: path.to_owned(), text })
    };
    Ok(paths.split_terminator('\0').filter_map(read).collect())
}

#[cfg(test)]
#[path = "tidy/tests.rs"]
mod tests;
