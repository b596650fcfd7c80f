//! A good strategy of any size: what a compiler of another language brings along with its own runtime.

use wasm_encoder::{
    BlockType, CodeSection, Function, FunctionSection, InstructionSink, MemArg, MemorySection,
    MemoryType, Module, TypeSection, ValType,
};
use wit_component::ComponentEncoder;

use super::{Random, built_in};

/// Statements of a function at most.
const STATEMENTS_MAX: usize = 60;
/// Locals of a function: its two parameters, then as many of each type.
const LOCALS: u32 = 6;
/// Section of a component that holds a core module.
const CORE_MODULE: u8 = 1;

/// `p2c` as a component, with a second core module that brings it to about this size.
pub(crate) fn large_strategy(bytes: usize, seed: u64) -> Vec<u8> {
    let core = built_in("p2c");
    let encoder = ComponentEncoder::default().module(&core).unwrap();
    let mut component = encoder.validate(true).encode().unwrap();
    let more = module(bytes - component.len(), seed);
    component.push(CORE_MODULE);
    let mut size = more.len();
    while size >= 0x80 {
        component.push(u8::try_from(size & 0x7f).unwrap() | 0x80);
        size >>= 7;
    }
    component.push(u8::try_from(size).unwrap());
    component.extend(more);
    component
}

/// A module of functions that compute, branch, read, write and call each other.
fn module(bytes: usize, seed: u64) -> Vec<u8> {
    let (mut functions, mut code, mut random) =
        (FunctionSection::new(), CodeSection::new(), Random::new(seed));
    while code.byte_len() < bytes {
        functions.function(0);
        code.function(&function(functions.len(), &mut random));
    }
    let (mut types, mut memories) = (TypeSection::new(), MemorySection::new());
    types.ty().function([ValType::I32, ValType::F64], [ValType::F64]);
    memories.memory(MemoryType {
        minimum: 1,
        maximum: None,
        memory64: false,
        shared: false,
        page_size_log2: None,
    });
    let mut module = Module::new();
    module.section(&types).section(&functions).section(&memories).section(&code);
    module.finish()
}

/// The function of this number, counted from 1.
fn function(number: u32, random: &mut Random) -> Function {
    let half = LOCALS / 2;
    let mut function = Function::new([(half - 1, ValType::I32), (half - 1, ValType::F64)]);
    let mut body = function.instructions();
    for _ in 0..=random.below(STATEMENTS_MAX) {
        statement(&mut body, number, random);
    }
    body.local_get(1).end();
    function
}

/// Parameters are 0 and 1; then come the other locals of each type.
fn statement(body: &mut InstructionSink<'_>, number: u32, random: &mut Random) {
    let half = usize::try_from(LOCALS / 2).unwrap();
    let local = |of: usize| u32::try_from(of).unwrap();
    let whole = [0, 2, 3][random.below(half)];
    let real = [1, 4, 5][random.below(half)];
    let (other, factor) = (random.below(half), random.below(1_000));
    let factor = i32::try_from(factor).unwrap();
    let place = MemArg { offset: 8, align: 0, memory_index: 0 };
    match random.below(6) {
        0 => {
            body.local_get(whole).i32_const(factor).i32_mul().local_get(0).i32_add();
            body.local_set(whole);
        }
        1 => {
            body.local_get(real).f64_const(f64::from(factor).into()).f64_mul().local_get(1);
            body.f64_add().local_set(real);
        }
        2 => {
            body.local_get(whole).i32_const(0xffff).i32_and().f64_load(place).local_set(real);
        }
        3 => {
            body.local_get(whole).i32_const(0xffff).i32_and().local_get(real).f64_store(place);
        }
        4 => {
            body.local_get(whole).i32_const(factor).i32_lt_s().if_(BlockType::Empty);
            body.local_get(whole).i32_const(1).i32_shl().local_set([0, 2, 3][other]);
            body.else_().local_get(real).f64_sqrt().local_set(real).end();
        }
        _ => {
            let called = local(random.below(usize::try_from(number).unwrap()));
            body.local_get(whole).local_get(real).call(called).local_set(real);
        }
    }
}
