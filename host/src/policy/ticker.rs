//! What makes deadlines work: a thread that moves the epoch every [`TICK`], and one that watches it.
//!
//! Invariants: both live as long as the engine, of which they hold weak references; the epoch is moved by
//! nobody else. While the ticker is dead or held, its watchdog ticks in its place, so that no guest runs for
//! ever, and says so once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use std::{io, thread};

use wasmtime::{Engine, EngineWeak};

/// Time between two ticks of the epoch: the grain of every deadline.
pub(super) const TICK: Duration = Duration::from_millis(5);
/// Time between two looks of the watchdog.
const LOOK: Duration = Duration::from_millis(50);
/// Looks without a tick after which the ticker is held. Looks are counted, not time: of a process that was
/// stopped neither thread has run.
const LOOKS_MAX: u32 = 10;

/// How the ticker is doing.
#[derive(Debug, Clone, Default)]
pub struct Ticker(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    ticks: AtomicU64,
    is_held: AtomicBool,
    holds: AtomicU64,
}

impl Ticker {
    /// Starts both threads; the ticker calls `beat` to wait for its next tick.
    pub(super) fn start(engine: &Engine, beat: impl FnMut() + Send + 'static) -> io::Result<Self> {
        let ticker = Self::default();
        let (ticking, watching) = (ticker.clone(), ticker.clone());
        let (ticked, watched) = (engine.weak(), engine.weak());
        let thread = |name: &str| thread::Builder::new().name(name.to_owned());
        thread("loadline-epoch").spawn(move || ticking.tick(&ticked, beat))?;
        thread("loadline-watchdog").spawn(move || watching.watch(&watched))?;
        Ok(ticker)
    }

    /// Whether the watchdog ticks in its place now.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.0.is_held.load(Ordering::Relaxed)
    }

    /// How often that was so.
    #[must_use]
    pub fn holds(&self) -> u64 {
        self.0.holds.load(Ordering::Relaxed)
    }

    fn tick(&self, engine: &EngineWeak, mut beat: impl FnMut()) {
        while let Some(engine) = engine.upgrade() {
            engine.increment_epoch();
            drop(engine);
            self.0.ticks.fetch_add(1, Ordering::Relaxed);
            beat();
        }
    }

    fn watch(&self, engine: &EngineWeak) {
        let (mut seen, mut looks) = (0, 0);
        loop {
            let is_held = self.is_held();
            wait(if is_held { TICK } else { LOOK });
            let Some(engine) = engine.upgrade() else { return };
            let ticks = self.0.ticks.load(Ordering::Relaxed);
            looks = if ticks == seen { looks + 1 } else { 0 };
            seen = ticks;
            match (is_held, looks) {
                (true, 0) => {
                    self.0.is_held.store(false, Ordering::Relaxed);
                    tracing::info!("the ticker of policies' deadlines ticks again");
                }
                (true, _) => engine.increment_epoch(),
                (false, LOOKS_MAX..) => {
                    self.0.holds.fetch_add(1, Ordering::Relaxed);
                    self.0.is_held.store(true, Ordering::Relaxed);
                    tracing::error!(
                        "the ticker of policies' deadlines does not tick: its watchdog does so in its \
                         place; restart when you can"
                    );
                }
                (false, _) => {}
            }
        }
    }
}

/// The usual beat.
pub(super) fn wait_for_tick() {
    wait(TICK);
}

#[expect(clippy::disallowed_methods, reason = "the ticker is the clock itself")]
fn wait(time: Duration) {
    thread::sleep(time);
}
