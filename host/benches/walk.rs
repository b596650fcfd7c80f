//! What the guests cost: picks and formula batches through Wasm against their native twins, and the
//! slowest pick while policies are reloaded, and what it costs to remember why a target was picked, or
//! to have another policy in shadow.
//!
//! Guest and twin run in the same process in turns (`support/turns.rs`), so that a noisy machine
//! disturbs both alike. A missed goal is printed as such and ends the run with an error. `cargo bench`
//! runs everything; a word runs what contains it: `cargo bench -- pick`.

#![allow(missing_docs, clippy::print_stdout, reason = "a benchmark's output is its purpose")]

use std::process::ExitCode;

use decisions::bench_decision;
use guests::{bench_formula, bench_pick};
use policy_balanced::Balanced;
use policy_p2c::P2c;
use reloads::bench_reload;
use shadows::bench_shadow;
use turns::Goal;

#[path = "support/decisions.rs"]
mod decisions;
#[path = "support/farm.rs"]
mod farm;
#[path = "support/guests.rs"]
mod guests;
#[path = "support/native.rs"]
mod native;
#[path = "support/reloads.rs"]
mod reloads;
#[path = "support/shadows.rs"]
mod shadows;
#[path = "../../tests/support/stalls.rs"]
mod stalls;
#[path = "support/turns.rs"]
mod turns;

/// Priority of the process while reloads are timed, where it may be set.
const AHEAD_OF_OTHERS: i32 = -15;
/// Goals of a pick, in nanoseconds above the native twin and as a multiple of it.
const PICK_ABOVE_NS: f64 = 250.0;
const BALANCED_RATIO: f64 = 2.5;

fn main() -> ExitCode {
    let wanted: Vec<_> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let runs = |name: &str| wanted.is_empty() || wanted.iter().any(|word| name.contains(&**word));
    let mut good = true;
    if runs("pick") {
        println!("one pick                                    guest ns  native ns   above  ratio");
        let (above, times) = (Goal::Above(PICK_ABOVE_NS), Goal::Ratio(BALANCED_RATIO));
        for targets in [100, 10_000, 100_000] {
            good &= bench_pick::<P2c>("p2c", targets, 1, &[above]);
        }
        for hosts in [1, 4] {
            for targets in [100, 10_000] {
                good &= bench_pick::<Balanced>("balanced", targets, hosts, &[above]);
            }
            good &= bench_pick::<Balanced>("balanced", 100_000, hosts, &[above, times]);
        }
    }
    if runs("formula") {
        println!("one report of a batch                       guest ns  native ns   above  ratio");
        for rows in [1, 64, 1_024] {
            good &= bench_formula("weighted", rows);
            good &= bench_formula("text", rows);
        }
    }
    if runs("decision") {
        println!("decision remembered          with us  without   ratio");
        for targets in [10, 50, 1_000, 10_000] {
            good &= bench_decision(targets);
        }
    }
    if runs("shadow") {
        println!("pick with a shadow           with us  without   ratio");
        for targets in [100, 10_000] {
            for share in [1.0, 0.1] {
                good &= bench_shadow(targets, share);
            }
        }
    }
    if runs("reload") {
        // Threads of the machine that take a core for milliseconds, such as the kernel's own when it
        // looks for memory to reclaim, would count as ours. What we start inherits the priority.
        if rustix::process::setpriority_process(None, AHEAD_OF_OTHERS).is_err() {
            println!("the priority may not be set here: other programs' time counts as ours");
        }
        println!(
            "reload, 10 000 targets    load ms   slowest pick ms  stood still   cpu  queued  parked   quiet"
        );
        good &= bench_reload();
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
