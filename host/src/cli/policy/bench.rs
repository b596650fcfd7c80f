//! `loadline policy bench`: what the calls of a policy cost on this machine.
//!
//! Times are CPU time of the calling thread, over blocks of calls, so that other programs count little;
//! the median and the slowest tenth of the blocks are printed.

use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

use super::{Failure, Subject};
use crate::config::Origin;
use crate::policy::guest::{Request, TargetView};
use crate::policy::steps::Steps;
use crate::policy::{FormulaGuest, Kind, Module, PolicyEngine, StrategyGuest};

/// Targets that a host tells of in one update, and rows in one batch of loads.
const BATCH: usize = 256;
/// Time that one kind of call is measured for.
const SPAN: Duration = Duration::from_millis(500);
/// Calls between two looks at the clock.
const BLOCK: u32 = 32;

/// What to measure.
#[derive(clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    subject: Subject,
    /// Targets of the fleet
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(1..=200_000))]
    targets: u32,
}

/// A line for each kind of call.
pub(super) fn bench(arguments: &Arguments, origin: &Origin) -> Result<String, Failure> {
    let Arguments { subject, targets } = arguments;
    let engine = arguments.subject.engine(origin)?;
    let begin = Instant::now();
    let module =
        subject.load(&engine, &Steps::default()).map_err(|reason| subject.failed(&reason))?;
    let loaded = begin.elapsed().as_secs_f64() * 1e3;
    let measured = match module.kind() {
        Kind::Formula => formula(&engine, subject, &module, *targets),
        Kind::Strategy => strategy(&engine, subject, &module, *targets),
    };
    let lines = measured.map_err(|reason| subject.failed(&reason))?;
    let head = format!(
        "{} {}, {targets} targets, loaded in {loaded:.1} ms",
        module.kind(),
        subject.name()
    );
    Ok(format!("{head}\n{:<24}{:>12}{:>12}\n{}", "", "median", "slow tenth", lines.join("\n")))
}

fn strategy(
    engine: &PolicyEngine,
    subject: &Subject,
    module: &Module,
    targets: u32,
) -> Result<Vec<String>, String> {
    let failed = |error: crate::policy::CallError| error.to_string();
    let mut guest = StrategyGuest::start(engine, &subject.name(), module, &subject.settings, 1)
        .map_err(|error| error.to_string())?;
    let views: Vec<_> = (0..targets).map(view).collect();
    for views in views.chunks(BATCH) {
        guest.update(0, 1, views).map_err(failed)?;
    }
    let mut now_ms = 0;
    let mut request = || {
        now_ms += 1;
        Request { key: fastrand::u64(1..), class: 0, cost: 1.0, now_ms, random: fastrand::u64(..) }
    };
    let pick = measure("a pick", 1, || guest.pick(request()).map(drop))?;
    let few: Vec<u32> = (0..targets.min(3)).collect();
    let among = measure("a pick among three", 1, || guest.pick_among(request(), &few).map(drop))?;
    let mut chunks = views.chunks(BATCH).cycle();
    let per = views.len().min(BATCH);
    let update =
        measure("an update, per target", per, || guest.update(0, 1, chunks.next().unwrap_or(&[])))?;
    Ok(vec![pick, among, update])
}

fn formula(
    engine: &PolicyEngine,
    subject: &Subject,
    module: &Module,
    targets: u32,
) -> Result<Vec<String>, String> {
    let mut guest = FormulaGuest::start(engine, &subject.name(), module, &subject.settings)
        .map_err(|error| error.to_string())?;
    let metrics = guest.metrics().len();
    let mut lines = Vec::new();
    for rows in [1, 64, BATCH] {
        let slots: Vec<u32> = (0..targets).cycle().take(rows).collect();
        let values: Vec<f64> = (0..rows * metrics).map(|_| fastrand::f64()).collect();
        let name = format!("a report, {rows} at once");
        lines.push(measure(&name, rows, || guest.evaluate(0, &slots, &values).map(drop))?);
    }
    Ok(lines)
}

/// Calls for [`SPAN`]; the line with the time of a call, divided among `per` items.
fn measure(
    name: &str,
    per: usize,
    mut call: impl FnMut() -> Result<(), crate::policy::CallError>,
) -> Result<String, String> {
    let (begin, mut blocks) = (Instant::now(), Vec::new());
    while begin.elapsed() < SPAN {
        let before = cpu()?;
        for _ in 0..BLOCK {
            call().map_err(|error| error.to_string())?;
        }
        let took = cpu()?.saturating_sub(before).as_secs_f64() * 1e9;
        #[expect(clippy::cast_precision_loss, reason = "some hundreds")]
        blocks.push(took / f64::from(BLOCK) / per as f64);
    }
    blocks.sort_by(f64::total_cmp);
    let at = |share: usize| blocks[(blocks.len() * share / 10).min(blocks.len() - 1)];
    Ok(format!("{name:<24}{:>9.0} ns{:>9.0} ns", at(5), at(9)))
}

/// CPU time of this thread.
fn cpu() -> Result<Duration, String> {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
    time.map(Duration::from).map_err(|error| format!("no clock of CPU time: {error}"))
}

/// A target at some load, all alike otherwise.
fn view(slot: u32) -> TargetView {
    TargetView::new(slot, f64::from(slot % 97) / 97.0)
}
