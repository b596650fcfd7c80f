//! A strategy's native twin, called as a guest is.

use loadline::policy::guest::{Request, TargetView};
use loadline::sim::chooser::{Chooser, Servers};
use loadline_sdk::{Slot, Strategy, StrategyRunner, Target};

/// The twin with its fleet.
pub(crate) struct Native<S>(pub(crate) StrategyRunner<S>);

impl<S: Strategy> Native<S> {
    /// A configured twin; `settings` is a JSON object.
    pub(crate) fn start(settings: &str, seed: u64) -> Result<Self, String> {
        let mut runner = StrategyRunner::default();
        runner.configure(settings, seed)?;
        Ok(Self(runner))
    }
}

impl<S: Strategy> Chooser for Native<S> {
    fn update(&mut self, now_ms: u64, hosts: u32, targets: &[TargetView]) -> Result<(), String> {
        self.0.update(now_ms, hosts, targets.iter().map(target));
        Ok(())
    }

    fn leave(&mut self, slot: u32) -> Result<(), String> {
        self.0.leave(&[Slot(slot)]);
        Ok(())
    }

    fn pick(&mut self, asked: &Request, _servers: &Servers<'_>) -> Result<Option<u32>, String> {
        Ok(self.0.pick(&request(*asked)).map(|slot| slot.0))
    }
}

/// The same request for a twin.
pub(crate) fn request(request: Request) -> loadline_sdk::Request {
    let Request { key, class, cost, now_ms, random } = request;
    loadline_sdk::Request { key, class, cost, now_ms, random }
}

/// The same target for a twin.
pub(crate) fn target(view: &TargetView) -> Target {
    Target {
        slot: Slot(view.slot),
        load: view.load,
        weight: view.weight,
        in_flight: view.in_flight,
        picks: view.picks,
        age_ms: view.age_ms,
        latency_us: view.latency_us,
        error_rate: view.error_rate,
        eligible: view.eligible,
        warm: view.warm,
        accepted: view.accepted,
        completed: view.completed,
        identity: view.identity,
    }
}
