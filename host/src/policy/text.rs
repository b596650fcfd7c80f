//! Formula text (`NAME.formula`) to a core module of the same contract as any other formula.
//!
//! Numbers, metric names (dots allowed), `+ - * / %`, comparisons (1 or 0), `&& || !`, `? :`,
//! parentheses, `min max abs sqrt exp ln pow clamp floor ceil round`, `has(x)`, `x ?? default`,
//! `//` comments, and `let name = …;` lines before the one expression that is the load.
//!
//! From loosest to tightest: `?:`, `||`, `&&`, comparisons (not chained), `+ -`, `* / %`, unary
//! `- !`, `??`. A metric asked of by `has` or `??` is optional, any other is required: a target that
//! does not report it has no load. [`parse`] makes the tree, [`emit`] the module with the batch loop
//! inside the guest, [`math`] what WebAssembly has no instruction for.

mod emit;
mod math;
mod parse;

/// Bytes of a formula's text at most: a page or two, far beyond what anyone writes.
pub const TEXT_BYTES_MAX: usize = 64 << 10;

/// What is wrong with a formula's text, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {what}")]
pub struct TextError {
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    /// What was found and what was expected.
    pub what: String,
}

/// A core module that evaluates the text and exports the functions of a formula.
///
/// # Errors
/// The first mistake in the text.
pub fn compile(text: &str) -> Result<Vec<u8>, TextError> {
    Ok(emit::module(&parse::parse(text)?))
}

#[cfg(test)]
mod tests;
