//! What a relay lost or refused in, one line a minute out, with totals: a relay has no metrics.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::sleep;

use crate::relay::Relayed;
use crate::transport::Status;

/// Reports that did not go through, or not whole, since they were told last, by reason.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<Counts>);

/// `duplicate 12, shortened 1`
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Counts(BTreeMap<&'static str, u64>);

/// What happened within a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Losses {
    kernel_drops: u64,
    truncated: u64,
    receive_errors: u64,
    refused: Counts,
}

/// Whether this happens on healthy networks: reports that come by two ways, and those of others.
pub(super) fn is_healthy(reason: &str) -> bool {
    matches!(reason, "duplicate" | "hops" | "other_farm")
}

impl Refusals {
    pub(super) fn add(&self, relayed: &Relayed) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (_, reason) in &relayed.refused {
            *counts.0.entry(reason).or_default() += 1;
        }
        if !relayed.shortened.is_empty() {
            *counts.0.entry("shortened").or_default() += relayed.shortened.len() as u64;
        }
    }

    fn take(&self) -> Counts {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (index, (reason, count)) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{reason} {count}")?;
        }
        Ok(())
    }
}

/// Tells once in so long what was lost before it could be read or was refused, if anything was.
pub(super) async fn tell_losses(
    status: Arc<Status>,
    refusals: Arc<Refusals>,
    every: Duration,
    say: impl Fn(Losses),
) {
    let mut before = [0; 3];
    loop {
        sleep(every).await;
        let now = [&status.kernel_drops, &status.truncated, &status.receive_errors]
            .map(|count| count.load(Ordering::Relaxed));
        let [kernel_drops, truncated, receive_errors] = [0, 1, 2].map(|i| now[i] - before[i]);
        let refused = refusals.take();
        if now != before || !refused.0.is_empty() {
            say(Losses { kernel_drops, truncated, receive_errors, refused });
            before = now;
        }
    }
}

pub(super) fn say_losses(losses: Losses) {
    let is_loss = losses.is_loss();
    let Losses { kernel_drops, truncated, receive_errors, refused } = losses;
    let what = "reports that were lost on their way in or not relayed, within a minute";
    if is_loss {
        tracing::warn!(kernel_drops, truncated, receive_errors, %refused, "{what}");
    } else {
        tracing::debug!(%refused, "{what}");
    }
}

impl Losses {
    fn is_loss(&self) -> bool {
        self.kernel_drops + self.truncated + self.receive_errors > 0
            || !self.refused.0.keys().all(|reason| is_healthy(reason))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use tokio::sync::mpsc;

    use super::*;
    use crate::report::fit::LeftOut;

    const FROM: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[tokio::test]
    async fn losses_are_told_each_once_and_only_where_there_are_any() {
        let (status, refusals) = (Arc::new(Status::default()), Arc::new(Refusals::default()));
        let every = Duration::from_millis(10);
        let (said, mut words) = mpsc::unbounded_channel();
        let say = move |losses| said.send(losses).expect("heard");
        let telling =
            tokio::spawn(tell_losses(Arc::clone(&status), Arc::clone(&refusals), every, say));
        let lost = |kernel_drops, truncated, receive_errors| {
            let refused = Counts::default();
            Some(Losses { kernel_drops, truncated, receive_errors, refused })
        };
        status.kernel_drops.fetch_add(5, Ordering::Relaxed);
        assert_eq!(words.recv().await, lost(5, 0, 0));
        status.kernel_drops.fetch_add(7, Ordering::Relaxed);
        assert_eq!(words.recv().await, lost(7, 0, 0));
        sleep(10 * every).await;
        assert!(words.try_recv().is_err(), "nothing was lost since");
        status.truncated.fetch_add(1, Ordering::Relaxed);
        assert_eq!(words.recv().await, lost(0, 1, 0));
        status.receive_errors.fetch_add(2, Ordering::Relaxed);
        assert_eq!(words.recv().await, lost(0, 0, 2));
        let relayed = |refused: &[&'static str], shortened| Relayed {
            refused: refused.iter().map(|reason| (FROM, *reason)).collect(),
            shortened,
            ..Relayed::default()
        };
        let shortened = vec![(FROM, LeftOut { metrics: 1, services: 0 })];
        refusals.add(&relayed(&["hops", "duplicate", "hops"], shortened));
        let told = words.recv().await.expect("a line");
        assert!(told.is_loss());
        assert_eq!(told.refused.to_string(), "duplicate 1, hops 2, shortened 1");
        refusals.add(&relayed(&["duplicate"], Vec::new()));
        let told = words.recv().await.expect("another one");
        assert_eq!((told.is_loss(), told.refused.to_string()), (false, "duplicate 1".to_owned()));
        telling.abort();
    }
}
