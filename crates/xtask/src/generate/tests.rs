//! The generator writes what it says, and its check fails when a file differs.

use std::fs;
use std::path::{Path, PathBuf};

use super::{difference, run};

const REAL: &str = include_str!("../../../../spec/fields.toml");

/// A throw-away root that holds only `spec/fields.toml`.
struct Root(PathBuf);

impl Root {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("fanin-xtask-{}-{name}", std::process::id()));
        fs::create_dir_all(path.join("spec")).unwrap();
        fs::write(path.join("spec/fields.toml"), REAL).unwrap();
        Self(path)
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn what_was_just_written_passes_the_check() {
    let root = Root::new("fresh");
    run(root.path(), false).unwrap();
    run(root.path(), true).unwrap();
}

#[test]
fn a_missing_file_fails_the_check() {
    let root = Root::new("missing");
    let message = format!("{:#}", run(root.path(), true).unwrap_err());
    assert!(message.contains("crates/wire/src/generated.rs is missing"), "{message}");
    assert!(message.contains("cargo xtask generate"), "{message}");
}

#[test]
fn an_edited_file_fails_the_check_and_shows_the_line() {
    let root = Root::new("edited");
    run(root.path(), false).unwrap();
    let path = root.path().join("crates/wire/src/generated.rs");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replacen("MAGIC: u16 = 0xFA91", "MAGIC: u16 = 0xFA92", 1)).unwrap();
    let message = format!("{:#}", run(root.path(), true).unwrap_err());
    assert!(message.contains("-pub const MAGIC: u16 = 0xFA92;\n+pub const MAGIC: u16 = 0xFA91;"), "{message}");
}

#[test]
fn a_difference_shows_only_the_lines_that_differ() {
    assert_eq!(difference("f", "a\nb\nc\n", "a\nx\ny\nc\n"), "--- f, from line 2\n-b\n+x\n+y");
    assert_eq!(difference("f", "a\na\n", "a\n"), "--- f, from line 2\n-a");
}
