//! Formula text to a tree: characters to tokens to expressions, by recursive descent.
//!
//! Invariant: nesting and size are bounded, so that no text overflows a stack here or later.

use super::{TEXT_BYTES_MAX, TextError};

/// Nesting of expressions at most.
const DEPTH_MAX: usize = 256;
/// Tokens at most: a chain of operators makes a tree as deep as it is long.
const TOKENS_MAX: usize = 4_000;
/// Distinct metrics at most; the host takes no more from any formula.
const METRICS_MAX: usize = 256;

/// A whole formula.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Program {
    /// In the order of their first use.
    pub(super) metrics: Vec<Metric>,
    /// One value a `let`, in order.
    pub(super) lets: Vec<Expr>,
    /// The load.
    pub(super) load: Expr,
}

/// A metric in use.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Metric {
    pub(super) name: String,
    /// `has` or `??` asks for it: its absence reads as NaN.
    pub(super) optional: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Expr {
    Number(f64),
    /// By index into the metrics.
    Metric(usize),
    /// By index into the lets.
    Let(usize),
    Negate(Box<Expr>),
    Not(Box<Expr>),
    Binary(Binary, Box<Expr>, Box<Expr>),
    /// Condition, then, else.
    Choose(Box<Expr>, Box<Expr>, Box<Expr>),
    Call(Function, Vec<Expr>),
    /// 1 when the metric was reported, else 0.
    Has(usize),
    /// The metric, or the expression where it was not reported.
    Or(usize, Box<Expr>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Binary {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Equal,
    NotEqual,
    And,
    Or,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Function {
    Min,
    Max,
    Abs,
    Sqrt,
    Exp,
    Ln,
    Pow,
    Clamp,
    Floor,
    Ceil,
    Round,
}

/// Name, function, fewest and most arguments.
const FUNCTIONS: [(&str, Function, usize, usize); 11] = [
    ("min", Function::Min, 2, 16),
    ("max", Function::Max, 2, 16),
    ("abs", Function::Abs, 1, 1),
    ("sqrt", Function::Sqrt, 1, 1),
    ("exp", Function::Exp, 1, 1),
    ("ln", Function::Ln, 1, 1),
    ("pow", Function::Pow, 2, 2),
    ("clamp", Function::Clamp, 3, 3),
    ("floor", Function::Floor, 1, 1),
    ("ceil", Function::Ceil, 1, 1),
    ("round", Function::Round, 1, 1),
];

/// The operators of one level, loosest level first.
const LEVELS: [&[(&str, Binary)]; 5] = [
    &[("||", Binary::Or)],
    &[("&&", Binary::And)],
    &[
        ("<", Binary::Less),
        ("<=", Binary::LessOrEqual),
        (">", Binary::Greater),
        (">=", Binary::GreaterOrEqual),
        ("==", Binary::Equal),
        ("!=", Binary::NotEqual),
    ],
    &[("+", Binary::Add), ("-", Binary::Subtract)],
    &[("*", Binary::Multiply), ("/", Binary::Divide), ("%", Binary::Remainder)],
];
/// The level whose operators do not chain.
const COMPARISONS: usize = 2;

const SYMBOLS: [&str; 24] = [
    "??", "<=", ">=", "==", "!=", "&&", "||", "<", ">", "+", "-", "*", "/", "%", "!", "?", ":",
    "(", ")", ",", ";", "=", "&", "|",
];

#[derive(Debug, Clone, PartialEq)]
enum Token<'t> {
    Number(f64),
    Name(&'t str),
    Symbol(&'static str),
    End,
}

/// A token and where it starts, in bytes.
type Placed<'t> = (usize, Token<'t>);

pub(super) fn parse(text: &str) -> Result<Program, TextError> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(at(text, 0, format!("the text has more than {TEXT_BYTES_MAX} bytes")));
    }
    let tokens = tokens(text)?;
    if let Some((offset, _)) = tokens.get(TOKENS_MAX) {
        return Err(at(
            text,
            *offset,
            format!("more than {TOKENS_MAX} numbers, names and operators"),
        ));
    }
    let mut parser =
        Parser { text, tokens, next: 0, depth: 0, metrics: Vec::new(), let_names: Vec::new() };
    parser.program()
}

fn at(text: &str, offset: usize, what: impl Into<String>) -> TextError {
    let before = &text[..offset];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    TextError {
        line: before.matches('\n').count() + 1,
        column: before[line_start..].chars().count() + 1,
        what: what.into(),
    }
}

fn tokens(text: &str) -> Result<Vec<Placed<'_>>, TextError> {
    let mut tokens = Vec::new();
    let mut offset = 0;
    let mut text_end = 0; // of the last token: where something is missing
    while let Some(first) = text[offset..].chars().next() {
        let rest = &text[offset..];
        if first.is_whitespace() || first == '\u{feff}' {
            offset += first.len_utf8();
        } else if rest.starts_with("//") {
            offset += rest.find('\n').unwrap_or(rest.len());
        } else if first.is_ascii_digit() || first == '.' {
            let len = number_len(rest);
            let number = rest[..len].parse::<f64>().ok().filter(|number| number.is_finite());
            let number = number
                .ok_or_else(|| at(text, offset, format!("{:?} is not a number", &rest[..len])))?;
            tokens.push((offset, Token::Number(number)));
            offset += len;
            text_end = offset;
        } else if first.is_alphabetic() || first == '_' {
            let name = name_of(rest);
            tokens.push((offset, Token::Name(name)));
            offset += name.len();
            text_end = offset;
        } else if let Some(symbol) = SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol)) {
            tokens.push((offset, Token::Symbol(symbol)));
            offset += symbol.len();
            text_end = offset;
        } else {
            return Err(at(text, offset, format!("{first:?} means nothing in a formula")));
        }
    }
    tokens.push((text_end, Token::End));
    Ok(tokens)
}

