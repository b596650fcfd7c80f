//! What one host knows of the servers, and what it tells its strategy.
//!
//! Invariants: a view is the last report that arrived, with the picks made since its capture and the
//! averages of the outcomes that this host's clients told; a server that is gone has no view, and
//! the fleet's dead rule says when it is. Times are in nanoseconds of the simulation; the strategy is told
//! its own milliseconds.

use std::collections::{BTreeSet, VecDeque};

use super::averages::Averages;
use super::chooser::{Chooser, Servers};
use super::setup::Setup;
use crate::fleet::{DeadRule, Loss};
use crate::policy::guest::{Request, TargetView};

/// As configured unless said otherwise.
const DEAD_RULE: DeadRule = DeadRule { miss_limit: 3 };

/// A report as it leaves a server.
#[derive(Debug, Clone, Copy)]
pub(super) struct Report {
    /// Counts from the run's start.
    pub(super) number: u64,
    pub(super) captured: u64,
    pub(super) view: TargetView,
}

/// A host with its strategy.
pub(super) struct Host<'c> {
    chooser: &'c mut dyn Chooser,
    known: Vec<Known>,
    /// Milliseconds between two reports, as they say.
    interval_ms: u32,
    /// Nanoseconds of a strategy's millisecond.
    millisecond: u64,
    /// Servers with outcomes that the strategy has not been told.
    news: BTreeSet<usize>,
}

/// What is known of one server.
#[derive(Clone, Default)]
struct Known {
    /// Times of picks since the last capture that arrived.
    picks: VecDeque<u64>,
    heard: u64,
    gone: bool,
    /// The last report that arrived, and which ones did not.
    told: Option<Report>,
    loss: Loss,
    averages: Averages,
}

impl Known {
    fn view(&self, now: u64, millisecond: u64) -> Option<TargetView> {
        let Report { captured, view, .. } = self.told.filter(|_| !self.gone)?;
        let (latency_us, error_rate) = self.averages.read(now / millisecond);
        let picks = u32::try_from(self.picks.len()).unwrap_or(u32::MAX);
        // Of whole milliseconds, as a host's: or one report would have two times of capture.
        let age_ms = now / millisecond - captured / millisecond;
        let age_ms = u32::try_from(age_ms).unwrap_or(u32::MAX);
        Some(TargetView { picks, age_ms, latency_us, error_rate, ..view })
    }
}

impl<'c> Host<'c> {
    pub(super) fn new(chooser: &'c mut dyn Chooser, setup: &Setup) -> Self {
        let known = vec![Known::default(); setup.servers];
        let interval_ms = (setup.every * setup.service_ms).round().max(1.0) as u32;
        let (millisecond, news) = (setup.millisecond(), BTreeSet::new());
        Self { chooser, known, interval_ms, millisecond, news }
    }

    /// The strategy's choice, if it names a server.
    pub(super) fn choose(
        &mut self,
        request: &Request,
        servers: &Servers<'_>,
    ) -> Result<Option<usize>, String> {
        let chosen = self.chooser.pick(request, servers)?;
        let server = chosen.map(|slot| slot as usize);
        Ok(server.filter(|server| *server < self.known.len()))
    }

    /// A request goes to this server.
    pub(super) fn send(&mut self, now: u64, server: usize) {
        self.known[server].picks.push_back(now);
    }

    /// Whether it calls the server gone.
    pub(super) fn misses(&self, server: usize) -> bool {
        self.known[server].gone
    }

    /// A report arrives: not told yet. After so long a silence its server will be gone.
    pub(super) fn hear(&mut self, now: u64, report: Report) -> u64 {
        let known = &mut self.known[report.view.slot as usize];
        while known.picks.front().is_some_and(|time| *time <= report.captured) {
            known.picks.pop_front();
        }
        if let Some(last) = known.told {
            known.loss.received(report.number - last.number, DEAD_RULE.brief_max());
        }
        known.heard = now;
        known.gone = false;
        known.told = Some(report);
        self.patience(report.view.slot as usize)
    }

    fn patience(&self, server: usize) -> u64 {
        DEAD_RULE.silence_ms(&self.known[server].loss, self.interval_ms) * self.millisecond
    }

    /// Another host says that it sent a request there at this time; whether that is news.
    pub(super) fn hear_of_pick(&mut self, time: u64, server: usize) -> bool {
        let known = &mut self.known[server];
        let is_news = !known.gone && known.told.is_some_and(|report| time > report.captured);
        if is_news {
            let place = known.picks.partition_point(|earlier| *earlier <= time);
            known.picks.insert(place, time);
        }
        is_news
    }

    /// A client says how its request went; `latency` in nanoseconds. Told later, by
    /// [`tell_news`](Self::tell_news).
    pub(super) fn learn(&mut self, now: u64, server: usize, latency: u64, ok: bool) {
        if self.known[server].gone {
            return; // a host refuses outcomes of who is gone
        }
        let latency_us = u32::try_from(latency * 1_000 / self.millisecond).unwrap_or(u32::MAX);
        self.known[server].averages.record(latency_us, ok, now / self.millisecond);
        self.news.insert(server);
    }

    /// Tells the strategy of these servers.
    pub(super) fn tell(
        &mut self,
        now: u64,
        hosts: u32,
        servers: impl IntoIterator<Item = usize>,
    ) -> Result<(), String> {
        let view = |server: usize| {
            self.news.remove(&server);
            self.known[server].view(now, self.millisecond)
        };
        let views: Vec<_> = servers.into_iter().filter_map(view).collect();
        self.chooser.update(now / self.millisecond, hosts, &views)
    }

    /// Tells the strategy of what clients said since the last time.
    pub(super) fn tell_news(&mut self, now: u64, hosts: u32) -> Result<(), String> {
        if self.news.is_empty() {
            return Ok(());
        }
        let servers = std::mem::take(&mut self.news);
        self.tell(now, hosts, servers)
    }

    /// Calls the server gone if it was not heard for so long that the dead rule says so. Its outcomes are
    /// forgotten, as a host forgets them with its row.
    pub(super) fn expire(&mut self, now: u64, server: usize) -> Result<(), String> {
        let silence = self.patience(server);
        let known = &mut self.known[server];
        if known.gone || now - known.heard < silence {
            return Ok(());
        }
        known.gone = true;
        known.averages = Averages::default();
        self.news.remove(&server);
        self.chooser.leave(u32::try_from(server).unwrap_or(u32::MAX))
    }
}
