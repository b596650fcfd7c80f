//! A component as it is wrapped to the same one whose calls cost less.
//!
//! Wasmtime looks up a function that a core instance defines anew at each call, by search trees, and one
//! that it imports by one memory access: a sixth of what calling a small policy costs. So the contract's
//! functions are lifted from a second core instance, the *front*, which imports them from the first one
//! and exports them again. Where a component does not look like our wrapping, it stays as it is.

use wasm_encoder::reencode::{ReencodeComponent, RoundtripReencoder};
use wasm_encoder::{
    Alias, ComponentAliasSection, EntityType, ExportKind, ExportSection, ImportSection,
    InstanceSection, ModuleArg, ModuleSection, RawSection, TypeSection, ValType,
};
use wasmparser::{Parser, Payload};
use wit_parser::abi::{AbiVariant, WasmType};
use wit_parser::{Resolve, WorldId, WorldItem};

/// Module name of the front's imports.
const MAIN: &str = "main";

/// The same component with a front for the functions that this world exports; `None`: it is not as our
/// wrapping makes them.
///
/// # Errors
/// It cannot be read.
pub(super) fn with_front(
    component: &[u8],
    resolve: &Resolve,
    world: WorldId,
) -> Result<Option<Vec<u8>>, anyhow::Error> {
    let functions = exported(resolve, world);
    let mut fronted = wasm_encoder::Component::new();
    // Of the component itself, not of what is nested in it.
    let (mut modules, mut instances, mut depth) = (0, 0, 0);
    // What the functions are lifted from, once one was.
    let mut main = None;
    for payload in Parser::new(0).parse_all(component) {
        let payload = payload?;
        let is_nested = depth > 0;
        match &payload {
            Payload::End(_) if is_nested => depth -= 1,
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            _ => {}
        }
        let Some((id, range)) = payload.as_section().filter(|_| !is_nested) else { continue };
        match payload {
            // Places are counted in order: the front would take this one's.
            Payload::ModuleSection { .. } | Payload::InstanceSection(_) if main.is_some() => {
                return Ok(None);
            }
            Payload::ModuleSection { .. } => modules += 1,
            Payload::InstanceSection(section) => instances += section.count(),
            Payload::ComponentAliasSection(section) => {
                let (mut aliases, mut lifted) = (ComponentAliasSection::new(), None);
                for alias in section {
                    let mut alias = RoundtripReencoder.component_alias(alias?)?;
                    if let Some(instance) = lifts(&mut alias, &functions) {
                        lifted = lifted.or(Some(*instance));
                        if lifted != Some(*instance) {
                            return Ok(None);
                        }
                        *instance = instances;
                    }
                    aliases.alias(alias);
                }
                if let (None, Some(instance)) = (main, lifted) {
                    fronted.section(&ModuleSection(&front(&functions)));
                    let mut instances = InstanceSection::new();
                    instances.instantiate(modules, [(MAIN, ModuleArg::Instance(instance))]);
                    fronted.section(&instances);
                }
                main = main.or(lifted);
                if lifted.is_some() && lifted != main {
                    return Ok(None);
                }
                fronted.section(&aliases);
                continue;
            }
            _ => {}
        }
        fronted.section(&RawSection { id, data: &component[range] });
    }
    Ok(main.map(|_| fronted.finish()))
}

/// The core instance that an alias takes one of these functions from.
fn lifts<'a>(alias: &'a mut Alias<'_>, functions: &[Function]) -> Option<&'a mut u32> {
    match alias {
        Alias::CoreInstanceExport { instance, kind: ExportKind::Func, name } => {
            functions.iter().any(|function| function.name == *name).then_some(instance)
        }
        _ => None,
    }
}

/// A function of the contract as a core module exports it.
struct Function {
    name: String,
    params: Vec<ValType>,
    results: Vec<ValType>,
}

fn exported(resolve: &Resolve, world: WorldId) -> Vec<Function> {
    let mut functions = Vec::new();
    for (key, item) in &resolve.worlds[world].exports {
        let WorldItem::Interface { id, .. } = item else { continue };
        let interface = resolve.name_world_key(key);
        for (name, function) in &resolve.interfaces[*id].functions {
            let signature = resolve.wasm_signature(AbiVariant::GuestExport, function);
            functions.push(Function {
                name: format!("{interface}#{name}"),
                params: signature.params.iter().map(core_type).collect(),
                results: signature.results.iter().map(core_type).collect(),
            });
        }
    }
    functions
}

fn core_type(of: &WasmType) -> ValType {
    match of {
        WasmType::I32 | WasmType::Pointer | WasmType::Length => ValType::I32,
        WasmType::I64 | WasmType::PointerOrI64 => ValType::I64,
        WasmType::F32 => ValType::F32,
        WasmType::F64 => ValType::F64,
    }
}

/// A core module that imports these functions and exports them again.
fn front(functions: &[Function]) -> wasm_encoder::Module {
    let (mut types, mut imports) = (TypeSection::new(), ImportSection::new());
    let mut exports = ExportSection::new();
    for (index, function) in (0..).zip(functions) {
        let Function { name, params, results } = function;
        types.ty().function(params.iter().copied(), results.iter().copied());
        imports.import(MAIN, name, EntityType::Function(index));
        exports.export(name, ExportKind::Func, index);
    }
    let mut module = wasm_encoder::Module::new();
    module.section(&types).section(&imports).section(&exports);
    module
}

#[cfg(test)]
mod tests {
    use wasmparser::{ComponentAlias, ExternalKind};

    use super::super::core::{contract, wrapped};
    use super::*;
    use crate::policy::{built_in, built_in_names};

    /// A core module that is empty, as a component's section.
    const MORE: [u8; 10] = [1, 8, 0, b'a', b's', b'm', 1, 0, 0, 0];

    /// The core instances that these functions are lifted from, one each, and how many there are.
    fn lifted_from(component: &[u8], functions: &[Function]) -> (Vec<u32>, u32) {
        let (mut lifted, mut instances) = (Vec::new(), 0);
        for payload in Parser::new(0).parse_all(component) {
            match payload.unwrap() {
                Payload::InstanceSection(section) => instances += section.count(),
                Payload::ComponentAliasSection(section) => {
                    for alias in section {
                        let ComponentAlias::CoreInstanceExport {
                            kind: ExternalKind::Func,
                            instance_index,
                            name,
                        } = alias.unwrap()
                        else {
                            continue;
                        };
                        if functions.iter().any(|function| function.name == name) {
                            lifted.push(instance_index);
                        }
                    }
                }
                _ => {}
            }
        }
        (lifted, instances)
    }

    #[test]
    fn every_function_of_the_contract_is_lifted_from_the_front() {
        for name in built_in_names() {
            let (kind, component) = wrapped(built_in(name).unwrap());
            let (resolve, world) = contract(kind).unwrap();
            let functions = exported(&resolve, world);
            let fronted = with_front(&component, &resolve, world).unwrap().expect(name);
            let (lifted, instances) = lifted_from(&fronted, &functions);
            assert_eq!(lifted, vec![instances - 1; functions.len()], "{name}");
        }
    }

    #[test]
    fn a_component_with_more_behind_stays_as_it_is() {
        let (kind, component) = wrapped(built_in("balanced").unwrap());
        let (resolve, world) = contract(kind).unwrap();
        let more = [&*component, &MORE].concat();
        assert_eq!(with_front(&more, &resolve, world).unwrap(), None);
        assert_eq!(with_front(&component[..8], &resolve, world).unwrap(), None);
    }
}
