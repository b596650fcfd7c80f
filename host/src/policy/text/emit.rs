//! A formula's tree to a core module that exports the contract's functions in the canonical ABI.
//!
//! Memory: answers that never change first (description, metrics), then the area for returned
//! pairs, then a bump heap for one call's arguments and loads, wound back when the call is over. The
//! batch loop runs inside the guest: one call a batch, no allocation but the lists'.

use wasm_encoder::{
    BlockType, CodeSection, ConstExpr, DataSection, ExportKind, ExportSection, Function,
    FunctionSection, GlobalSection, GlobalType, InstructionSink, MemArg, MemorySection, MemoryType,
    Module, TypeSection, ValType,
};

use super::math;
use super::parse::{Binary, Expr, Function as Named, Program};

const INTERFACE: &str = "loadline:policy/formula@1.0.0";
const SCHEMA: &str = r#"{"type":"object","additionalProperties":false}"#;
const NO_SETTINGS: &str = "a formula text takes no settings; write the numbers into the text";
const PAGE_BYTES: u32 = 65_536;
/// Where static answers start; below is nothing, so that a null pointer stays one.
const DATA_START: u32 = 16;
/// The one global: the first free byte of the heap.
const HEAP: u32 = 0;

/// Function types, in order.
const TYPES: [(&[ValType], &[ValType]); 7] = [
    (&[], &[ValType::I32]),                           // GETTER
    (&[ValType::I32, ValType::I32], &[ValType::I32]), // TAKES_LIST
    (&[ValType::I32, ValType::I32], &[]),             // LEAVE
    (&[ValType::I64, ValType::I32, ValType::I32, ValType::I32, ValType::I32], &[ValType::I32]),
    (&[ValType::I32], &[]),                           // POST
    (&[ValType::F64], &[ValType::F64]),               // UNARY
    (&[ValType::F64, ValType::F64], &[ValType::F64]), // BINARY
];
const GETTER: u32 = 0;
const TAKES_LIST: u32 = 1;
const LEAVE: u32 = 2;
const EVALUATE: u32 = 3;
const POST: u32 = 4;
const UNARY: u32 = 5;
const BINARY: u32 = 6;
/// The type of `cabi_realloc`, after those.
const REALLOC: u32 = 7;

/// Functions of the module that others call, by index: the first ones.
const FN_EXP: u32 = 0;
const FN_LN: u32 = 1;
const FN_POW: u32 = 2;
const FN_REMAINDER: u32 = 3;
const FN_REALLOC: u32 = 4;

/// The core module of a formula.
pub(super) fn module(program: &Program) -> Vec<u8> {
    let mut layout = Layout::new();
    let description = layout.description();
    let metrics = layout.metrics(program);
    let no_settings = layout.text(NO_SETTINGS);
    let pair = layout.reserve(16);
    let heap_start = layout.end().next_multiple_of(8);

    let mut parts = Parts::default();
    parts.add(UNARY, None, &math::exp());
    parts.add(UNARY, None, &math::ln());
    parts.add(BINARY, None, &math::pow(FN_EXP, FN_LN));
    parts.add(BINARY, None, &math::remainder());
    parts.add(REALLOC, Some("cabi_realloc".to_owned()), &realloc());
    let mut export = |name: &str, type_index, function: &Function| {
        parts.add(type_index, Some(format!("{INTERFACE}#{name}")), function);
    };
    export("describe", GETTER, &constant(description));
    export("metrics", GETTER, &constant(metrics));
    export("configure", TAKES_LIST, &configure(pair, no_settings, heap_start));
    export("evaluate", EVALUATE, &evaluate(program, pair));
    export("leave", LEAVE, &leave(heap_start));
    export("save", GETTER, &save(pair));
    export("restore", TAKES_LIST, &restore(heap_start));
    let post = format!("cabi_post_{INTERFACE}#evaluate");
    parts.add(POST, Some(post), &wind_back(heap_start));

    parts.finish(layout, heap_start)
}

/// Functions with their types and export names.
#[derive(Default)]
struct Parts {
    functions: FunctionSection,
    exports: ExportSection,
    code: CodeSection,
}

impl Parts {
    fn add(&mut self, type_index: u32, export: Option<String>, function: &Function) {
        if let Some(name) = export {
            self.exports.export(&name, ExportKind::Func, self.functions.len());
        }
        self.functions.function(type_index);
        self.code.function(function);
    }

