//! The standalone `fanin` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    let status = fanin_cli::main(std::env::args().collect());
    ExitCode::from(u8::try_from(status).unwrap_or(1))
}
