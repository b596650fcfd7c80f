//! What a policy in shadow costs the picks that it is told of.
//!
//! Picks come as fast as one thread makes them, which is more than the candidate on its own thread of low
//! priority can be asked for: the rest is dropped and counted, and printed as missed.

use loadline::config::{PoolConfig, ShadowConfig};
use loadline::run::Loadline;
use nix::time::ClockId;

use crate::farm::{config, feed, picks, runtime};
use crate::turns::ratio;

/// Goal of a pick with a shadow that is asked for every pick, as a ratio.
const SHADOW_RATIO: f64 = 1.25;

/// A pick with `p2c` in shadow of `balanced`, asked for this share of the picks, and without one: the same
/// host twice, on the picking thread's CPU time.
pub(crate) fn bench_shadow(targets: usize, share: f64) -> bool {
    let runtime = runtime();
    let folder = tempfile::tempdir().expect("a folder");
    let start = |shadow| {
        let pool = PoolConfig { shadow, ..PoolConfig::new("default") };
        runtime.block_on(Loadline::start(config(folder.path(), pool))).expect("a host")
    };
    let candidate = ShadowConfig { share, ..ShadowConfig::new("p2c") };
    let hosts = [start(Some(candidate)), start(None)];
    let [with, without] = hosts.each_ref().map(|loadline| loadline.host().expect("a host"));
    [with, without].iter().for_each(|host| feed(host, targets));
    let name = format!("{targets} targets, {:.0} %", share * 100.0);
    let thread = ClockId::CLOCK_THREAD_CPUTIME_ID;
    let good = ratio(&name, thread, SHADOW_RATIO, picks(with), picks(without));
    let report = with.pools().all()[0].shadow().expect("a shadow").report();
    let figures = &report.figures;
    let missed = figures.dropped_picks + figures.not_ready;
    println!("  compared {}, missed {missed}", figures.picks);
    assert!(figures.picks > 0, "the candidate was asked");
    hosts.into_iter().for_each(|loadline| runtime.block_on(loadline.stop()));
    good
}
