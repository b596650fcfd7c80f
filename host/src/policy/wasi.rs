//! Guests that import functions of WASI and never call them: each such import becomes a function that traps.
//!
//! Standard libraries bring such imports along for what a policy never does. It is for an operator to say
//! that a policy may have them ([`Wasi::Trap`](crate::config::Wasi)); none of them ever does anything.

use std::collections::BTreeMap;

use wasm_encoder::{
    CodeSection, ExportKind, ExportSection, Function, FunctionSection, Instruction, Module,
    TypeSection, ValType,
};
use wasmparser::{FuncType, Parser, Payload, TypeRef};

/// Whether an import is of WASI, by its module or interface.
pub(super) fn is_wasi(import: &str) -> bool {
    import.starts_with("wasi_") || import.starts_with("wasi:")
}

/// For each module of WASI that a core module imports from, by its name, one whose functions trap.
pub(super) fn trapping(core: &[u8]) -> Result<BTreeMap<String, Vec<u8>>, anyhow::Error> {
    let (mut types, mut wanted) = (Vec::new(), BTreeMap::<String, BTreeMap<String, u32>>::new());
    for payload in Parser::new(0).parse_all(core) {
        match payload? {
            Payload::TypeSection(section) => {
                types = section.into_iter_err_on_gc_types().collect::<Result<_, _>>()?;
            }
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    let import = import?;
                    if let TypeRef::Func(index) = import.ty
                        && is_wasi(import.module)
                    {
                        let functions = wanted.entry(import.module.to_owned()).or_default();
                        functions.insert(import.name.to_owned(), index);
                    }
                }
            }
            _ => {}
        }
    }
    let module = |(name, functions): (String, BTreeMap<String, u32>)| {
        Ok((name, module_of(&types, &functions)?))
    };
    wanted.into_iter().map(module).collect()
}

/// A module that exports these functions, by name and type.
fn module_of(
    types: &[FuncType],
    functions: &BTreeMap<String, u32>,
) -> Result<Vec<u8>, anyhow::Error> {
    let (mut signatures, mut declared) = (TypeSection::new(), FunctionSection::new());
    let (mut exports, mut code) = (ExportSection::new(), CodeSection::new());
    for (number, (name, index)) in (0..).zip(functions) {
        let signature = types.get(*index as usize);
        let signature = signature.ok_or_else(|| anyhow::anyhow!("{name} has no type"))?;
        let values =
            |types: &[wasmparser::ValType]| types.iter().map(value).collect::<Result<Vec<_>, _>>();
        signatures.ty().function(values(signature.params())?, values(signature.results())?);
        declared.function(number);
        exports.export(name, ExportKind::Func, number);
        let mut body = Function::new([]);
        body.instruction(&Instruction::Unreachable);
        body.instruction(&Instruction::End);
        code.function(&body);
    }
    let mut module = Module::new();
    module.section(&signatures).section(&declared).section(&exports).section(&code);
    Ok(module.finish())
}

fn value(of: &wasmparser::ValType) -> Result<ValType, anyhow::Error> {
    match of {
        wasmparser::ValType::I32 => Ok(ValType::I32),
        wasmparser::ValType::I64 => Ok(ValType::I64),
        wasmparser::ValType::F32 => Ok(ValType::F32),
        wasmparser::ValType::F64 => Ok(ValType::F64),
        other => anyhow::bail!("an import of WASI has the type {other}"),
    }
}
