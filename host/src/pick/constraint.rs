//! What a request wants of a target's labels: `zone=a,gpu!=t4|l4` in, yes or no for a target out.
//!
//! Every term must hold; a term holds with any of its values. Words, not numbers: they are compared as
//! they are written. Pure.

use std::fmt;
use std::str::FromStr;

use crate::fleet::Labels;

/// Terms of one constraint, and values of one term: bounds what a request can cost.
const TERMS_MAX: usize = 16;
const VALUES_MAX: usize = 16;

/// The labels of a target: its service's, which hide the machine's of the same name.
#[derive(Debug, Clone, Default)]
pub(super) struct TargetLabels {
    pub(super) service: Labels,
    pub(super) machine: Labels,
}

/// What must hold for a target's labels; nothing, if it is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Constraint {
    terms: Vec<Term>,
}

/// One label and what it may be, or may not.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Term {
    label: Box<str>,
    values: Vec<Box<str>>,
    /// It is to be none of them.
    is_not: bool,
}

impl TargetLabels {
    /// The label's value, if the target has it.
    pub(super) fn get(&self, label: &str) -> Option<&str> {
        let mut all = self.service.iter().chain(&*self.machine);
        all.find(|(name, _)| **name == *label).map(|(_, value)| &**value)
    }

    /// Names of all labels.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.service.iter().chain(&*self.machine).map(|(name, _)| &**name)
    }
}

impl Constraint {
    /// Whether every target fits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Whether a target with these labels fits. One without a label is none of its values.
    pub(super) fn fits(&self, labels: &TargetLabels) -> bool {
        self.terms.iter().all(|term| {
            let value = labels.get(&term.label);
            let is_one = value.is_some_and(|value| term.values.iter().any(|one| **one == *value));
            is_one != term.is_not
        })
    }

    /// Wants all of this, too.
    ///
    /// # Errors
    /// These are too many terms together.
    pub fn and(&mut self, other: Self) -> Result<(), String> {
        self.terms.extend(other.terms);
        if self.terms.len() > TERMS_MAX {
            return Err(format!("more than {TERMS_MAX} labels"));
        }
        Ok(())
    }

    /// Names of the labels that are looked at.
    pub(super) fn labels(&self) -> impl Iterator<Item = &str> {
        self.terms.iter().map(|term| &*term.label)
    }
}

impl FromStr for Constraint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut constraint = Self::default();
        for term in text.split(',') {
            constraint.and(Self { terms: vec![term.parse()?] })?;
        }
        Ok(constraint)
    }
}

impl FromStr for Term {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((label, values)) = text.split_once('=') else {
            return Err(format!("{text:?} has no \"=\""));
        };
        let (label, is_not) = label.strip_suffix('!').map_or((label, false), |label| (label, true));
        if label.is_empty() {
            return Err(format!("{text:?} names no label"));
        }
        let values: Vec<Box<str>> = values.split('|').map(Into::into).collect();
        if values.len() > VALUES_MAX {
            return Err(format!("more than {VALUES_MAX} values for {label:?}"));
        }
        Ok(Self { label: label.into(), values, is_not })
    }
}

impl fmt::Display for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Term { label, values, is_not }) in self.terms.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let sign = if *is_not { "!=" } else { "=" };
            write!(f, "{comma}{label}{sign}{}", values.join("|"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(service: &[(&str, &str)], machine: &[(&str, &str)]) -> TargetLabels {
        let of = |labels: &[(&str, &str)]| {
            labels.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
        };
        TargetLabels { service: of(service), machine: of(machine) }
    }

    #[test]
    fn every_term_must_hold_with_one_of_its_values() {
        let target = labels(&[("gpu", "a100")], &[("zone", "a"), ("gpu", "none")]);
        let fits = |text: &str| text.parse::<Constraint>().unwrap().fits(&target);
        for text in ["zone=a", "gpu=a100", "zone=b|a,gpu=a100", "rack!=7", "zone!=b|c", "gpu!=none"]
        {
            assert!(fits(text), "{text}");
        }
        for text in ["zone=b", "gpu=none", "zone=a,gpu=h100", "rack=7", "rack=", "zone!=b|a"] {
            assert!(!fits(text), "{text}");
        }
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let error = |text: &str| text.parse::<Constraint>().unwrap_err();
        assert_eq!(error("zone"), "\"zone\" has no \"=\"");
        assert_eq!(error("=a"), "\"=a\" names no label");
        assert_eq!(error("zone=a,"), "\"\" has no \"=\"");
        assert_eq!(error(&["a=b"; 17].join(",")), "more than 16 labels");
        assert_eq!(error(&format!("a={}", ["b"; 17].join("|"))), "more than 16 values for \"a\"");
        assert_eq!(
            "zone!=a|b,gpu=x=y".parse::<Constraint>().unwrap().to_string(),
            "zone!=a|b,gpu=x=y"
        );
    }
}
