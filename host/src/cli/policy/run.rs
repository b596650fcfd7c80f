//! `loadline policy run`: one decision of a strategy, or the loads of a formula, on a fleet from a file.
//!
//! The fleet is what `/v1/machines` answers, or a list of machines written by hand; without a file it
//! is an example. Nothing is asked of a host, and nothing is random but by `--seed`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

use serde::Deserialize;

use super::{Failure, Subject};
use crate::config::Origin;
use crate::policy::guest::{Request, TargetView};
use crate::policy::steps::Steps;
use crate::policy::{FormulaGuest, Kind, Module, PolicyEngine, StrategyGuest};

/// A fleet file at most.
const FLEET_BYTES_MAX: usize = 64 << 20;
/// Next best targets that are asked for.
const RANKS: usize = 5;

const FLEET_HELP: &str = "\
A fleet file is JSON: what /v1/machines answers, or a list of machines such as
  [{\"name\": \"a\", \"load\": 0.2, \"metrics\": {\"cpu\": 0.2, \"memory\": 0.5}},
   {\"name\": \"b\", \"load\": 0.7, \"weight\": 2, \"in_flight\": 3}]
Other keys of a machine: picks, age_ms, latency_us, error_rate, eligible, warm, accepted, completed.";

const EXAMPLE: &str = r#"[
  {"name": "a", "load": 0.15, "metrics": {"cpu": 0.1, "memory": 0.2, "sessions": 3}},
  {"name": "b", "load": 0.35, "metrics": {"cpu": 0.3, "memory": 0.4, "sessions": 12}},
  {"name": "c", "load": 0.55, "metrics": {"cpu": 0.6, "memory": 0.5, "sessions": 20}, "weight": 2},
  {"name": "d", "load": 0.85, "metrics": {"cpu": 0.9, "memory": 0.8, "sessions": 40}},
  {"name": "e", "metrics": {}}
]"#;

/// What to run on what.
#[derive(clap::Args)]
#[command(after_help = FLEET_HELP)]
pub(super) struct Arguments {
    #[command(flatten)]
    subject: Subject,
    /// The fleet [default: an example of five machines]
    #[arg(long, value_name = "FILE.json")]
    fleet: Option<PathBuf>,
    /// Of a machine with several targets the one of this pool
    #[arg(long, default_value = "default")]
    pool: String,
    /// The client's key, for strategies that keep a client on its target
    #[arg(long)]
    key: Option<String>,
    /// Picks in a row; the shares are printed
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    picks: u32,
    /// Another one draws other random bits
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// A machine of the file. Unknown keys are allowed: `/v1/machines` has more than is needed here.
#[derive(Deserialize)]
struct Machine {
    name: String,
    #[serde(default)]
    metrics: BTreeMap<String, Option<f64>>,
    #[serde(default = "one")]
    weight: f64,
    #[serde(default)]
    age_ms: u32,
    #[serde(flatten)]
    own: Known,
    #[serde(default)]
    targets: Vec<PoolTarget>,
    #[serde(default)]
    services: Vec<Service>,
}

/// What may be said of a machine by hand.
#[derive(Deserialize, Default)]
struct Known {
    load: Option<f64>,
    in_flight: Option<u32>,
    picks: Option<u32>,
    latency_us: Option<u32>,
    error_rate: Option<f32>,
    eligible: Option<bool>,
    warm: Option<f32>,
    accepted: Option<u64>,
    completed: Option<u64>,
}

/// What a host says of one of its targets.
#[derive(Deserialize)]
struct PoolTarget {
    pool: String,
    service: String,
    #[serde(flatten)]
    known: Known,
    #[serde(default)]
    outcomes: Outcomes,
    /// Metrics without which it has no load.
    #[serde(default)]
    missing: Vec<serde::de::IgnoredAny>,
}

#[derive(Deserialize, Default)]
struct Outcomes {
    latency_us: Option<u32>,
    error_rate: Option<f32>,
}

#[derive(Deserialize)]
struct Service {
    name: String,
    #[serde(default = "one")]
    weight: f64,
    #[serde(default)]
    metrics: BTreeMap<String, Option<f64>>,
    #[serde(flatten)]
    known: Known,
}

fn one() -> f64 {
    1.0
}

/// The decision or the loads, with what they came from.
pub(super) fn run(arguments: &Arguments, origin: &Origin) -> Result<String, Failure> {
    let subject = &arguments.subject;
    let machines = fleet(arguments)?;
    let engine = arguments.subject.engine(origin)?;
    let module =
        subject.load(&engine, &Steps::default()).map_err(|reason| subject.failed(&reason))?;
    let result = match module.kind() {
        Kind::Formula => loads(&engine, arguments, &module, &machines),
        Kind::Strategy => decision(&engine, arguments, &module, &machines),
    };
    result.map_err(|reason| subject.failed(&reason))
}

fn fleet(arguments: &Arguments) -> Result<Vec<Machine>, Failure> {
    let Some(file) = &arguments.fleet else {
        return serde_json::from_str(EXAMPLE).map_err(super::super::other);
    };
    let wrong = |what: String| Failure::Usage(format!("{}: {what}\n{FLEET_HELP}", file.display()));
    let bytes = crate::watch::read(file, FLEET_BYTES_MAX).map_err(|why| wrong(why.to_string()))?;
    let machines: Vec<Machine> =
        serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
    if machines.is_empty() {
        return Err(wrong("a fleet without machines".to_owned()));
    }
    Ok(machines)
}

impl Machine {
    fn target(&self, pool: &str) -> Option<&PoolTarget> {
        self.targets.iter().find(|target| target.pool == pool)
    }

    fn service(&self, pool: &str) -> Option<&Service> {
        let name = &self.target(pool)?.service;
        self.services.iter().find(|service| service.name == *name)
    }

    /// The service's own metric first, as a host has it.
    fn metric(&self, pool: &str, name: &str) -> Option<f64> {
        let own = self.service(pool).and_then(|service| service.metrics.get(name));
        *own.or_else(|| self.metrics.get(name))?
    }

    fn view(&self, slot: u32, pool: &str) -> TargetView {
        let (target, service) = (self.target(pool), self.service(pool));
        let none = Known::default();
        let (own, of_target) = (&self.own, target.map_or(&none, |target| &target.known));
        let of_service = service.map_or(&none, |service| &service.known);
        let outcomes = target.map(|target| &target.outcomes);
        let latency = outcomes.and_then(|outcomes| outcomes.latency_us);
        let errors = outcomes.and_then(|outcomes| outcomes.error_rate);
        let is_whole = target.is_none_or(|target| target.missing.is_empty());
        let unknown = if is_whole { f64::NAN } else { f64::INFINITY };
        TargetView {
            slot,
            load: own.load.or(of_target.load).unwrap_or(unknown),
            weight: self.weight * service.map_or(1.0, |service| service.weight),
            in_flight: own.in_flight.or(of_service.in_flight).unwrap_or(0),
            picks: own.picks.or(of_target.picks).unwrap_or(0),
            age_ms: self.age_ms,
            latency_us: own.latency_us.or(latency).unwrap_or(0),
            error_rate: own.error_rate.or(errors).unwrap_or(0.0),
            eligible: own.eligible.or(of_target.eligible).unwrap_or(true),
            warm: own.warm.or(of_target.warm).unwrap_or(1.0),
            accepted: own.accepted.or(of_service.accepted).unwrap_or(0),
            completed: own.completed.or(of_service.completed).unwrap_or(0),
            identity: crate::pick::key_hash(&self.name),
        }
    }
}

fn decision(
    engine: &PolicyEngine,
    arguments: &Arguments,
    module: &Module,
    machines: &[Machine],
) -> Result<String, String> {
    let failed = |error: crate::policy::CallError| error.to_string();
    let Arguments { subject, pool, key, picks, seed, .. } = arguments;
    let mut guest = StrategyGuest::start(engine, &subject.name(), module, &subject.settings, *seed)
        .map_err(|error| error.to_string())?;
    let views: Vec<_> =
        (0..).zip(machines).map(|(slot, machine)| machine.view(slot, pool)).collect();
    guest.update(0, 1, &views).map_err(failed)?;
    let mut random = fastrand::Rng::with_seed(*seed);
    let key = key.as_deref().map_or(0, crate::pick::key_hash);
    let mut request = || Request { key, class: 0, cost: 1.0, now_ms: 0, random: random.u64(..) };
    let mut counts = vec![0_u32; machines.len()];
    let mut first = None;
    for _ in 0..*picks {
        let slot = guest.pick(request()).map_err(failed)?;
        let Some(count) = slot.and_then(|slot| counts.get_mut(slot as usize)) else {
            return Ok(match slot {
                Some(slot) => format!("picked slot {slot}, which holds no machine: a fault"),
                None => "picked nobody: a host would choose natively".to_owned(),
            });
        };
        *count += 1;
        first = first.or(slot);
    }
    let order = ranks(&mut guest, &views, first, &mut request).map_err(failed)?;
    let mut text = format!(
        "{:<6}{:<20}{:>10}{:>8}{:>10}{:>7}{:>8}{:>10}\n",
        "rank", "machine", "load", "weight", "in flight", "picks", "age ms", "picked"
    );
    for (machine, view) in machines.iter().zip(&views) {
        let rank = order.iter().position(|slot| *slot == view.slot).map(|at| (at + 1).to_string());
        let is_known = view.load.is_finite();
        let load = if is_known { format!("{:.4}", view.load) } else { "-".to_owned() };
        let not = if view.eligible { "" } else { "  not eligible" };
        // A string can always be written to.
        writeln!(
            text,
            "{:<6}{:<20}{load:>10}{:>8}{:>10}{:>7}{:>8}{:>10}{not}",
            rank.as_deref().unwrap_or(""),
            machine.name,
            view.weight,
            view.in_flight,
            view.picks,
            view.age_ms,
            counts[view.slot as usize],
        )
        .unwrap_or_default();
    }
    let name = first.map_or("nobody", |slot| &machines[slot as usize].name);
    Ok(format!("{text}{} picks {name}", guest.decider))
}

/// The first pick and the next best ones, asked for as a host does for `n=`.
fn ranks(
    guest: &mut StrategyGuest,
    views: &[TargetView],
    first: Option<u32>,
    request: &mut impl FnMut() -> Request,
) -> Result<Vec<u32>, crate::policy::CallError> {
    let mut order: Vec<u32> = first.into_iter().collect();
    while order.len() < RANKS {
        let is_left = |view: &&TargetView| view.eligible && !order.contains(&view.slot);
        let left: Vec<u32> = views.iter().filter(is_left).map(|view| view.slot).collect();
        if left.is_empty() {
            break;
        }
        match guest.pick_among(request(), &left)? {
            Some(slot) if left.contains(&slot) => order.push(slot),
            _ => break,
        }
    }
    Ok(order)
}

fn loads(
    engine: &PolicyEngine,
    arguments: &Arguments,
    module: &Module,
    machines: &[Machine],
) -> Result<String, String> {
    let Arguments { subject, pool, .. } = arguments;
    let mut guest = FormulaGuest::start(engine, &subject.name(), module, &subject.settings)
        .map_err(|error| error.to_string())?;
    let used: Vec<_> =
        guest.metrics().iter().map(|used| (used.name.clone(), used.fallback)).collect();
    let mut text = format!("{:<20}{:>12}", "machine", "load");
    used.iter().for_each(|(name, _)| text.push_str(&format!("{name:>14}")));
    for (slot, machine) in (0..).zip(machines) {
        let known: Vec<_> = used.iter().map(|(name, _)| machine.metric(pool, name)).collect();
        let values: Option<Vec<f64>> =
            known.iter().zip(&used).map(|(value, (_, fallback))| value.or(*fallback)).collect();
        let load = match values {
            Some(values) => {
                let loads =
                    guest.evaluate(0, &[slot], &values).map_err(|error| error.to_string())?;
                let load = loads.first().copied().unwrap_or(f64::NAN);
                if load.is_finite() && load >= 0.0 {
                    format!("{load:.4}")
                } else {
                    format!("{load} (bad)")
                }
            }
            None => "unknown".to_owned(),
        };
        text.push_str(&format!("\n{:<20}{load:>12}", machine.name));
        for (value, (_, fallback)) in known.iter().zip(&used) {
            let cell = match (value, fallback) {
                (Some(value), _) => format!("{value:.4}"),
                (None, Some(fallback)) if !fallback.is_nan() => format!("({fallback})"),
                (None, _) => "missing".to_owned(),
            };
            text.push_str(&format!("{cell:>14}"));
        }
    }
    Ok(text)
}