/// Digits, point, exponent; what follows directly is taken in, so that `1x` is one wrong number.
fn number_len(text: &str) -> usize {
    let mut last = '0';
    let belongs = |character: char| {
        let signed = "+-".contains(character) && "eE".contains(last);
        last = character;
        !(character.is_ascii_alphanumeric() || character == '.' || character == '_' || signed)
    };
    text.find(belongs).unwrap_or(text.len())
}

/// Letters, digits, `_` and inner dots.
fn name_of(text: &str) -> &str {
    let belongs = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    let name = &text[..text.find(|c: char| !belongs(c)).unwrap_or(text.len())];
    name.trim_end_matches('.')
}

struct Parser<'t> {
    text: &'t str,
    tokens: Vec<Placed<'t>>,
    next: usize,
    depth: usize,
    metrics: Vec<Metric>,
    let_names: Vec<&'t str>,
}

impl<'t> Parser<'t> {
    fn program(&mut self) -> Result<Program, TextError> {
        let mut lets = Vec::new();
        while self.peek() == Token::Name("let") {
            self.next += 1;
            let (offset, name) = self.name("a name after let")?;
            if self.let_names.contains(&name) {
                return Err(at(self.text, offset, format!("{name} is defined twice")));
            }
            if FUNCTIONS.iter().any(|function| function.0 == name) || name == "has" {
                return Err(at(self.text, offset, format!("{name} is a function's name")));
            }
            self.expect("=")?;
            lets.push(self.expression()?);
            self.expect(";")?;
            self.let_names.push(name);
        }
        let load = self.expression()?;
        if self.peek() != Token::End {
            return Err(self.unexpected("an operator or the end"));
        }
        Ok(Program { metrics: std::mem::take(&mut self.metrics), lets, load })
    }

    fn expression(&mut self) -> Result<Expr, TextError> {
        self.deeper(|parser| {
            let condition = parser.level(0)?;
            if !parser.accept("?") {
                return Ok(condition);
            }
            let then = parser.expression()?;
            parser.expect(":")?;
            let otherwise = parser.expression()?;
            Ok(Expr::Choose(Box::new(condition), Box::new(then), Box::new(otherwise)))
        })
    }

