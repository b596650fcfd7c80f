//! What the tables of a comparison show of each entrant, and what that means.

use crate::sim::figures::Figures;

/// A column of the close look; one of which nothing is known is left out.
pub(super) struct Measure {
    pub(super) head: &'static str,
    pub(super) of: fn(&Figures) -> f64,
    /// Which of the figures is the best; `None`: nobody's aim.
    pub(super) best: Option<Best>,
    /// What it means, where the name does not say it.
    pub(super) meaning: &'static str,
}

/// Where the better figures are.
#[derive(Clone, Copy)]
pub(super) enum Best {
    Lowest,
    Highest,
}

const fn lower(head: &'static str, of: fn(&Figures) -> f64, meaning: &'static str) -> Measure {
    Measure { head, of, best: Some(Best::Lowest), meaning }
}

/// How long requests took.
pub(super) const TIMES: [Measure; 7] = [
    lower("mean", |of| of.mean, ""),
    lower("p50", |of| of.p50, ""),
    lower("p99", |of| of.p99, ""),
    lower("p99.9", |of| of.p999, ""),
    lower("quality", |of| of.quality, ""),
    lower("/round robin", |of| of.to_round_robin, "mean over that of round robin"),
    lower("/jsq-now", |of| of.to_jsq, "mean over that of who always sees the shortest queue"),
];

/// Who got how much.
pub(super) const SHARES: [Measure; 7] = [
    lower(
        "herding",
        |of| of.herding,
        "largest share of one server in the picks of a report period, over random's",
    ),
    lower("longest", |of| of.longest, "time mean of the longest queue"),
    lower("/mean", |of| of.imbalance, "longest over the time mean of all queues"),
    lower("deviation", |of| of.deviation, "time mean of the queues' standard deviation"),
    lower("peak", |of| of.peak, "the longest queue of all"),
    Measure {
        head: "evenness",
        of: |of| of.evenness,
        best: Some(Best::Highest),
        meaning: "Jain's index of the picks by speed: 1 all alike, 1/servers all to one",
    },
    lower("moved %", |of| of.moved * 100.0, "requests whose key went elsewhere the last time"),
];

/// What became of a server that has an incident or fails.
pub(super) const FAULTS: [Measure; 6] = [
    lower("failed %", |of| of.failed * 100.0, "requests that failed; they are in no response time"),
    lower(
        "reacted",
        |of| of.reacted,
        "from the incident until its server has less than 0.4 of its fair share, over five units",
    ),
    lower("recovered", |of| of.recovered, "from the end of that until it has 0.8 of it again"),
    lower("its queue", |of| of.its_queue, "the longest queue it had since the incident"),
    Measure {
        head: "excess",
        of: |of| of.excess,
        best: None,
        meaning: "picks of it in the incident beyond what its speed then is worth",
    },
    Measure {
        head: "of dead",
        of: |of| of.picks_of_dead,
        best: Some(Best::Lowest),
        meaning: "picks of it, by all seeds, when it was not heard for the dead rule's time",
    },
];
