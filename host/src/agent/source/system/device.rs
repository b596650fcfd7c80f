//! Counters of several devices: each device's rate is kept apart, so that one that comes, goes or
//! begins anew does not spoil the others'.

use std::collections::HashMap;

use tokio::time::Instant;

use super::super::Reading;
use super::super::rate::Rate;

/// Rates of one counter by device.
#[derive(Debug, Default)]
pub(super) struct Rates {
    rates: HashMap<Box<str>, (Rate, Reading)>,
}

impl Rates {
    /// Takes each device's counter.
    pub(super) fn take<'a>(&mut self, counts: impl Iterator<Item = (&'a str, f64)>, now: Instant) {
        let mut before = std::mem::take(&mut self.rates);
        for (device, count) in counts {
            let (mut rate, _) =
                before.remove(device).unwrap_or_else(|| (Rate::default(), Reading::NotYet));
            let reading = rate.of(count, now);
            self.rates.insert(device.into(), (rate, reading));
        }
    }

    /// One device's rate.
    pub(super) fn of(&self, device: &str) -> Reading {
        let known = self.rates.get(device).map(|(_, reading)| reading.clone());
        known.unwrap_or_else(|| Reading::Useless(format!("there is no {device}")))
    }

    /// All chosen devices' rates folded into one number. Devices that have just come count from the next
    /// sample on.
    pub(super) fn all(
        &self,
        chosen: impl Fn(&str) -> bool,
        fold: impl Fn(f64, f64) -> f64,
    ) -> Reading {
        let mut total = None;
        for (device, (_, reading)) in &self.rates {
            match reading {
                Reading::Value(rate) if chosen(device) => {
                    total = Some(total.map_or(*rate, |total| fold(total, *rate)));
                }
                Reading::Useless(why) if chosen(device) => {
                    return Reading::Useless(format!("{device}: {why}"));
                }
                _ => {}
            }
        }
        total.map_or(Reading::NotYet, Reading::Value)
    }
}
