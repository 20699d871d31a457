//! Which crate uses which, compared with the layer table.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::layers::{BESIDE, LAYERS, WITHIN_LAYER};

/// One crate of the workspace, as `cargo metadata` tells.
#[derive(Debug, Deserialize)]
pub struct Package {
    /// Name with its `fanin-` prefix.
    pub name: String,
    /// What its manifest asks for.
    pub dependencies: Vec<Dependency>,
}

/// One line of a manifest's dependencies.
#[derive(Debug, Deserialize)]
pub struct Dependency {
    /// Name of the crate asked for.
    pub name: String,
    /// `None`, `dev` or `build`.
    pub kind: Option<String>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

/// The workspace's crates. Also fails if Cargo.lock does not match the manifests.
pub fn packages(root: &Path) -> Result<Vec<Package>> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["metadata", "--format-version", "1", "--no-deps", "--locked"])
        .current_dir(root)
        .output()
        .context("cannot start cargo")?;
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(
        output.status.success(),
        "{complaint}\ncargo metadata failed. If Cargo.lock needs an update, run `cargo check` and commit Cargo.lock"
    );
    let metadata: Metadata = serde_json::from_slice(&output.stdout).context("cannot read what cargo metadata says")?;
    Ok(metadata.packages)
}

/// Breaches of the layer table.
pub fn check(packages: &[Package]) -> Vec<String> {
    let mut breaches: Vec<_> = packages.iter().flat_map(check_package).collect();
    for name in LAYERS.iter().flat_map(|layer| layer.crates).chain(BESIDE) {
        if !packages.iter().any(|package| short(&package.name) == *name) {
            breaches.push(format!(
                "crate `{name}` is in the layer table but not in the workspace: take it out of crates/xtask/src/layers.rs"
            ));
        }
    }
    breaches
}

fn check_package(package: &Package) -> Vec<String> {
    let user = short(&package.name);
    if BESIDE.contains(&user) {
        return Vec::new();
    }
    let Some(layer) = layer_of(user) else {
        return vec![format!(
            "crate `{user}` is in no layer: give it one in crates/xtask/src/layers.rs, or make it a module of a crate that is"
        )];
    };
    // Tests may bring in a neighbour (a host needs a switch to talk to); they are not part of what is shipped.
    let shipped = package.dependencies.iter().filter(|dependency| dependency.kind.as_deref() != Some("dev"));
    shipped.filter_map(|dependency| check_use(user, layer, short(&dependency.name))).collect()
}

fn check_use(user: &str, layer: usize, used: &str) -> Option<String> {
    if BESIDE.contains(&used) {
        return Some(format!(
            "crate `{user}` uses `{used}`, which is beside the layers: move what is needed into a layer"
        ));
    }
    let used_layer = layer_of(used)?;
    if used_layer < layer || WITHIN_LAYER.contains(&(user, used)) {
        return None;
    }
    Some(format!(
        "crate `{user}` ({}) uses `{used}` ({}): move what both need one layer down, or pass it in as a value",
        LAYERS[layer].name, LAYERS[used_layer].name
    ))
}

fn layer_of(name: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.crates.contains(&name))
}

/// `fanin-wire` as `wire`.
fn short(name: &str) -> &str {
    name.strip_prefix("fanin-").unwrap_or(name)
}
