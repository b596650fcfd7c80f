//! `/metrics`, and the page that explains it to people.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::{Farm, get, pool};

const PAGE: &str = include_str!("../config/METRICS.md");

/// Label names by metric, as the page has them.
fn explained() -> BTreeMap<String, BTreeSet<String>> {
    let (_, table) = PAGE.split_once("# What a host says of itself").expect("its section");
    let quoted = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `"));
    let row = |row: &str| {
        let mut cells = row.split('|');
        let name = cells.next()?.trim().trim_end_matches('`').to_owned();
        Some((name, quoted(cells.next()?)))
    };
    rows.filter_map(row).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_metric_stands_on_the_page_with_its_labels_and_no_other() {
    let mut farm = Farm::with_pools(vec![pool("default", "weighted", "least-loaded")]).await;
    farm.report(&["a"], &[("cpu", 0.5), ("memory", 0.5)]);
    farm.eligible(1).await;
    let (_, text) = get(&farm.url("/metrics"), "");
    let explained = explained();
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let said = types.map(|line| match line.split_once(' ').unwrap() {
        (name, "counter") => format!("{name}_total"),
        (name, _) => name.to_owned(),
    });
    assert_eq!(said.collect::<BTreeSet<_>>(), explained.keys().cloned().collect());
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (series, _) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let labels = labels.split("\",").filter_map(|label| label.split_once('='));
        let labels: BTreeSet<_> = labels.map(|(name, _)| name.to_owned()).collect();
        assert_eq!(Some(&labels), explained.get(name), "{line}");
    }
    farm.stop().await;
}

/// Which generation serves can be joined with what it did.
#[tokio::test(flavor = "multi_thread")]
async fn generation_that_serves_is_a_label() {
    let farm = Farm::new("weighted", "p2c").await;
    for (kind, policy) in [("formula", "weighted"), ("strategy", "p2c")] {
        let generation = farm.policy(kind)["generation"].as_str().unwrap().to_owned();
        let labels = format!("pool=\"default\",policy=\"{policy}\",kind=\"{kind}\"");
        assert_eq!(farm.metric(&format!("policy_info{{{labels},generation=\"{generation}\"}}")), 1);
        assert_eq!(farm.metric(&format!("policy_native{{{labels}}}")), 0);
    }
    farm.stop().await;
}
