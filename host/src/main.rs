//! The program `loadline`; everything is in [`loadline::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    loadline::cli::main()
}
