//! What is taken from a page of Prometheus' text format: text in, a [`Query`] out.
//!
//! `[1 -] TERM [/ TERM]`, where a term is a series `name{label="v", …}` or a function of one:
//! `sum` (what a bare series means), `max`, `min`, `avg`, `rate` (a second, of counters) or `value`
//! (a counter as it is). Label values are compared with `=`, `!=`, and with `=~` and `!~` against
//! words with `|` between them; no other regular expression is understood.

use std::str::FromStr;

/// A number made of one or two series.
#[derive(Debug, Clone, PartialEq)]
pub struct Query {
    /// Subtract the rest from 1.
    pub complement: bool,
    /// What is divided, or stands alone.
    pub term: Term,
    /// What it is divided by.
    pub divisor: Option<Term>,
}

/// Matching series folded into one number.
#[derive(Debug, Clone, PartialEq)]
pub struct Term {
    /// How.
    pub fold: Fold,
    /// Which series.
    pub selector: Selector,
}

/// How several series become one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fold {
    /// Their sum; of counters the sum of their rates.
    Sum,
    /// The greatest.
    Max,
    /// The least.
    Min,
    /// Their mean.
    Average,
    /// The sum of their rates, whatever the page says they are.
    Rate,
    /// The sum of their values, even if they are counters.
    Value,
}

const FOLDS: [(&str, Fold); 6] = [
    ("sum", Fold::Sum),
    ("max", Fold::Max),
    ("min", Fold::Min),
    ("avg", Fold::Average),
    ("rate", Fold::Rate),
    ("value", Fold::Value),
];

/// Series by name and labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector {
    /// The series' name.
    pub name: Box<str>,
    /// All of these must hold.
    pub labels: Vec<Label>,
}

/// What a label must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    /// Its name.
    pub name: Box<str>,
    /// One of these; a label that a series does not have is empty.
    pub values: Vec<Box<str>>,
    /// Or rather none of these.
    pub not: bool,
}

/// The labels of a series on a page.
pub type Labels = Vec<(String, String)>;

impl Query {
    /// The same with sums of values where it has sums, whatever the page says they are.
    #[must_use]
    pub fn as_it_is(&self) -> Self {
        let as_it_is = |term: &Term| match term.fold {
            Fold::Sum => Term { fold: Fold::Value, ..term.clone() },
            _ => term.clone(),
        };
        Self {
            complement: self.complement,
            term: as_it_is(&self.term),
            divisor: self.divisor.as_ref().map(as_it_is),
        }
    }
}

impl Selector {
    /// Whether a series with these labels is meant.
    #[must_use]
    pub fn matches(&self, labels: &[(String, String)]) -> bool {
        self.labels.iter().all(|wanted| {
            let found = labels.iter().find(|(name, _)| **name == *wanted.name);
            let value = found.map_or("", |(_, value)| value);
            wanted.values.iter().any(|one| **one == *value) != wanted.not
        })
    }
}

impl FromStr for Query {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut reader = Reader { text, rest: text };
        reader.space();
        let complement = reader.takes("1");
        if complement {
            reader.need("-")?;
        }
        let term = reader.term()?;
        let divisor = if reader.takes("/") { Some(reader.term()?) } else { None };
        if reader.rest.is_empty() {
            Ok(Self { complement, term, divisor })
        } else {
            Err(reader.expected("the end, or / and another series"))
        }
    }
}

/// Reads from the front; `rest` never begins with a space.
struct Reader<'a> {
    text: &'a str,
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn term(&mut self) -> Result<Term, String> {
        let name = self.name("a series, as node_load1 is")?;
        if !self.takes("(") {
            return Ok(Term { fold: Fold::Sum, selector: self.selector(name)? });
        }
        let Some((_, fold)) = FOLDS.iter().find(|(known, _)| *known == name) else {
            let known = FOLDS.map(|(name, _)| name).join(", ");
            return Err(format!("there is no function {name:?}; it is one of {known}"));
        };
        let name = self.name("a series")?;
        let selector = self.selector(name)?;
        self.need(")")?;
        Ok(Term { fold: *fold, selector })
    }

    fn selector(&mut self, name: &str) -> Result<Selector, String> {
        let mut labels = Vec::new();
        if self.takes("{") {
            while !self.takes("}") {
                labels.push(self.label()?);
                if !self.takes(",") && !self.rest.starts_with('}') {
                    return Err(self.expected("a comma or }"));
                }
            }
        }
        Ok(Selector { name: name.into(), labels })
    }

    fn label(&mut self) -> Result<Label, String> {
        let name = self.name("a label")?.into();
        let comparisons = [("=~", false, true), ("!~", true, true), ("!=", true, false)];
        let comparison = comparisons.into_iter().find(|(sign, ..)| self.takes(sign));
        let (not, several) = match comparison {
            Some((_, not, several)) => (not, several),
            None => {
                self.need("=")?;
                (false, false)
            }
        };
        let value = self.string()?;
        if !several {
            return Ok(Label { name, values: vec![value.into()], not });
        }
        if value.contains(['.', '*', '+', '?', '[', '(', '^', '$', '\\', '{']) {
            let what = "words with | between them; other regular expressions are not understood";
            return Err(format!("{value:?}: after =~ and !~ write {what}"));
        }
        Ok(Label { name, values: value.split('|').map(Box::from).collect(), not })
    }

    fn name(&mut self, what: &str) -> Result<&'a str, String> {
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        let end = self.rest.find(|c| !fits(c)).unwrap_or(self.rest.len());
        let name = &self.rest[..end];
        if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(self.expected(what));
        }
        self.rest = self.rest[end..].trim_start();
        Ok(name)
    }

    /// A value in double quotes, with \" \\ and \n inside.
    fn string(&mut self) -> Result<String, String> {
        let mut value = String::new();
        let mut chars = self.rest.char_indices();
        if chars.next().is_none_or(|(_, c)| c != '"') {
            return Err(self.expected("a value in double quotes"));
        }
        while let Some((index, c)) = chars.next() {
            match c {
                '"' => {
                    self.rest = self.rest[index + 1..].trim_start();
                    return Ok(value);
                }
                '\\' => match chars.next() {
                    Some((_, 'n')) => value.push('\n'),
                    Some((_, c)) => value.push(c),
                    None => break,
                },
                c => value.push(c),
            }
        }
        Err(self.expected("a value that ends with a double quote"))
    }

    fn space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn takes(&mut self, sign: &str) -> bool {
        let Some(rest) = self.rest.strip_prefix(sign) else { return false };
        self.rest = rest.trim_start();
        true
    }

    fn need(&mut self, sign: &str) -> Result<(), String> {
        if self.takes(sign) { Ok(()) } else { Err(self.expected(&format!("{sign:?}"))) }
    }

    fn expected(&self, what: &str) -> String {
        let at = self.text.len() - self.rest.len() + 1;
        let found = match self.rest {
            "" => "it ends".to_owned(),
            rest => format!("{rest:?} stands"),
        };
        format!("{:?}: {what} belongs at character {at}, where {found}", self.text)
    }
}
