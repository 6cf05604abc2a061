//! The binary. All code is in the library, so that tests and documentation can reach it.

use std::process::ExitCode;

fn main() -> ExitCode {
    pointsman::cli::main()
}
