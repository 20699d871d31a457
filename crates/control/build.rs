//! Generates the messages and the client and server stubs. `protox` reads the `.proto` file, so no `protoc` is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let descriptors = protox::compile(["fanin/control/v1/controller.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    println!("cargo::rerun-if-changed=proto");
    Ok(())
}
