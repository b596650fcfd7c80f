//! What the built-in strategies say of themselves: each states when to use it, where it comes from, its
//! settings and its cost, and README's table says the same.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Of README's table of strategies: name and cost of a pick.
fn costs() -> BTreeMap<String, String> {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let (_, table) = readme.split_once("| strategy | choice | cost of a pick |").unwrap();
    let rows = table.trim_start().lines().skip(1).take_while(|line| line.starts_with('|'));
    let row = |row: &str| {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let name = cells[1].split('`').nth(1).unwrap();
        (name.to_owned(), cells[3].to_owned())
    };
    rows.map(row).collect()
}

/// The comment at the head of a strategy, its lines joined, and the names of its settings.
fn header(name: &str) -> (String, Vec<String>) {
    let path = root().join("policies").join(name).join("src/lib.rs");
    let source = fs::read_to_string(path).unwrap();
    let lines = source.lines().map_while(|line| line.strip_prefix("//!"));
    let header = lines.map(str::trim).collect::<Vec<_>>().join("\n");
    let setting = |line: &str| {
        let (name, schema) = line.trim().strip_prefix('"')?.split_once("\": {")?;
        (schema.starts_with("\"type\"") && name != "properties").then(|| name.to_owned())
    };
    (header, source.lines().filter_map(setting).collect())
}

#[test]
fn every_strategy_says_when_whence_how_and_at_what_cost() {
    let costs = costs();
    for name in loadline::policy::built_in_names() {
        if ["sessions", "weighted"].contains(&name) {
            continue; // formulas
        }
        let cost = costs.get(name).unwrap_or_else(|| panic!("{name} is not in README's table"));
        let (header, settings) = header(name);
        let part = |label: &str| {
            let start = header.find(&format!("\n{label}"));
            let start = start.unwrap_or_else(|| panic!("{name} does not say {label}"));
            header[start + 1..].split("\n\n").next().unwrap()
        };
        assert!(header.starts_with(&format!("`{name}`: ")), "{header}");
        assert!(part("*Use it* ").len() > 40 && part("*Source*: ").len() > 15, "{header}");
        let head = format!("*Cost* of a pick: {cost}");
        let rest = part("*Cost* of a pick: ").strip_prefix(&*head);
        let is_said = rest.is_some_and(|rest| !rest.starts_with(", at worst"));
        assert!(is_said, "{name}: README says {cost:?}, the header {:?}", part("*Cost*"));
        let said = part("*Settings*: ");
        assert_eq!(settings.is_empty(), said.starts_with("*Settings*: none."), "{name}");
        for setting in settings {
            let (_, of) = said.split_once(&format!("`{setting}` (")).unwrap_or_else(|| {
                panic!("{name} does not say what {setting} is");
            });
            assert!(of.split(')').next().unwrap().contains("default "), "{name}: {setting}");
        }
    }
}
