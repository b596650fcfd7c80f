//! Every strategy chooses alike as a guest and natively: same calls, same answers.
//!
//! Both run side by side in a simulated farm whose reports are made wild: targets fail, warm up, come
//! and go, requests carry keys. What is equal here is equal in the simulator's figures, too.

use loadline::policy::guest::{Request, TargetView};
use loadline::policy::{Limits, Module, PolicyEngine, built_in};
use loadline::sim::chooser::{Chooser, GuestChooser, Servers};
use loadline::sim::setup::{Content, Setup, Speeds};
use loadline_sdk::Strategy;

use native::Native;

#[path = "../host/benches/support/native.rs"]
mod native;

/// A guest and its twin, which must agree.
struct Both {
    guest: GuestChooser,
    twin: Box<dyn Chooser>,
    calls: u64,
}

/// Bits that differ from call to call and are the same in every run.
fn mix(number: u64) -> u64 {
    let mixed = (number ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 29)
}

impl Both {
    fn bits(&mut self) -> u64 {
        self.calls += 1;
        mix(self.calls)
    }

    /// A report as a wilder farm would send it.
    fn wild(&mut self, view: &TargetView) -> TargetView {
        let bits = self.bits();
        let one_in = |share: u64, shift: u32| (bits >> shift).is_multiple_of(share);
        let load = match (bits >> 8) % 26 {
            0 => f64::NAN,
            1 => f64::INFINITY,
            _ => view.load,
        };
        TargetView {
            load,
            latency_us: (bits % 50_000) as u32,
            error_rate: if one_in(7, 16) { (bits % 100) as f32 / 100.0 } else { 0.0 },
            eligible: !one_in(11, 24),
            warm: if one_in(9, 32) { (bits % 10) as f32 / 10.0 } else { 1.0 },
            ..*view
        }
    }
}

impl Chooser for Both {
    fn update(&mut self, now_ms: u64, hosts: u32, targets: &[TargetView]) -> Result<(), String> {
        let targets: Vec<_> = targets.iter().map(|view| self.wild(view)).collect();
        self.guest.update(now_ms, hosts, &targets)?;
        self.twin.update(now_ms, hosts, &targets)
    }

    fn leave(&mut self, slot: u32) -> Result<(), String> {
        self.guest.leave(slot)?;
        self.twin.leave(slot)
    }

    fn pick(&mut self, request: &Request, servers: &Servers<'_>) -> Result<Option<u32>, String> {
        let key = if self.bits().is_multiple_of(3) { self.bits() % 20 } else { 0 };
        let request = Request { key, ..*request };
        let guest = self.guest.pick(&request, servers)?;
        let twin = self.twin.pick(&request, servers)?;
        if guest == twin {
            return Ok(guest);
        }
        Err(format!("pick {}: the guest chooses {guest:?}, its twin {twin:?}", self.calls))
    }
}

fn check<S: Strategy>(name: &str) {
    let engine = PolicyEngine::new(Limits::patient()).expect("an engine");
    let module = Module::from_wasm(&engine, built_in(name).expect("a built-in")).expect("good");
    let farms = [
        Setup { loss: 0.3, ..farm() },
        Setup {
            hosts: 3,
            every: 3.0,
            delay: 0.5,
            speeds: Speeds::Halves,
            speeds_known: true,
            ..farm()
        },
        Setup { hosts: 2, claims: 0.2, ..farm() },
        Setup { content: Content::Utilisation, every: 10.0, speeds: Speeds::SlowTenth, ..farm() },
    ];
    for setup in farms {
        let both = |host: u64| -> Result<Box<dyn Chooser>, String> {
            let guest = GuestChooser::start(&engine, name, &module, "{}", host)?;
            let twin = Box::new(Native::<S>::start("{}", host)?);
            Ok(Box::new(Both { guest, twin, calls: 0 }))
        };
        if let Err(difference) = loadline::sim::run(&setup, 1, both) {
            panic!("{name} in {setup:?}: {difference}");
        }
    }
}

fn farm() -> Setup {
    Setup { servers: 20, requests: 2_000, ..Setup::default() }
}

macro_rules! twins {
    ($($test:ident: $strategy:ty = $name:literal;)*) => {
        $(#[test]
        fn $test() {
            check::<$strategy>($name);
        })*

        #[test]
        fn every_strategy_is_here() {
            let here = [$($name),*];
            let formulas = ["sessions", "weighted"];
            for name in loadline::policy::built_in_names() {
                assert!(here.contains(&name) || formulas.contains(&name), "{name} is missing");
            }
        }
    };
}

twins! {
    balanced: policy_balanced::Balanced = "balanced";
    bounded_hash: policy_bounded_hash::BoundedHash = "bounded-hash";
    failover: policy_failover::Failover = "failover";
    fewest_clients: policy_fewest_clients::FewestClients = "fewest-clients";
    first_available: policy_first_available::FirstAvailable = "first-available";
    fuzzy: policy_fuzzy::Fuzzy = "fuzzy";
    least_loaded: policy_least_loaded::LeastLoaded = "least-loaded";
    p2c: policy_p2c::P2c = "p2c";
    peak_ewma: policy_peak_ewma::PeakEwma = "peak-ewma";
    prequal: policy_prequal::Prequal = "prequal";
    random: policy_random::Random = "random";
    rendezvous: policy_rendezvous::Rendezvous = "rendezvous";
    round_robin: policy_round_robin::RoundRobin = "round-robin";
    smooth_weighted: policy_smooth_weighted::SmoothWeighted = "smooth-weighted";
    weighted_random: policy_weighted_random::WeightedRandom = "weighted-random";
}
