//! Every check is fed what it must refuse, and what it must let pass.

use super::crates::{Dependency, Package};
use super::{SourceFile, check_layer_table, crates, leaks, sizes, source};
use crate::layers::{self, BESIDE, LAYERS};

fn file(path: &str, text: impl Into<String>) -> SourceFile {
    SourceFile { path: path.into(), text: text.into() }
}

fn only(breaches: Vec<String>) -> String {
    assert_eq!(breaches.len(), 1, "{breaches:?}");
    breaches.into_iter().next().unwrap()
}

/// The workspace as the layer table wants it, with one use added.
fn workspace_with(user: &str, used: &str, kind: Option<&str>) -> Vec<Package> {
    let names = LAYERS.iter().flat_map(|layer| layer.crates).chain(BESIDE);
    let package = |name: &&str| Package {
        name: format!("fanin-{name}"),
        dependencies: (*name == user)
            .then(|| Dependency { name: format!("fanin-{used}"), kind: kind.map(str::to_owned) })
            .into_iter()
            .collect(),
    };
    names.map(package).collect()
}

#[test]
fn a_crate_may_use_the_layers_below_it() {
    assert_eq!(crates::check(&workspace_with("host", "wire", None)), [""; 0]);
    assert_eq!(crates::check(&workspace_with("host", "control", None)), [""; 0]);
}

#[test]
fn a_crate_must_not_use_the_layers_above_it() {
    let breach = only(crates::check(&workspace_with("wire", "protocol", None)));
    assert!(breach.contains("`wire` (facts) uses `protocol` (state): move"), "{breach}");
    only(crates::check(&workspace_with("wire", "protocol", Some("build"))));
}

#[test]
fn a_crate_must_not_use_its_neighbour() {
    only(crates::check(&workspace_with("switch", "host", None)));
    assert_eq!(crates::check(&workspace_with("host", "switch", Some("dev"))), [""; 0], "tests may");
}

#[test]
fn nothing_uses_what_stands_beside() {
    let breach = only(crates::check(&workspace_with("cli", "harness", None)));
    assert!(breach.contains("beside the layers"), "{breach}");
}

#[test]
fn a_crate_without_a_layer_is_refused() {
    let mut packages = workspace_with("host", "wire", None);
    packages.push(Package { name: "fanin-misc".into(), dependencies: Vec::new() });
    assert!(only(crates::check(&packages)).contains("`misc` is in no layer"));
}

#[test]
fn a_layer_without_its_crate_is_refused() {
    let mut packages = workspace_with("host", "wire", None);
    packages.retain(|package| package.name != "fanin-net");
    assert!(only(crates::check(&packages)).contains("`net` is in the layer table but not"));
}

#[test]
fn a_file_of_the_longest_length_passes_and_one_line_more_does_not() {
    let longest = "// x\n".repeat(sizes::FILE_LINES_MAX);
    assert_eq!(sizes::check(&file("crates/net/src/a.rs", longest.as_str())), [""; 0]);
    let longer = longest + "// x\n";
    assert!(only(sizes::check(&file("crates/net/src/a.rs", longer.as_str()))).contains("split it by concept"));
    for exempt in ["crates/net/tests/a.rs", "crates/net/src/a/tests.rs", "crates/wire/src/generated.rs", "docs/a.md"] {
        assert_eq!(sizes::check(&file(exempt, longer.as_str())), [""; 0], "{exempt}");
    }
}

#[test]
fn a_rust_function_of_the_longest_length_passes_and_one_line_more_does_not() {
    let function = |lines: usize| {
        format!(
            "impl A {{\n    pub(crate) async fn long(\n        self,\n    ) {{\n{}    }}\n}}\n",
            "        x();\n".repeat(lines - 4)
        )
    };
    assert_eq!(sizes::check(&file("crates/net/src/a.rs", function(sizes::FUNCTION_LINES_MAX))), [""; 0]);
    let breach = only(sizes::check(&file("crates/net/src/a.rs", function(sizes::FUNCTION_LINES_MAX + 1))));
    assert!(breach.contains("a.rs:2: function `long` has 71 lines"), "{breach}");
}

#[test]
fn a_python_function_of_the_longest_length_passes_and_one_line_more_does_not() {
    let function = |lines: usize| {
        format!(
            "class A:\n    async def long(\n        self,\n    ) -> None:\n{}\n\n    def short(self): ...\n",
            "        x()\n".repeat(lines - 3)
        )
    };
    assert_eq!(sizes::check(&file("python/fanin/a.py", function(sizes::FUNCTION_LINES_MAX))), [""; 0]);
    let breach = only(sizes::check(&file("python/fanin/a.py", function(sizes::FUNCTION_LINES_MAX + 1))));
    assert!(breach.contains("a.py:2: function `long` has 71 lines"), "{breach}");
}

