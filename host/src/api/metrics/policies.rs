//! What is counted of policies: in each pool, of each file, of those in shadow.

use std::sync::Arc;

use super::{Family, Label};
use crate::api::View;
use crate::policy::{CallError, Kind};

/// What serves each pool, and how that goes.
pub(super) fn in_pools(view: &View) -> Vec<Family> {
    let family = |name, help, is_counter| Family { name, help, is_counter, samples: Vec::new() };
    let mut faults = family("policy_faults", "Faults of a pool's guests", true);
    let mut swaps = family("policy_swaps", "Swaps of a pool's policy", true);
    let mut native = family("policy_native", "1 while native code stands in for a policy", false);
    let mut info = family("policy_info", "1 for the generation that serves", false);
    for pool in &*view.pools.all() {
        for kind in [Kind::Formula, Kind::Strategy] {
            let (status, name) = (pool.status(kind), pool.policy_name(kind));
            let labels = |policy: &str| -> Vec<Label> {
                let (policy, kind) = (("policy", policy.to_owned()), ("kind", kind.to_string()));
                vec![("pool", pool.name().to_owned()), policy, kind]
            };
            for reason in CallError::REASONS {
                let count = status.faults.get(reason).copied().unwrap_or_default();
                let labels = [labels(&name), vec![("reason", reason.to_owned())]].concat();
                faults.samples.push((labels, count));
            }
            swaps.samples.push((labels(&name), status.swaps));
            native.samples.push((labels(&name), u64::from(status.serving.is_none())));
            if let Some(decider) = status.serving {
                let generation = ("generation", decider.generation.to_string());
                info.samples.push(([labels(&decider.policy), vec![generation]].concat(), 1));
            }
        }
    }
    vec![faults, swaps, native, info]
}

/// The policies by name.
pub(super) fn all(view: &View) -> Vec<Family> {
    let family = |name, help, is_counter| Family { name, help, is_counter, samples: Vec::new() };
    let mut loads = family("policy_loads", "Policy files and built-ins loaded", true);
    let mut refusals = family("policy_refusals", "Policy files refused", true);
    let mut refused = family("policy_refused", "1 while the newest file is refused", false);
    let mut waiting = family("policy_waiting", "1 while a file waits for its signature", false);
    let mut unsigned =
        family("policy_unsigned", "1 while what is used is not signed by a known key", false);
    for (name, entry) in view.board.lock().iter() {
        let labels = vec![("policy", (**name).to_owned())];
        loads.samples.push((labels.clone(), entry.loads));
        refusals.samples.push((labels.clone(), entry.refusals));
        refused.samples.push((labels.clone(), u64::from(entry.refused.is_some())));
        waiting.samples.push((labels.clone(), u64::from(entry.waiting.is_some())));
        let is_unsigned = entry.newest().is_some_and(|kept| kept.vouch.trouble().is_some());
        unsigned.samples.push((labels, u64::from(is_unsigned)));
    }
    let help = "Times that a policy's guests got more memory; in each pick it makes picks slow";
    let mut growths = family("policy_memory_growths", help, true);
    let help = "Lines that a policy's guests logged beyond what they may";
    let mut unlogged = family("policy_log_lines_dropped", help, true);
    for (family, counts) in
        [(&mut growths, &view.tolls.growths), (&mut unlogged, &view.tolls.log_lines_dropped)]
    {
        let sample =
            |(policy, count): (Arc<str>, _)| (vec![("policy", (*policy).to_owned())], count);
        family.samples.extend(counts.all().into_iter().map(sample));
    }
    let of_ticker = |name, help, is_counter, value| {
        let samples = vec![(Vec::new(), value)];
        Family { name, help, is_counter, samples }
    };
    let help = "1 while the ticker of policies' deadlines is dead or held, and stood in for";
    let held = of_ticker("policy_ticker_held", help, false, u64::from(view.ticker.is_held()));
    let holds =
        of_ticker("policy_ticker_holds", "How often that was so", true, view.ticker.holds());
    vec![loads, refusals, refused, waiting, unsigned, growths, unlogged, held, holds]
}

/// Policies in shadow.
pub(super) fn in_shadow(view: &View) -> Vec<Family> {
    let family = |name, help, is_counter| Family { name, help, is_counter, samples: Vec::new() };
    let mut active = family("shadow_active", "1 while a policy is in shadow of a pool", false);
    let mut picks = family("shadow_picks", "Picks compared with a policy in shadow", true);
    let mut missed = family("shadow_missed", "What a policy in shadow was not told, by what", true);
    let mut faults = family("shadow_faults", "Faults of a policy in shadow", true);
    let mut times = family("shadow_pick_ns", "CPU time of its picks, or of its batches", false);
    for pool in &*view.pools.all() {
        let Some(shown) = pool.shadow() else { continue };
        let report = shown.report();
        let labels =
            || vec![("pool", pool.name().to_owned()), ("policy", shown.policy.to_string())];
        let with = |name, value: &str| {
            labels().into_iter().chain([(name, value.to_owned())]).collect::<Vec<_>>()
        };
        let figures = &report.figures;
        active.samples.push((labels(), u64::from(report.state.is_active())));
        let differed = figures.picks - figures.agreed;
        picks.samples.push((with("result", "agreed"), figures.agreed));
        picks.samples.push((with("result", "differed"), differed));
        missed.samples.push((with("what", "not_ready"), figures.not_ready));
        missed.samples.push((with("what", "picks_dropped"), figures.dropped_picks));
        missed.samples.push((with("what", "updates_dropped"), figures.dropped_updates));
        for (reason, count) in &figures.faults {
            faults.samples.push((with("reason", reason), *count));
        }
        if figures.time_us.count() > 0 {
            for (name, share) in [("0.5", 0.5), ("0.99", 0.99)] {
                let ns = u64::try_from(figures.time(share).as_nanos()).unwrap_or(u64::MAX);
                times.samples.push((with("quantile", name), ns));
            }
        }
    }
    vec![active, picks, missed, faults, times]
}
