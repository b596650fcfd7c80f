//! The program `loadline`, built beside the tests so that they can run it as a process.

use std::process::ExitCode;

fn main() -> ExitCode {
    loadline::cli::main()
}
