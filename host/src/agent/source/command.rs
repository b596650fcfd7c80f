//! A program that prints a number: run, read, and gone within its time limit.
//!
//! It runs in a process group of its own; whatever is left of the group when its time is over, or
//! when the program itself has ended, is killed, and only then the program is waited for: until then the
//! group's number is taken and no stranger's. So nothing stays behind, not even a zombie, but what
//! leaves the group on purpose. Its environment is the agent's, its input is empty.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command as Process};
use tokio::signal::unix::{self, SignalKind};
use tokio::time::timeout;

use super::Reading;

/// Bytes of output that are looked at; the rest is read and forgotten.
const OUTPUT_BYTES_MAX: usize = 64 << 10;
/// Time for the pipes to run dry after everyone who wrote to them was killed.
const DRAIN: Duration = Duration::from_millis(200);

/// One program with its arguments.
#[derive(Debug)]
pub(in crate::agent) struct Command {
    words: Vec<String>,
    limit: Duration,
}

/// What a run printed.
#[derive(Debug, Default)]
struct Printed {
    output: Vec<u8>,
    complaint: Vec<u8>,
}

impl Command {
    pub(super) fn new(words: &[String], limit: Duration) -> Self {
        Self { words: words.to_vec(), limit }
    }

    /// Runs it once.
    pub(super) async fn read(&self) -> Reading {
        match self.run().await {
            Ok(output) => first_number(&output),
            Err(why) => Reading::Silent(why),
        }
    }

    async fn run(&self) -> Result<Vec<u8>, String> {
        let [program, arguments @ ..] = &*self.words else {
            return Err("there is no program".to_owned()); // the configuration names one
        };
        let mut process = Process::new(program);
        process.args(arguments).process_group(0).kill_on_drop(true);
        process.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Before it starts, so that no end is missed.
        let children = unix::signal(SignalKind::child());
        let children = children.map_err(|error| format!("cannot hear of its end: {error}"))?;
        let child = process.spawn().map_err(|error| format!("cannot start {program}: {error}"))?;
        let mut group = Group { child, children };
        let mut printed = Printed::default();
        let status = group.watch(&mut printed, self.limit).await?;
        if status.success() {
            return Ok(printed.output);
        }
        let complaint = String::from_utf8_lossy(&printed.complaint);
        let complaint = complaint.lines().next().unwrap_or_default().trim();
        Err(format!("{program} failed with {status}: {complaint}"))
    }
}

/// A running program and all that it starts; killed when dropped.
struct Group {
    child: Child,
    /// Says that some child has ended.
    children: unix::Signal,
}

impl Group {
    async fn watch(
        &mut self,
        printed: &mut Printed,
        limit: Duration,
    ) -> Result<ExitStatus, String> {
        let (output, complaint) = (self.child.stdout.take(), self.child.stderr.take());
        let reading = async {
            tokio::join!(
                read_all(output, &mut printed.output),
                read_all(complaint, &mut printed.complaint),
            )
        };
        tokio::pin!(reading);
        let mut read = false;
        let pid = self.pid();
        let ended = timeout(limit, async {
            let end = ended(pid, &mut self.children);
            tokio::pin!(end);
            loop {
                tokio::select! {
                    () = &mut end => return,
                    _ = &mut reading, if !read => read = true,
                }
            }
        });
        let ended = ended.await;
        // Those that it left behind hold the pipes open and would run on.
        kill(pid);
        let status = self.child.wait().await;
        if !read {
            timeout(DRAIN, reading).await.ok(); // who left the group may still hold them
        }
        let status = status.map_err(|error| format!("cannot wait for it: {error}"))?;
        match ended {
            Ok(()) => Ok(status),
            Err(_) => Err(format!("did not end within {limit:?} and was killed")),
        }
    }

    /// The group's number is that of the program that leads it.
    fn pid(&self) -> Option<Pid> {
        self.child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        kill(self.pid()); // none once it was waited for
    }
}

/// Waits until a child has ended, but does not reap it: its number stays taken.
async fn ended(child: Option<Pid>, children: &mut unix::Signal) {
    let Some(child) = child else { return };
    let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    // What is no answer is an end that cannot be put in words.
    while waitid(Id::Pid(child), look) == Ok(WaitStatus::StillAlive) {
        if children.recv().await.is_none() {
            return; // nothing is heard of children any more: the runtime ends
        }
    }
}

fn kill(group: Option<Pid>) {
    if let Some(group) = group {
        killpg(group, Signal::SIGKILL).ok(); // no such group: nobody is left
    }
}

/// Reads to the end and keeps the beginning.
async fn read_all(from: Option<impl AsyncRead + Unpin>, into: &mut Vec<u8>) {
    let Some(mut from) = from else { return };
    let mut chunk = [0; 4_096];
    while let Ok(len @ 1..) = from.read(&mut chunk).await {
        let room = OUTPUT_BYTES_MAX - into.len();
        into.extend_from_slice(&chunk[..len.min(room)]);
    }
}

/// The first word that is a finite number.
fn first_number(output: &[u8]) -> Reading {
    let text = String::from_utf8_lossy(output);
    let finite = |word: &str| word.parse().ok().filter(|value: &f64| value.is_finite());
    let number = text.split_whitespace().find_map(finite);
    let why = || Reading::Useless("it printed no number".to_owned());
    number.map_or_else(why, Reading::Value)
}

#[cfg(test)]
mod tests;
