//! What code costs the compiler, by estimates that are cheap: sections in, an error where it is too much out.
//!
//! A few thousand bytes can be worth gigabytes or an hour to the compiler, and it can neither be stopped nor be
//! given less memory. Where ways through a function meet, it carries on a value for each local that was set on one of
//! them, once for each way; and for each local it notes in which blocks it is alive. The largest functions of
//! SQLite and of QuickJS, their interpreters, have 30,000 of the first and 120,000 of the second.

use wasmparser::{BinaryReaderError, BlockType, FunctionBody, Operator, Payload};

use super::{ModuleError, invalid};

/// Nesting of blocks in a function at most: the compiler's stack must hold it, and no program that
/// anybody writes comes near.
const NESTING_MAX: usize = 1_000;
/// Blocks and branches in a function at most: the compiler's time grows with their square, and so many are half a
/// minute. Interpreters of large languages have some thousand.
const BLOCKS_MAX: u64 = 50_000;
/// Values that meet in a function at most: so many take 300 MB and half a minute.
const MEETING_MAX: u64 = 300_000;
/// The same in a whole file: beyond it none is compiled in any time that a host may give.
const MEETING_IN_ALL_MAX: u64 = 10_000_000;
/// Locals times blocks and branches of a function at most: so many take 100 MB.
const ALIVE_MAX: u64 = 5_000_000;

/// What was read of a module so far.
#[derive(Default)]
pub(super) struct Weight {
    types: Types,
    meeting: u64,
}

impl Weight {
    /// Takes a valid section in.
    ///
    /// # Errors
    /// It is too much for the compiler.
    pub(super) fn add(&mut self, payload: &Payload<'_>) -> Result<(), ModuleError> {
        self.types.note(payload).map_err(invalid)?;
        let Payload::CodeSectionEntry(body) = payload else { return Ok(()) };
        let function = Function::of(body, &self.types).map_err(invalid)?;
        self.meeting = self.meeting.saturating_add(function.meeting);
        let too_much = |what: String| {
            let hint = "split it, or build it with optimisation (--release)";
            Err(ModuleError::Invalid { reason: format!("{what}: {hint}") })
        };
        if function.nesting > NESTING_MAX {
            return too_much(format!("a function nests more than {NESTING_MAX} blocks"));
        }
        if function.blocks > BLOCKS_MAX {
            return too_much(format!("a function has more than {BLOCKS_MAX} blocks and branches"));
        }
        if function.meeting > MEETING_MAX || self.meeting > MEETING_IN_ALL_MAX {
            return too_much("a function sets too many locals in too many blocks".to_owned());
        }
        if function.locals.saturating_mul(function.blocks) > ALIVE_MAX {
            return too_much("a function has too many locals and blocks".to_owned());
        }
        Ok(())
    }
}

/// Parameters and results of the types of the module that is being read.
#[derive(Default)]
struct Types(Vec<u64>);

