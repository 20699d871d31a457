//! Compiles the XDP program with clang. Without clang the crate builds all the same, and `KernelSwitch::load` says what to
//! install: a workstation that only runs workers needs no BPF compiler.

use std::path::Path;
use std::process::Command;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rustc-check-cfg=cfg(has_program)");
    println!("cargo::rerun-if-env-changed=FANIN_CLANG");
    println!("cargo::rerun-if-env-changed=PATH");
    println!("cargo::rerun-if-changed=../../xdp");
    let clang = std::env::var("FANIN_CLANG").unwrap_or_else(|_| "clang".into());
    if !Command::new(&clang).arg("--version").output().is_ok_and(|output| output.status.success()) {
        // A file that never exists: cargo asks again next time, when there may be a clang.
        println!("cargo::rerun-if-changed=waiting-for-clang");
        println!("cargo::warning=no clang: built without the XDP program, `fanin switch --datapath xdp` will say so");
        return Ok(());
    }
    for name in ["switchml", "traffic"] {
        compile(&clang, name)?;
    }
    println!("cargo::rustc-cfg=has_program");
    Ok(())
}

fn compile(clang: &str, name: &str) -> Result<(), Box<dyn std::error::Error>> {
    let object = Path::new(&std::env::var("OUT_DIR")?).join(format!("{name}.bpf.o"));
    let flags = ["-O2", "-g", "-target", "bpfel", "-mcpu=v3", "-Wall", "-Wextra", "-Werror", "-c"];
    let status =
        Command::new(clang).args(flags).arg(format!("../../xdp/{name}.bpf.c")).arg("-o").arg(object).status()?;
    if !status.success() {
        return Err(format!("{clang} did not compile xdp/{name}.bpf.c, see above; it needs clang 12 or later").into());
    }
    Ok(())
}