#[test]
fn unsafe_code_is_refused_outside_its_modules() {
    for code in ["unsafe { x() }", "pub unsafe fn a() {}", "unsafe impl Send for A {}", "let a = unsafe { b };"] {
        assert!(only(source::check(&file("crates/control/src/a.rs", code))).contains("unsafe code outside"), "{code}");
        assert_eq!(source::check(&file("crates/numeric/src/simd/a.rs", code)), [""; 0]);
    }
    for innocent in ["#![forbid(unsafe_code)]", "// unsafe { no code }", "let not_unsafe = 1;", "\"unsafe {\""] {
        assert_eq!(source::check(&file("crates/control/src/a.rs", innocent)), [""; 0], "{innocent}");
    }
}

#[test]
fn clocks_and_threads_are_refused_in_the_pure_crates() {
    for (code, instead) in
        [("use std::time::Instant;", "Time"), ("std::thread::spawn(f);", "caller"), ("static mut A: u8 = 0;", "value")]
    {
        let breach = only(source::check(&file("crates/protocol/src/a.rs", code)));
        assert!(breach.contains(instead), "{breach}");
        assert_eq!(source::check(&file("crates/host/src/a.rs", code)), [""; 0]);
    }
}

#[test]
fn a_pure_crate_must_say_that_it_has_no_std() {
    let with = "#![cfg_attr(not(feature = \"std\"), no_std)]\n#![forbid(unsafe_code)]\n";
    assert_eq!(source::check_roots(&[file("crates/wire/src/lib.rs", with)]), [""; 0]);
    let without = "//! Has no_std in a comment only.\n#![forbid(unsafe_code)]\n";
    assert!(only(source::check_roots(&[file("crates/wire/src/lib.rs", without)])).contains("#![no_std]"));
}

#[test]
fn waiting_for_a_lock_is_refused_where_packets_pass() {
    for code in ["self.stats.lock().unwrap()", "state: RwLock<u8>,", "ended: Condvar,"] {
        assert!(
            only(source::check(&file("crates/host/src/lane.rs", code))).contains("where every packet passes"),
            "{code}"
        );
        assert_eq!(source::check(&file("crates/host/src/watcher.rs", code)), [""; 0]);
    }
    assert_eq!(source::check(&file("crates/host/src/lane.rs", "stats.try_lock()")), [""; 0]);
}

#[test]
fn a_crate_must_forbid_unsafe_code_unless_it_has_a_module_for_it() {
    assert!(only(source::check_roots(&[file("crates/control/src/lib.rs", "")])).contains("forbid(unsafe_code)"));
    assert_eq!(source::check_roots(&[file("crates/net/src/lib.rs", "")]), [""; 0]);
}

#[test]
fn paths_of_a_machine_are_refused() {
    let home = concat!("/ho", "me/");
    for line in [format!("cd {home}ann/fanin"), format!("\"{home}.cache\""), format!("=file:{home}ann")] {
        assert!(only(leaks::check(&file("docs/a.md", line.clone()))).contains("a path of one machine"), "{line}");
    }
    for innocent in [format!("https://example.org{home}page"), format!("target{home}x"), home.to_owned()] {
        assert_eq!(leaks::check(&file("docs/a.md", innocent.clone())), [""; 0], "{innocent}");
    }
}

#[test]
fn a_mirror_in_a_lock_file_is_refused() {
    let mirror = "source = \"registry+https://mirror.example:8080/index\"";
    assert!(only(leaks::check(&file("Cargo.lock", mirror))).contains("`mirror.example`"));
    assert_eq!(leaks::check(&file("Cargo.lock", "registry+https://github.com/rust-lang/crates.io-index")), [""; 0]);
    assert_eq!(leaks::check(&file("docs/a.md", mirror)), [""; 0]);
}

#[test]
fn the_architecture_page_must_show_the_layer_table() {
    assert!(check_layer_table(&[]).unwrap().contains("is missing"));
    assert!(check_layer_table(&[file("ARCHITECTURE.md", "# no table")]).unwrap().contains("add the lines"));
    let old = "a\n<!-- layers -->\n| old |\n<!-- /layers -->\nb\n";
    assert!(check_layer_table(&[file("ARCHITECTURE.md", old)]).unwrap().contains("cargo xtask generate"));
    let filled = layers::fill_in(old).unwrap();
    assert!(filled.starts_with("a\n") && filled.ends_with("\nb\n") && !filled.contains("old"));
    assert_eq!(check_layer_table(&[file("ARCHITECTURE.md", filled)]), None);
}
