//! Two calls measured against each other: in turns of [`BLOCK`], in changing order, on CPU time. What
//! is printed and judged is the best time of each, and the median of the turns' differences and ratios.

use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

const BLOCK: Duration = Duration::from_millis(10);
const BLOCKS: usize = 60;

/// CPU time of this thread.
pub(crate) fn cpu_ns() -> f64 {
    time_ns(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

fn time_ns(clock: ClockId) -> f64 {
    Duration::from(clock_gettime(clock).expect("this clock exists")).as_secs_f64() * 1e9
}

/// Nanoseconds a call, over one block.
fn block(call: &mut impl FnMut()) -> f64 {
    block_by(ClockId::CLOCK_THREAD_CPUTIME_ID, call)
}

fn block_by(clock: ClockId, call: &mut impl FnMut()) -> f64 {
    let (start, begin, mut calls) = (Instant::now(), time_ns(clock), 0.0);
    while start.elapsed() < BLOCK {
        for _ in 0..16 {
            call();
        }
        calls += 16.0;
    }
    (time_ns(clock) - begin) / calls
}

/// What a guest may cost.
#[derive(Clone, Copy)]
pub(crate) enum Goal {
    /// Nanoseconds more than the native twin.
    Above(f64),
    /// Times the native twin.
    Ratio(f64),
}

impl std::fmt::Display for Goal {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Above(ns) if ns.is_infinite() => Ok(()),
            Self::Above(ns) => write!(formatter, "   at most {ns} above"),
            Self::Ratio(times) => write!(formatter, "   at most {times} times"),
        }
    }
}

/// Runs both in turns; prints a line; whether the median of the turns, divided among `per` items, is
/// within the goal.
pub(crate) fn compare(
    name: &str,
    per: f64,
    goals: &[Goal],
    mut guest: impl FnMut(),
    mut native: impl FnMut(),
) -> bool {
    let mut turns = Vec::new();
    for turn in 0..BLOCKS {
        let (guest, native) = if turn % 2 == 0 {
            (block(&mut guest), block(&mut native))
        } else {
            let native = block(&mut native);
            (block(&mut guest), native)
        };
        turns.push((guest / per, native / per));
    }
    let best = |of: fn(&(f64, f64)) -> f64| turns.iter().map(of).fold(f64::INFINITY, f64::min);
    let above = median(turns.iter().map(|(guest, native)| guest - native).collect());
    let ratio = median(turns.iter().map(|(guest, native)| guest / native).collect());
    let good = goals.iter().all(|goal| match goal {
        Goal::Above(ns) => above <= *ns,
        Goal::Ratio(times) => ratio <= *times,
    });
    let verdict = if good { "" } else { "   MISSED" };
    let goals: String = goals.iter().map(ToString::to_string).collect();
    println!(
        "{name:<42}{:>10.1}{:>11.1}{above:>8.1}{ratio:>7.2}{goals}{verdict}",
        best(|turn| turn.0),
        best(|turn| turn.1),
    );
    good
}

/// Runs both in turns; prints a line; whether the median ratio is within the goal.
pub(crate) fn ratio(
    name: &str,
    clock: ClockId,
    goal: f64,
    mut with: impl FnMut(),
    mut without: impl FnMut(),
) -> bool {
    let mut turns = Vec::new();
    for turn in 0..BLOCKS {
        turns.push(if turn % 2 == 0 {
            (block_by(clock, &mut with), block_by(clock, &mut without))
        } else {
            let without = block_by(clock, &mut without);
            (block_by(clock, &mut with), without)
        });
    }
    let us = |of: fn(&(f64, f64)) -> f64| median(turns.iter().map(of).collect()) / 1e3;
    let ratio = median(turns.iter().map(|(with, without)| with / without).collect());
    let verdict = if ratio <= goal { "" } else { "   MISSED" };
    println!("{name:<24}{:>12.2}{:>9.2}{ratio:>8.3}{verdict}", us(|t| t.0), us(|t| t.1));
    ratio <= goal
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}