impl Types {
    /// Takes note of what comes before the code.
    fn note(&mut self, payload: &Payload<'_>) -> Result<(), BinaryReaderError> {
        match payload {
            Payload::Version { .. } => self.0.clear(),
            Payload::TypeSection(section) => {
                for of in section.clone().into_iter_err_on_gc_types() {
                    let of = of?;
                    self.0.push((of.params().len() + of.results().len()) as u64);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn arity(&self, of: BlockType) -> u64 {
        match of {
            BlockType::Empty => 0,
            BlockType::Type(_) => 1,
            BlockType::FuncType(index) => self.0.get(index as usize).copied().unwrap_or_default(),
        }
    }
}

/// A block that is open.
#[derive(Default)]
struct Block {
    arity: u64,
    branches: u64,
    /// Locals that were set in it, a bit each.
    set: Vec<u64>,
}

/// What is counted of a function.
#[derive(Debug, Default, PartialEq, Eq)]
struct Function {
    locals: u64,
    /// Blocks and branches.
    blocks: u64,
    /// Blocks within each other, the function's own included.
    nesting: usize,
    /// Locals that are set in a block, and what it takes and returns, once for each way to its end (of a
    /// loop: to its beginning).
    meeting: u64,
}

impl Function {
    fn of(body: &FunctionBody<'_>, types: &Types) -> Result<Self, BinaryReaderError> {
        let mut function = Self { nesting: 1, ..Self::default() };
        for locals in body.get_locals_reader()? {
            function.locals += u64::from(locals?.0);
        }
        let mut open = vec![Block::default()];
        for operator in body.get_operators_reader()? {
            function.take(&operator?, &mut open, types)?;
            // Who goes on has a bounded number of them to look at.
            if open.is_empty() || function.nesting > NESTING_MAX || function.blocks > BLOCKS_MAX {
                break;
            }
        }
        Ok(function)
    }

    fn take(
        &mut self,
        operator: &Operator<'_>,
        open: &mut Vec<Block>,
        types: &Types,
    ) -> Result<(), BinaryReaderError> {
        match operator {
            Operator::Block { blockty } | Operator::Loop { blockty } | Operator::If { blockty } => {
                open.push(Block { arity: types.arity(*blockty), ..Block::default() });
                self.blocks += 1;
                self.nesting = self.nesting.max(open.len());
            }
            Operator::Else => self.branch(open, 0),
            Operator::Br { relative_depth } | Operator::BrIf { relative_depth } => {
                self.branch(open, *relative_depth);
            }
            Operator::BrTable { targets } => {
                let mut depths = targets.targets().collect::<Result<Vec<_>, _>>()?;
                depths.push(targets.default());
                depths.sort_unstable();
                depths.dedup();
                depths.into_iter().for_each(|depth| self.branch(open, depth));
            }
            Operator::LocalSet { local_index } | Operator::LocalTee { local_index } => {
                if let Some(block) = open.last_mut() {
                    set(&mut block.set, *local_index);
                }
            }
            Operator::End => self.close(open),
            _ => {}
        }
        Ok(())
    }

    fn branch(&mut self, open: &mut [Block], depth: u32) {
        self.blocks += 1;
        let place = open.len().checked_sub(1 + depth as usize);
        if let Some(block) = place.and_then(|place| open.get_mut(place)) {
            block.branches += 1;
        }
    }

    fn close(&mut self, open: &mut Vec<Block>) {
        let Some(Block { arity, branches, set }) = open.pop() else { return };
        let Some(around) = open.last_mut() else { return }; // nothing meets behind the function
        let locals: u32 = set.iter().map(|bits| bits.count_ones()).sum();
        let values = u64::from(locals).saturating_add(arity);
        self.meeting = self.meeting.saturating_add(values.saturating_mul(1 + branches));
        if around.set.len() < set.len() {
            around.set.resize(set.len(), 0);
        }
        around.set.iter_mut().zip(&set).for_each(|(all, bits)| *all |= bits);
    }
}

fn set(bits: &mut Vec<u64>, local: u32) {
    let word = local as usize / 64;
    if bits.len() <= word {
        bits.resize(word + 1, 0);
    }
    bits[word] |= 1 << (local % 64);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the only function of a module.
    fn function(text: &str) -> Function {
        let bytes = wat::parse_str(format!("(module {text})")).expect("a module");
        let mut types = Types::default();
        for payload in wasmparser::Parser::new(0).parse_all(&bytes) {
            let payload = payload.expect("valid");
            types.note(&payload).expect("valid");
            if let Payload::CodeSectionEntry(body) = payload {
                return Function::of(&body, &types).expect("valid");
            }
        }
        panic!("no function");
    }

    #[track_caller]
    fn check(text: &str, locals: u64, blocks: u64, nesting: usize, meeting: u64) {
        assert_eq!(function(text), Function { locals, blocks, nesting, meeting }, "{text}");
    }

    #[test]
    fn values_meet_once_for_each_way() {
        let set = |local: u32| format!("(local.set {local} (i32.const 1))");
        let (one, two) = (set(0), set(1));
        check("(func)", 0, 0, 1, 0);
        check(&format!("(func (local i32 i64) {one})"), 2, 0, 1, 0);
        check(&format!("(func (local i32 i32) (block {one} {two} {one}))"), 2, 1, 2, 2);
        check(&format!("(func (local i32 i32) (block (br_if 0 (i32.const 1)) {one}))"), 2, 2, 2, 2);
        // Set inside, and so around it.
        check(&format!("(func (local i32 i32) (loop (loop {one}) {two}))"), 2, 2, 3, 3);
        check(
            &format!("(func (local i32) (if (i32.const 1) (then {one}) (else {one})))"),
            1,
            2,
            2,
            2,
        );
        // To two blocks of three, one of them twice.
        let table = "(br_table 0 0 2 (i32.const 1))";
        check(&format!("(func (local i32) (block (block (block {table}) {one})))"), 1, 5, 4, 3);
        // What a block takes and returns.
        let block = "(block (type 0) (i32.const 2)) drop drop";
        let pair = "(type (func (param i32) (result i32 i32)))";
        check(&format!("{pair} (func (i32.const 1) {block})"), 0, 1, 2, 3);
    }

    #[test]
    fn types_are_those_of_the_module_that_is_read() {
        let text = "(component
            (core module (type (func (param i32 i32 i32) (result i32))))
            (core module (type (func (result i32))) (func (drop (block (type 0) (i32.const 1))))))";
        let bytes = wat::parse_str(text).expect("a component");
        let mut weight = Weight::default();
        for payload in wasmparser::Parser::new(0).parse_all(&bytes) {
            weight.add(&payload.expect("valid")).expect("little");
        }
        assert_eq!(weight.meeting, 1);
    }
}
