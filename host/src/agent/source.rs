//! What an agent reads and how: the configuration's sources in, readers with their beats out.
//!
//! Metrics that come from one place (a page, a command, files of /proc that cannot hang) share one
//! reader, so that each page is fetched once a beat. Readers know no clock but the one they stamp
//! their samples with, and keep only what a difference needs.

mod command;
mod fetch;
mod http_json;
mod nginx;
mod orca;
mod page;
mod prometheus;
mod rate;
#[cfg(feature = "agent")]
mod system;

use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

use super::{Place, all_metrics};
use crate::config::{AgentConfig, MetricSource, Part, SourceKind, SystemSource};
use command::Command;
use page::{Page, Parts};
#[cfg(feature = "agent")]
use system::System;

/// What a source gave for one metric.
#[derive(Debug, Clone, PartialEq)]
pub enum Reading {
    /// A number. One that is not finite is refused by the agent.
    Value(f64),
    /// A number of what could be counted, and what was left out.
    Partly(f64, String),
    /// It takes one more sample: this was the first of a difference.
    NotYet,
    /// The source answered, but not with a number to use: why.
    Useless(String),
    /// The source did not answer: why.
    Silent(String),
}

/// A source with the places of what it gives, in their order.
pub(super) struct Planned {
    pub(super) every: Duration,
    pub(super) reader: Reader,
    pub(super) places: Vec<Place>,
}

/// Reads one source.
pub(super) enum Reader {
    /// Files and pages: read on a thread for what may block.
    Blocking(Option<Box<dyn Read>>, Option<Turns>),
    /// A program.
    Command(Command),
}

/// How many are read at once; where there are none: any number.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turns {
    usual: &'static Semaphore,
    /// Of those that ran out of time the last time: they wait for each other only.
    slow: &'static Semaphore,
}

/// Pages that are fetched at once: those that do not answer must leave threads for everything else
/// that may block, of which the runtime has 512.
static PAGE_TURNS: Semaphore = Semaphore::const_new(64);
/// And of those that did not answer the last time.
static SLOW_PAGE_TURNS: Semaphore = Semaphore::const_new(16);

/// Something whose reading may block.
pub(super) trait Read: Send {
    /// One reading for each of its metrics.
    fn read(&mut self) -> Vec<Reading>;

    /// Whether the last reading took all the time that it may take.
    fn ran_out_of_time(&self) -> bool {
        false
    }
}

impl Turns {
    /// Waits without a thread.
    async fn wait(self, is_slow: bool) -> Option<SemaphorePermit<'static>> {
        let turns = if is_slow { self.slow } else { self.usual };
        turns.acquire().await.ok() // it is never closed
    }
}

impl Reader {
    /// One reading for each of the `wanted` metrics.
    pub(super) async fn read(&mut self, wanted: usize) -> Vec<Reading> {
        match self {
            Self::Command(command) => vec![command.read().await; wanted],
            Self::Blocking(reader, turns) => {
                // It is held as long as the thread, whoever waits for it.
                let is_slow = reader.as_ref().is_some_and(|reader| reader.ran_out_of_time());
                let turn = match turns {
                    Some(turns) => turns.wait(is_slow).await,
                    None => None,
                };
                let Some(mut taken) = reader.take() else {
                    return vec![Reading::Silent("its reader failed".to_owned()); wanted];
                };
                let read = tokio::task::spawn_blocking(move || {
                    let readings = taken.read();
                    drop(turn);
                    (taken, readings)
                });
                match read.await {
                    Ok((taken, readings)) => {
                        *reader = Some(taken);
                        readings
                    }
                    Err(error) => {
                        tracing::error!(%error, "reading a source failed; it is not read again");
                        vec![Reading::Silent("its reader failed".to_owned()); wanted]
                    }
                }
            }
        }
    }
}

/// One thing to read.
struct Wish<'a> {
    place: Place,
    source: &'a MetricSource,
    every: Duration,
    timeout: Duration,
}

/// What makes two wishes one reader's: where they are read, and how often.
#[derive(PartialEq)]
struct Origin<'a> {
    what: What<'a>,
    every: Duration,
    timeout: Duration,
}