    fn level(&mut self, level: usize) -> Result<Expr, TextError> {
        let Some(operators) = LEVELS.get(level) else {
            return self.unary();
        };
        let mut left = self.level(level + 1)?;
        let mut count = 0;
        while let Some(operator) = self.operator(operators) {
            count += 1;
            if count > 1 && level == COMPARISONS {
                self.next -= 1;
                return Err(self.unexpected("&& between two comparisons: they do not chain"));
            }
            let right = self.level(level + 1)?;
            left = Expr::Binary(operator, Box::new(left), Box::new(right));
        }
        Ok(left)
    }

    fn unary(&mut self) -> Result<Expr, TextError> {
        self.deeper(|parser| {
            if parser.accept("-") {
                Ok(Expr::Negate(Box::new(parser.unary()?)))
            } else if parser.accept("!") {
                Ok(Expr::Not(Box::new(parser.unary()?)))
            } else {
                parser.coalesce()
            }
        })
    }

    fn coalesce(&mut self) -> Result<Expr, TextError> {
        let left = self.primary()?;
        if self.peek() != Token::Symbol("??") {
            return Ok(left);
        }
        let Expr::Metric(metric) = left else {
            return Err(self.unexpected("an operator: ?? needs a metric on its left"));
        };
        self.next += 1;
        self.metrics[metric].optional = true;
        Ok(Expr::Or(metric, Box::new(self.unary()?)))
    }

    fn primary(&mut self) -> Result<Expr, TextError> {
        if let Token::Number(number) = self.peek() {
            self.next += 1;
            return Ok(Expr::Number(number));
        }
        if self.accept("(") {
            let inner = self.expression()?;
            self.expect(")")?;
            return Ok(inner);
        }
        let (offset, name) = self.name("a number, a metric or (")?;
        if self.accept("(") {
            return self.call(offset, name);
        }
        if let Some(index) = self.let_names.iter().position(|known| *known == name) {
            return Ok(Expr::Let(index));
        }
        Ok(Expr::Metric(self.metric(offset, name)?))
    }

    fn call(&mut self, offset: usize, name: &str) -> Result<Expr, TextError> {
        if name == "has" {
            let (offset, name) = self.name("a metric inside has( )")?;
            let metric = self.metric(offset, name)?;
            self.metrics[metric].optional = true;
            self.expect(")")?;
            return Ok(Expr::Has(metric));
        }
        let Some((_, function, least, most)) = FUNCTIONS.iter().find(|known| known.0 == name)
        else {
            let names = FUNCTIONS.iter().map(|known| known.0).chain(["has"]);
            let near = crate::config::nearest(name, names.clone());
            let hint = match near {
                Some(near) => format!("did you mean {near}?"),
                None => format!("known are {}", names.collect::<Vec<_>>().join(" ")),
            };
            return Err(at(self.text, offset, format!("unknown function {name}, {hint}")));
        };
        let mut arguments = vec![self.expression()?];
        while self.accept(",") {
            arguments.push(self.expression()?);
        }
        self.expect(")")?;
        if (*least..=*most).contains(&arguments.len()) {
            return Ok(Expr::Call(*function, arguments));
        }
        let wanted = if least == most { least.to_string() } else { format!("{least} to {most}") };
        let what = format!("{name} takes {wanted} arguments, not {}", arguments.len());
        Err(at(self.text, offset, what))
    }

    fn metric(&mut self, offset: usize, name: &str) -> Result<usize, TextError> {
        if let Some(index) = self.metrics.iter().position(|metric| metric.name == name) {
            return Ok(index);
        }
        if self.metrics.len() == METRICS_MAX {
            return Err(at(self.text, offset, format!("more than {METRICS_MAX} metrics")));
        }
        if name.len() > crate::report::NAME_BYTES_MAX {
            return Err(at(self.text, offset, "no metric has a name as long as this"));
        }
        self.metrics.push(Metric { name: name.to_owned(), optional: false });
        Ok(self.metrics.len() - 1)
    }