    fn finish(mut self, layout: Layout, heap_start: u32) -> Vec<u8> {
        let mut types = TypeSection::new();
        for (parameters, results) in TYPES {
            types.ty().function(parameters.iter().copied(), results.iter().copied());
        }
        types.ty().function([ValType::I32; 4], [ValType::I32]);
        let mut memories = MemorySection::new();
        memories.memory(MemoryType {
            minimum: u64::from(heap_start.div_ceil(PAGE_BYTES)) + 1,
            maximum: None,
            memory64: false,
            shared: false,
            page_size_log2: None,
        });
        let mut globals = GlobalSection::new();
        let mutable = GlobalType { val_type: ValType::I32, mutable: true, shared: false };
        globals.global(mutable, &ConstExpr::i32_const(signed(heap_start)));
        self.exports.export("memory", ExportKind::Memory, 0);
        let mut data = DataSection::new();
        data.active(0, &ConstExpr::i32_const(signed(DATA_START)), layout.bytes);
        let mut module = Module::new();
        module.section(&types).section(&self.functions).section(&memories).section(&globals);
        module.section(&self.exports).section(&self.code).section(&data);
        module.finish()
    }
}

/// Static data, growing from [`DATA_START`].
struct Layout {
    bytes: Vec<u8>,
}

/// Where a text lies.
#[derive(Clone, Copy)]
struct Text {
    start: u32,
    len: u32,
}

impl Layout {
    fn new() -> Self {
        Self { bytes: Vec::new() }
    }

    fn end(&self) -> u32 {
        DATA_START + u32::try_from(self.bytes.len()).expect("a formula's text is short")
    }

    fn text(&mut self, text: &str) -> Text {
        let start = self.end();
        self.bytes.extend_from_slice(text.as_bytes());
        Text { start, len: self.end() - start }
    }

    fn reserve(&mut self, len: usize) -> u32 {
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        let start = self.end();
        self.bytes.resize(self.bytes.len() + len, 0);
        start
    }

    fn words(&mut self, words: &[u32]) -> u32 {
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        let start = self.end();
        words.iter().for_each(|word| self.bytes.extend_from_slice(&word.to_le_bytes()));
        start
    }

    /// `record { name, version, settings-schema }`
    fn description(&mut self) -> u32 {
        let name = self.text("formula-text");
        let version = self.text(env!("CARGO_PKG_VERSION"));
        let schema = self.text(SCHEMA);
        let words = [name, version, schema].map(|text| [text.start, text.len]);
        self.words(words.as_flattened())
    }

    /// `list` of `record { name: string, fallback: option<f64> }`, 24 bytes each
    fn metrics(&mut self, program: &Program) -> u32 {
        let names: Vec<_> = program.metrics.iter().map(|metric| self.text(&metric.name)).collect();
        let list = self.words(&[]);
        for (metric, name) in program.metrics.iter().zip(names) {
            self.words(&[name.start, name.len, u32::from(metric.optional), 0]);
            let fallback = if metric.optional { f64::NAN } else { 0.0 };
            self.bytes.extend_from_slice(&fallback.to_bits().to_le_bytes());
        }
        let count = u32::try_from(program.metrics.len()).expect("the parser bounds the metrics");
        self.words(&[list, count])
    }
}

fn constant(address: u32) -> Function {
    let mut function = Function::new([]);
    function.instructions().i32_const(signed(address)).end();
    function
}

/// `(settings, len) -> result<_, string>`: the empty object only, which is two bytes long.
fn configure(pair: u32, no_settings: Text, heap_start: u32) -> Function {
    let mut function = Function::new([]);
    let mut code = function.instructions();
    code.i32_const(signed(pair)).local_get(1).i32_const(2).i32_ne().i32_store(word(0));
    code.i32_const(signed(pair)).i32_const(signed(no_settings.start)).i32_store(word(4));
    code.i32_const(signed(pair)).i32_const(signed(no_settings.len)).i32_store(word(8));
    code.i32_const(signed(heap_start)).global_set(HEAP);
    code.i32_const(signed(pair)).end();
    function
}

/// `(slots, len)`: there is nothing to forget.
fn leave(heap_start: u32) -> Function {
    let mut function = Function::new([]);
    function.instructions().i32_const(signed(heap_start)).global_set(HEAP).end();
    function
}

