//! What a frame of a TCP connection is worth: a report for the present keys, and when the next is due.

use std::time::Duration;

use tokio::sync::watch;

use crate::report::{Keyring, wire};
use crate::transport::Verdict;

/// Intervals without a report after which a TCP connection is closed.
const PATIENCE_INTERVALS: u32 = 4;
/// However short the interval is: a host that is paused finds its connections as they were.
const PATIENCE_MIN: Duration = Duration::from_secs(10);

/// What a frame of a TCP connection is worth to who has these keys.
pub(super) fn judge(keyring: watch::Receiver<Keyring>) -> impl Fn(&[u8]) -> Verdict + Clone {
    move |frame| match wire::decode(frame, &keyring.borrow()) {
        Ok(reports) => {
            let interval_ms = reports.iter().map(|report| report.interval_ms).max().unwrap_or(0);
            let interval = Duration::from_millis(interval_ms.into());
            Verdict::Good((interval * PATIENCE_INTERVALS).max(PATIENCE_MIN))
        }
        Err(_) => Verdict::Bad, // counted by its reason where reports are read
    }
}
