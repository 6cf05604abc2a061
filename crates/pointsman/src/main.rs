//! The program. Everything is in the library, where tests and documentation reach it.

use std::process::ExitCode;

fn main() -> ExitCode {
    pointsman::cli::main()
}