/// `() -> list<u8>`: nothing.
fn save(pair: u32) -> Function {
    let mut function = Function::new([]);
    let mut code = function.instructions();
    code.i32_const(signed(pair)).i32_const(signed(pair)).i32_store(word(0));
    code.i32_const(signed(pair)).i32_const(0).i32_store(word(4));
    code.i32_const(signed(pair)).end();
    function
}

/// `(state, len) -> bool`: only "nothing" is understood.
fn restore(heap_start: u32) -> Function {
    let mut function = Function::new([]);
    let mut code = function.instructions();
    code.i32_const(signed(heap_start)).global_set(HEAP).local_get(1).i32_eqz().end();
    function
}

/// After the answer of `evaluate` was read.
fn wind_back(heap_start: u32) -> Function {
    leave(heap_start)
}

/// `(old, old_len, align, len) -> address` on the bump heap; memory grows as needed.
fn realloc() -> Function {
    let (old, old_len, align, len, start, missing) = (0, 1, 2, 3, 4, 5);
    let mut function = Function::new([(2, ValType::I32)]);
    let mut code = function.instructions();
    code.global_get(HEAP).local_get(align).i32_add().i32_const(1).i32_sub();
    code.i32_const(0).local_get(align).i32_sub().i32_and().local_tee(start);
    code.local_get(len).i32_add().global_set(HEAP);
    // An address that wrapped around is no address.
    code.global_get(HEAP).local_get(start).i32_lt_u().if_(BlockType::Empty).unreachable().end();
    code.global_get(HEAP).i32_const(signed(PAGE_BYTES - 1)).i32_add();
    code.i32_const(16).i32_shr_u().memory_size(0).i32_sub().local_tee(missing);
    code.i32_const(0).i32_gt_s().if_(BlockType::Empty);
    code.local_get(missing).memory_grow(0).i32_const(0).i32_lt_s();
    code.if_(BlockType::Empty).unreachable().end().end();
    code.local_get(start).local_get(old).local_get(old_len).memory_copy(0, 0);
    code.local_get(start).end();
    function
}

/// `(now, slots, count, values, values_len) -> list<f64>`
fn evaluate(program: &Program, pair: u32) -> Function {
    let (count, value, out, left) = (2, 3, 5, 6);
    let first_metric = 8;
    let metrics = u32::try_from(program.metrics.len()).expect("the parser bounds the metrics");
    let lets = u32::try_from(program.lets.len()).expect("the text is short");
    let mut function = Function::new([(3, ValType::I32), (metrics + lets, ValType::F64)]);
    let cursor = 7;
    let code = &mut function.instructions();
    code.i32_const(0).i32_const(0).i32_const(8).local_get(count).i32_const(8).i32_mul();
    code.call(FN_REALLOC).local_tee(out).local_set(cursor);
    code.local_get(count).local_set(left);
    code.block(BlockType::Empty).loop_(BlockType::Empty);
    code.local_get(left).i32_eqz().br_if(1);
    for metric in 0..metrics {
        let offset = u64::from(metric) * 8;
        code.local_get(value).f64_load(double(offset)).local_set(first_metric + metric);
    }
    let mut emit = Emit { code, first_metric, first_let: first_metric + metrics };
    for (index, value) in (0..).zip(&program.lets) {
        emit.value(value);
        emit.code.local_set(first_metric + metrics + index);
    }
    emit.code.local_get(cursor);
    emit.value(&program.load);
    code.f64_store(double(0));
    code.local_get(value).i32_const(signed(metrics * 8)).i32_add().local_set(value);
    code.local_get(cursor).i32_const(8).i32_add().local_set(cursor);
    code.local_get(left).i32_const(1).i32_sub().local_set(left).br(0).end().end();
    code.i32_const(signed(pair)).local_get(out).i32_store(word(0));
    code.i32_const(signed(pair)).local_get(count).i32_store(word(4));
    code.i32_const(signed(pair)).end();
    function
}

/// Pushes the value of expressions.
struct Emit<'c, 'f> {
    code: &'c mut InstructionSink<'f>,
    first_metric: u32,
    first_let: u32,
}

