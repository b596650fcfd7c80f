//! What one host knows of the servers, and what it tells its strategy.
//!
//! Invariants: a view is the last report that arrived, with the picks made since its capture and the
//! averages of the outcomes that this host's clients told; a server that is gone has no view. Times
//! are in nanoseconds of the simulation; the strategy is told its own milliseconds.

use std::collections::{BTreeSet, VecDeque};

use super::averages::Averages;
use super::chooser::{Chooser, Servers};
use crate::policy::guest::{Request, TargetView};

/// A host with its strategy.
pub(super) struct Host<'c> {
    chooser: &'c mut dyn Chooser,
    known: Vec<Known>,
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
    /// Capture and content of the last report.
    told: Option<(u64, TargetView)>,
    averages: Averages,
}

impl Known {
    fn view(&self, now: u64, millisecond: u64) -> Option<TargetView> {
        let (captured, view) = self.told.filter(|_| !self.gone)?;
        let (latency_us, error_rate) = self.averages.read(now / millisecond);
        let picks = u32::try_from(self.picks.len()).unwrap_or(u32::MAX);
        let age_ms = u32::try_from((now - captured) / millisecond).unwrap_or(u32::MAX);
        Some(TargetView { picks, age_ms, latency_us, error_rate, ..view })
    }
}

impl<'c> Host<'c> {
    pub(super) fn new(chooser: &'c mut dyn Chooser, servers: usize, millisecond: u64) -> Self {
        Self { chooser, known: vec![Known::default(); servers], millisecond, news: BTreeSet::new() }
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

    /// A report arrives: not told yet.
    pub(super) fn hear(&mut self, now: u64, captured: u64, view: TargetView) {
        let known = &mut self.known[view.slot as usize];
        while known.picks.front().is_some_and(|time| *time <= captured) {
            known.picks.pop_front();
        }
        known.heard = now;
        known.gone = false;
        known.told = Some((captured, view));
    }

    /// Another host says that it sent a request there at this time; whether that is news.
    pub(super) fn hear_of_pick(&mut self, time: u64, server: usize) -> bool {
        let known = &mut self.known[server];
        let is_news = !known.gone && known.told.is_some_and(|(captured, _)| time > captured);
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

    /// Calls the server gone if it was not heard for so long. Its outcomes are forgotten, as a host
    /// forgets them with its row.
    pub(super) fn expire(&mut self, now: u64, server: usize, silence: u64) -> Result<(), String> {
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