    fn deeper<T>(
        &mut self,
        parse: impl FnOnce(&mut Self) -> Result<T, TextError>,
    ) -> Result<T, TextError> {
        if self.depth == DEPTH_MAX {
            return Err(self.unexpected("less nesting: use let lines"));
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    fn operator(&mut self, operators: &[(&str, Binary)]) -> Option<Binary> {
        let Token::Symbol(symbol) = self.peek() else {
            return None;
        };
        let (_, operator) = operators.iter().find(|(known, _)| *known == symbol)?;
        self.next += 1;
        Some(*operator)
    }

    fn name(&mut self, expected: &str) -> Result<(usize, &'t str), TextError> {
        let (offset, token) = self.tokens[self.next].clone();
        match token {
            Token::Name(name) if name != "let" => {
                self.next += 1;
                Ok((offset, name))
            }
            _ => Err(self.unexpected(expected)),
        }
    }

    fn accept(&mut self, symbol: &'static str) -> bool {
        let accepted = self.peek() == Token::Symbol(symbol);
        self.next += usize::from(accepted);
        accepted
    }

    fn expect(&mut self, symbol: &'static str) -> Result<(), TextError> {
        if self.accept(symbol) { Ok(()) } else { Err(self.unexpected(symbol)) }
    }

    /// The token now; the last one, `End`, is never passed.
    fn peek(&self) -> Token<'t> {
        self.tokens[self.next].1.clone()
    }

    fn unexpected(&self, expected: &str) -> TextError {
        let (offset, token) = &self.tokens[self.next];
        let found = match token {
            Token::Number(number) => format!("the number {number}"),
            Token::Name(name) => (*name).to_owned(),
            Token::Symbol(symbol) => (*symbol).to_owned(),
            Token::End => "the end".to_owned(),
        };
        at(self.text, *offset, format!("found {found}, expected {expected}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_error(text: &str, line: usize, column: usize, words: &str) {
        let error = parse(text).expect_err("a wrong text");
        assert_eq!((error.line, error.column), (line, column), "{error}");
        assert!(error.what.contains(words), "{error} does not say {words:?}");
    }

    #[test]
    fn errors_name_the_place_what_was_expected_and_the_nearest_name() {
        check_error("", 1, 1, "found the end, expected a number, a metric or (");
        check_error("cpu +", 1, 6, "found the end");
        check_error("cpu * (0.2\n + memory", 2, 10, "expected )");
        check_error("mni(cpu, 1)", 1, 1, "did you mean min?");
        check_error("frobnicate(cpu)", 1, 1, "known are min max");
        check_error("cpu 2", 1, 5, "found the number 2, expected an operator");
        check_error("a < b < c", 1, 7, "do not chain");
        check_error("pow(2)", 1, 1, "takes 2 arguments, not 1");
        check_error("min(cpu)", 1, 1, "takes 2 to 16");
        check_error("cpu # 1", 1, 5, "'#' means nothing");
        check_error("1x", 1, 1, "\"1x\" is not a number");
        check_error("1e999", 1, 1, "not a number");
        check_error("let a = 1; let a = 2; a", 1, 16, "twice");
        check_error("let min = 1; min", 1, 5, "function's name");
        check_error("let a = 1", 1, 10, "expected ;");
        check_error("(1) ?? 2", 1, 5, "needs a metric");
        check_error("has(1)", 1, 5, "a metric inside has");
        check_error("ä + ∞", 1, 5, "'∞' means nothing");
        check_error("a & b", 1, 3, "found &");
    }

    #[test]
    fn depth_and_length_are_bounded() {
        check_error(&"(".repeat(1_000), 1, 129, "less nesting");
        check_error(&"-".repeat(1_000), 1, 256, "less nesting");
        let chain = vec!["1"; 10_000].join("+");
        check_error(&chain, 1, 4_001, "more than 4000 numbers");
        check_error(&" ".repeat(TEXT_BYTES_MAX + 1), 1, 1, "more than");
    }

    #[test]
    fn metrics_are_optional_only_where_asked() {
        let program =
            parse("let a = has(gpu) ? gpu : 0; // gpu\n a + x.y ?? 1 + cpu").expect("good");
        let metrics: Vec<_> =
            program.metrics.iter().map(|m| (m.name.as_str(), m.optional)).collect();
        assert_eq!(metrics, [("gpu", true), ("x.y", true), ("cpu", false)]);
    }
}