impl Emit<'_, '_> {
    fn value(&mut self, expr: &Expr) {
        match expr {
            Expr::Number(number) => {
                self.code.f64_const((*number).into());
            }
            Expr::Metric(index) => self.metric(*index),
            Expr::Let(index) => {
                self.code.local_get(self.first_let + position(*index));
            }
            Expr::Negate(inner) => {
                self.value(inner);
                self.code.f64_neg();
            }
            Expr::Not(inner) => {
                self.condition(inner);
                self.code.i32_eqz().f64_convert_i32_u();
            }
            Expr::Binary(operator, left, right) => self.binary(*operator, left, right),
            Expr::Choose(condition, then, otherwise) => {
                self.condition(condition);
                self.code.if_(BlockType::Result(ValType::F64));
                self.value(then);
                self.code.else_();
                self.value(otherwise);
                self.code.end();
            }
            Expr::Call(function, arguments) => self.call(*function, arguments),
            Expr::Has(metric) => {
                self.has(*metric);
                self.code.f64_convert_i32_u();
            }
            Expr::Or(metric, default) => {
                self.has(*metric);
                self.code.if_(BlockType::Result(ValType::F64));
                self.metric(*metric);
                self.code.else_();
                self.value(default);
                self.code.end();
            }
        }
    }

    /// Pushes 1 or 0 as an integer.
    fn condition(&mut self, expr: &Expr) {
        self.value(expr);
        self.code.f64_const(0.0.into()).f64_ne();
    }

    fn metric(&mut self, index: usize) {
        self.code.local_get(self.first_metric + position(index));
    }

    /// A metric that was not reported is NaN, which is not equal to itself.
    fn has(&mut self, index: usize) {
        self.metric(index);
        self.metric(index);
        self.code.f64_eq();
    }

    fn binary(&mut self, operator: Binary, left: &Expr, right: &Expr) {
        if matches!(operator, Binary::And | Binary::Or) {
            self.condition(left);
            self.condition(right);
            if operator == Binary::And {
                self.code.i32_and();
            } else {
                self.code.i32_or();
            }
            self.code.f64_convert_i32_u();
            return;
        }
        self.value(left);
        self.value(right);
        match operator {
            Binary::Add => self.code.f64_add(),
            Binary::Subtract => self.code.f64_sub(),
            Binary::Multiply => self.code.f64_mul(),
            Binary::Divide => self.code.f64_div(),
            Binary::Remainder => self.code.call(FN_REMAINDER),
            Binary::Less => self.code.f64_lt().f64_convert_i32_u(),
            Binary::LessOrEqual => self.code.f64_le().f64_convert_i32_u(),
            Binary::Greater => self.code.f64_gt().f64_convert_i32_u(),
            Binary::GreaterOrEqual => self.code.f64_ge().f64_convert_i32_u(),
            Binary::Equal => self.code.f64_eq().f64_convert_i32_u(),
            Binary::NotEqual => self.code.f64_ne().f64_convert_i32_u(),
            Binary::And | Binary::Or => unreachable!("answered above"),
        };
    }

    fn call(&mut self, function: Named, arguments: &[Expr]) {
        for (index, argument) in arguments.iter().enumerate() {
            self.value(argument);
            match (function, index) {
                (Named::Min, 1..) | (Named::Clamp, 2) => self.code.f64_min(),
                (Named::Max, 1..) | (Named::Clamp, 1) => self.code.f64_max(),
                (Named::Abs, _) => self.code.f64_abs(),
                (Named::Sqrt, _) => self.code.f64_sqrt(),
                (Named::Floor, _) => self.code.f64_floor(),
                (Named::Ceil, _) => self.code.f64_ceil(),
                (Named::Round, _) => self.code.f64_nearest(),
                (Named::Exp, _) => self.code.call(FN_EXP),
                (Named::Ln, _) => self.code.call(FN_LN),
                (Named::Pow, 1) => self.code.call(FN_POW),
                (Named::Min | Named::Max | Named::Clamp | Named::Pow, _) => continue,
            };
        }
    }
}

fn position(index: usize) -> u32 {
    u32::try_from(index).expect("the parser bounds what a formula names")
}

fn word(offset: u64) -> MemArg {
    MemArg { offset, align: 2, memory_index: 0 }
}

fn double(offset: u64) -> MemArg {
    MemArg { offset, align: 3, memory_index: 0 }
}

/// The bits of an address as WebAssembly writes constants.
fn signed(address: u32) -> i32 {
    address.cast_signed()
}
