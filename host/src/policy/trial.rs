//! The first calls of a new guest, before anybody waits for its answers: every function of the contract
//! with harmless arguments. The guest is thrown away afterwards.

use super::guest::{CallError, FormulaGuest, Request, StrategyGuest, TargetView};

/// Picks of a trial: every fourth with few candidates.
const TRIAL_PICKS: u64 = 16;

/// A few rows through a formula.
///
/// # Errors
/// The guest failed.
pub fn try_formula(guest: &mut FormulaGuest) -> Result<(), CallError> {
    let slots = [0, 1, 2, 3];
    let mut values = Vec::new();
    for value in [0.0, 0.5, 1.0, 1e6] {
        let row = guest.metrics().iter().map(|metric| metric.fallback.unwrap_or(value));
        values.extend(row);
    }
    guest.evaluate(0, &slots, &values)?;
    guest.evaluate(1, &[], &[])?;
    guest.leave(&slots)?;
    let state = guest.save()?;
    guest.restore(&state)?;
    Ok(())
}

/// A small fleet and some picks through a strategy.
///
/// # Errors
/// The guest failed, or picked what may not be picked.
pub fn try_strategy(guest: &mut StrategyGuest) -> Result<(), CallError> {
    let load = |slot: u32| match slot {
        3 => f64::NAN,      // not known yet
        4 => f64::INFINITY, // a metric is missing
        _ => f64::from(slot) / 8.0,
    };
    let view = |slot: u32| TargetView {
        picks: slot,
        eligible: slot != 5,
        accepted: u64::from(slot),
        ..TargetView::new(slot, load(slot))
    };
    let request = |random| Request { key: random, class: 0, cost: 1.0, now_ms: random, random };
    let check = |guest: &mut StrategyGuest, call, slot: Option<u32>| match slot {
        Some(slot) if slot >= 8 || slot == 5 => {
            Err(guest.nonsense(call, format!("slot {slot} of a trial fleet may not be picked")))
        }
        _ => Ok(()),
    };
    if let Some(slot) = guest.pick(request(0))? {
        return Err(guest.nonsense("pick", format!("slot {slot} of an empty fleet")));
    }
    guest.update(0, 1, &(0..8).map(view).collect::<Vec<_>>())?;
    for round in 0..TRIAL_PICKS {
        let random = round.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let slot = guest.pick(request(random))?;
        check(guest, "pick", slot)?;
        if round % 4 == 0 {
            let slot = guest.pick_among(request(random), &[1, 2])?;
            check(guest, "pick-among", slot)?;
        }
    }
    guest.leave(&[0, 1])?;
    let state = guest.save()?;
    guest.restore(&state)?;
    Ok(())
}
