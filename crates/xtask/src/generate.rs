//! Writes the constants of every language from `spec/fields.toml`, or checks that they are as written.

mod hardware;
mod markdown;
mod python;
mod rust;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::layers;
use crate::spec::Spec;

/// First line of every generated file, behind the language's comment sign.
const NOTICE: &str = "Generated from spec/fields.toml by `cargo xtask generate`. Do not edit.";

/// A generated file: its path from the repository's root and its whole text.
struct Output {
    path: &'static str,
    text: String,
}

/// Generates everything under `root`; with `check`, writes nothing and fails if a file differs.
pub fn run(root: &Path, check: bool) -> Result<()> {
    let mut differences = Vec::new();
    for output in outputs(root)? {
        let path = root.join(output.path);
        let present = fs::read_to_string(&path).unwrap_or_default();
        if present == output.text {
            continue;
        }
        if check {
            differences.push(difference(output.path, &present, &output.text));
        } else {
            write(&path, &output.text)?;
            println!("wrote {}", output.path);
        }
    }
    if differences.is_empty() {
        return Ok(());
    }
    bail!(
        "{}\ngenerated files differ from their source. Edit spec/fields.toml (or crates/xtask/src/layers.rs), \
         run `cargo xtask generate` and commit what it writes",
        differences.join("\n")
    )
}

fn outputs(root: &Path) -> Result<Vec<Output>> {
    let text = fs::read_to_string(root.join("spec/fields.toml")).context("cannot read spec/fields.toml")?;
    let spec = Spec::parse(&text)?;
    let mut outputs = vec![
        Output { path: "crates/wire/src/generated.rs", text: rust::wire(&spec)? },
        Output { path: "crates/protocol/src/generated.rs", text: rust::protocol(&spec)? },
        Output { path: "python/fanin/_generated.py", text: python::module(&spec) },
        Output { path: "p4/include/fanin_fields.p4", text: hardware::p4(&spec) },
        Output { path: "rtl/include/fanin_fields.svh", text: hardware::system_verilog(&spec) },
        Output { path: "xdp/include/fanin_generated.h", text: hardware::bpf_c(&spec) },
        Output { path: "docs/reference/fields.md", text: markdown::page(&spec) },
    ];
    // The page is written by hand but for one table; until it exists there is nothing to fill in, and `tidy` asks for it.
    if let Ok(page) = fs::read_to_string(root.join("ARCHITECTURE.md")) {
        outputs.push(Output { path: "ARCHITECTURE.md", text: layers::fill_in(&page)? });
    }
    Ok(outputs)
}

fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// The lines from the first to the last one that differ, old and new, as a diff shows them.
fn difference(path: &str, old: &str, new: &str) -> String {
    if old.is_empty() {
        return format!("{path} is missing");
    }
    let (old, new): (Vec<_>, Vec<_>) = (old.lines().collect(), new.lines().collect());
    let head = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let tail_limit = old.len().min(new.len()) - head;
    let tail = old.iter().rev().zip(new.iter().rev()).take(tail_limit).take_while(|(a, b)| a == b).count();
    let mut lines = vec![format!("--- {path}, from line {}", head + 1)];
    lines.extend(old[head..old.len() - tail].iter().map(|line| format!("-{line}")));
    lines.extend(new[head..new.len() - tail].iter().map(|line| format!("+{line}")));
    lines.join("\n")
}

#[cfg(test)]
#[path = "generate/tests.rs"]
mod tests;
