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

use tokio::sync::Semaphore;

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
    Blocking(Option<Box<dyn Read>>, Turns),
    /// A program.
    Command(Command),
}

/// How many are read at once; `None`: any number.
type Turns = Option<&'static Semaphore>;

/// Pages that are fetched at once: those that do not answer must leave threads for everything else
/// that may block, of which the runtime has 512.
static PAGE_TURNS: Semaphore = Semaphore::const_new(64);

/// Something whose reading may block.
pub(super) trait Read: Send {
    /// One reading for each of its metrics.
    fn read(&mut self) -> Vec<Reading>;
}

impl Reader {
    /// One reading for each of the `wanted` metrics.
    pub(super) async fn read(&mut self, wanted: usize) -> Vec<Reading> {
        match self {
            Self::Command(command) => vec![command.read().await; wanted],
            Self::Blocking(reader, turns) => {
                // Waits without a thread, and holds its turn as long as the thread, whoever waits for it.
                let turn = match turns {
                    Some(turns) => turns.acquire().await.ok(), // it is never closed
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
            Reader::Blocking(Some(Box::new(page)), Some(&PAGE_TURNS))
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
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::config::MetricConfig;

    #[cfg(feature = "agent")]
    #[test]
    fn each_path_that_may_hang_has_a_reader_of_its_own() {
        let sources =
            ["disk.space", "disk.space:/", "disk.space:/far", "cpu", "memory"].map(|what| {
                let source = format!("system:{what}").parse().expect("a source");
                MetricConfig { every: Duration::from_secs(1), ..MetricConfig::new(what, source) }
            });
        let config = AgentConfig { metrics: sources.into(), ..AgentConfig::default() };
        let places: Vec<_> = plan(&config).into_iter().map(|planned| planned.places).collect();
        let meters = [vec![0], vec![1], vec![2], vec![3, 4]];
        assert_eq!(places, meters.map(|of| of.into_iter().map(Place::Meter).collect::<Vec<_>>()));
    }

    /// Hangs until it is told a value.
    struct Hanging(mpsc::Receiver<f64>);

    impl Read for Hanging {
        fn read(&mut self) -> Vec<Reading> {
            vec![self.0.recv().map_or(Reading::NotYet, Reading::Value)]
        }
    }

    #[test]
    fn pages_that_hang_leave_threads_for_what_answers() {
        static ONE: Semaphore = Semaphore::const_new(1);
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.max_blocking_threads(2).enable_time().build().expect("a runtime");
        runtime.block_on(async {
            let (tell, told): (Vec<_>, Vec<_>) = (0..2).map(|_| mpsc::channel()).unzip();
            let pages = told.into_iter().map(|told| {
                let mut page = Reader::Blocking(Some(Box::new(Hanging(told))), Some(&ONE));
                tokio::spawn(async move { page.read(1).await })
            });
            let pages: Vec<_> = pages.collect();
            while ONE.available_permits() > 0 {
                tokio::task::yield_now().await;
            }
            let (answer, answered) = mpsc::channel();
            answer.send(3.0).expect("it listens");
            let mut other = Reader::Blocking(Some(Box::new(Hanging(answered))), None);
            let read = tokio::time::timeout(Duration::from_secs(10), other.read(1)).await;
            for (tell, value) in tell.iter().zip([1.0, 2.0]) {
                tell.send(value).expect("it listens");
            }
            assert_eq!(read, Ok(vec![Reading::Value(3.0)]));
            for (page, value) in pages.into_iter().zip([1.0, 2.0]) {
                assert_eq!(page.await.expect("read"), [Reading::Value(value)]);
            }
        });
    }
}