#[derive(PartialEq)]
enum What<'a> {
    /// Files of the kernel that answer at once.
    Kernel,
    /// Every process, which takes time.
    Processes,
    /// File systems, which may hang: each path by itself.
    Space(Option<&'a str>),
    Page(&'a str, &'static str),
    Command(&'a [String]),
}

/// The readers of an agent, each with its beat.
pub(super) fn plan(config: &AgentConfig) -> Vec<Planned> {
    let mut groups: Vec<(Origin<'_>, Vec<Wish<'_>>)> = Vec::new();
    for wish in wishes(config) {
        let Some(what) = what(wish.source) else { continue };
        let origin = Origin { what, every: wish.every, timeout: wish.timeout };
        match groups.iter_mut().find(|(known, _)| *known == origin) {
            Some((_, group)) => group.push(wish),
            None => groups.push((origin, vec![wish])),
        }
    }
    let planned = |(origin, group): (Origin<'_>, Vec<Wish<'_>>)| Planned {
        every: origin.every,
        places: group.iter().map(|wish| wish.place).collect(),
        reader: reader(&origin, &group),
    };
    groups.into_iter().map(planned).collect()
}

fn wishes(config: &AgentConfig) -> impl Iterator<Item = Wish<'_>> {
    let metrics = all_metrics(config).enumerate().map(|(index, metric)| Wish {
        place: Place::Meter(index),
        source: &metric.source,
        every: metric.every,
        timeout: metric.timeout,
    });
    let counters = config.services.iter().enumerate().flat_map(|(number, service)| {
        let counters = service.offer.counters().into_iter().enumerate();
        counters.filter_map(move |(index, source)| {
            let place = Place::Tally(3 * number + index);
            Some(Wish {
                place,
                source: source?,
                every: service.offer.every,
                timeout: service.offer.timeout,
            })
        })
    });
    metrics.chain(counters)
}

/// Where it is read; `None` where it is pushed.
fn what(source: &MetricSource) -> Option<What<'_>> {
    Some(match &source.kind {
        SourceKind::Push => return None,
        SourceKind::System(SystemSource { what, .. }) if what.is_of_processes() => What::Processes,
        SourceKind::System(SystemSource { what, of }) if what.is_of_file_systems() => {
            What::Space(of.as_deref())
        }
        SourceKind::System(_) => What::Kernel,
        SourceKind::Page { url, part } => What::Page(url, part.form()),
        SourceKind::Command(words) => What::Command(words),
    })
}

fn reader(origin: &Origin<'_>, group: &[Wish<'_>]) -> Reader {
    match origin.what {
        What::Command(words) => Reader::Command(Command::new(words, origin.timeout)),
        What::Page(url, _) => {
            let parts: Vec<Part> = group.iter().filter_map(Wish::part).collect();
            let page = Page::new(url, origin.timeout, Parts::new(&parts));
            let turns = Turns { usual: &PAGE_TURNS, slow: &SLOW_PAGE_TURNS };
            Reader::Blocking(Some(Box::new(page)), Some(turns))
        }
        What::Kernel | What::Processes | What::Space(_) => {
            Reader::Blocking(Some(of_machine(group)), None)
        }
    }
}

#[cfg(feature = "agent")]
fn of_machine(group: &[Wish<'_>]) -> Box<dyn Read> {
    Box::new(System::new(group.iter().filter_map(Wish::system)))
}

/// A host alone samples no machine; its configuration refuses such sources.
#[cfg(not(feature = "agent"))]
fn of_machine(group: &[Wish<'_>]) -> Box<dyn Read> {
    struct Nothing(usize);
    impl Read for Nothing {
        fn read(&mut self) -> Vec<Reading> {
            let why = "this program was built without the agent role";
            vec![Reading::Useless(why.to_owned()); self.0]
        }
    }
    Box::new(Nothing(group.len()))
}

impl Wish<'_> {
    /// What is wanted of the page. A counter of a service is wanted as it is, not as a rate.
    fn part(&self) -> Option<Part> {
        let SourceKind::Page { part, .. } = &self.source.kind else { return None };
        let counted = matches!(self.place, Place::Tally(_));
        Some(if counted { part.as_it_is() } else { part.clone() })
    }

    #[cfg(feature = "agent")]
    fn system(&self) -> Option<SystemSource> {
        let SourceKind::System(source) = &self.source.kind else { return None };
        Some(source.clone())
    }
}

#[cfg(test)]
mod tests;
