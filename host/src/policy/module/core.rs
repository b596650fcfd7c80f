//! A core module to the component that it is meant to be.
//!
//! The component type that tools leave in a core module is not read but replaced by our own copy of the
//! contract, and its other custom sections are left out. What initialises a module is called at the start of
//! each guest, by either name that linkers have for it.

use wasm_encoder::{ExportKind, ExportSection};
use wasmparser::{ExportSectionReader, ExternalKind, Parser, Payload, Validator};
use wit_parser::{Resolve, WorldId};

use super::super::features;
use super::super::wasi::trapping;
use super::front::with_front;
use super::weight::Weight;
use super::{Kind, ModuleError, PACKAGE, check_imports, invalid, kind_of};
use crate::config::Wasi;

/// The contract.
const WIT: &str = include_str!("../../../../sdk/policy/wit/policy.wit");
/// Its whole version, which a core module must have: it is wrapped by our copy.
const CONTRACT_VERSION: &str = "1.0.0";
/// What a component calls first of its core module: the name in WASI's reactors.
const INITIALISER: &str = "_initialize";
/// The linker's own name for it, where a module is linked without an entry.
const CONSTRUCTORS: &str = "__wasm_call_ctors";

/// The component of these bytes of a core module.
///
/// # Errors
/// The first check that failed.
pub(super) fn as_component(bytes: &[u8], wasi: Wasi) -> Result<Vec<u8>, ModuleError> {
    let (kind, code) = check(bytes, wasi)?;
    wrap(kind, code).map_err(|error| ModuleError::Shape { reason: format!("{error:#}") })
}

/// The component of a core module that exports the contract's functions, with a front.
fn wrap(kind: Kind, code: Vec<u8>) -> Result<Vec<u8>, anyhow::Error> {
    let (resolve, world) = contract(kind)?;
    let component = encode(&resolve, world, code)?;
    Ok(with_front(&component, &resolve, world)?.unwrap_or(component))
}

/// What a policy of this kind exports.
pub(super) fn contract(kind: Kind) -> Result<(Resolve, WorldId), anyhow::Error> {
    let mut resolve = Resolve::default();
    let package = resolve.push_str("policy.wit", WIT)?;
    let world = resolve.select_world(&[package], Some(&format!("{kind}-policy")))?;
    Ok((resolve, world))
}

/// The component of a core module, as it is.
fn encode(resolve: &Resolve, world: WorldId, mut code: Vec<u8>) -> Result<Vec<u8>, anyhow::Error> {
    let encoding = wit_component::StringEncoding::UTF8;
    wit_component::embed_component_metadata(&mut code, resolve, world, encoding)?;
    let mut encoder = wit_component::ComponentEncoder::default().module(&code)?;
    // There are none left but where an operator has allowed them.
    for (name, module) in trapping(&code)? {
        encoder = encoder.adapter(&name, &module)?;
    }
    encoder.validate(false).encode()
}

/// A core module: valid, without foreign imports, exporting one kind of policy. Its kind, and itself
/// without custom sections.
fn check(bytes: &[u8], wasi: Wasi) -> Result<(Kind, Vec<u8>), ModuleError> {
    let (mut imports, mut exports) = (Vec::new(), Vec::new());
    let (mut code, mut weight) = (wasm_encoder::Module::new(), Weight::default());
    Validator::new_with_features(features::allowed()).validate_all(bytes).map_err(invalid)?;
    for payload in Parser::new(0).parse_all(bytes) {
        let payload = payload.map_err(invalid)?;
        weight.add(&payload)?;
        if let Payload::ExportSection(section) = &payload
            && let Some(renamed) = with_initialiser(section)?
        {
            code.section(&renamed);
        } else if let Some((id, range)) = payload.as_section()
            && !matches!(payload, Payload::CustomSection(_))
        {
            code.section(&wasm_encoder::RawSection { id, data: &bytes[range] });
        }
        match payload {
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    imports.push(import.map_err(invalid)?.module.to_owned());
                }
            }
            Payload::ExportSection(section) => {
                for export in section {
                    exports.push(export.map_err(invalid)?.name.to_owned());
                }
            }
            _ => {}
        }
    }
    check_imports(imports.iter().map(String::as_str), wasi)?;
    // `loadline:policy/strategy@1.0.0#pick`: a function of an interface.
    let interfaces = exports.iter().filter_map(|export| Some(export.split_once('#')?.0));
    let kind = kind_of(interfaces.clone())?;
    let wrapped = format!("{PACKAGE}{kind}@{CONTRACT_VERSION}");
    match interfaces.filter(|interface| interface.starts_with(PACKAGE)).find(|i| **i != *wrapped) {
        Some(other) => Err(ModuleError::Contract { found: other.to_owned() }),
        None => Ok((kind, code.finish())),
    }
}

/// The same exports, where one that initialises the module has to be renamed so that it is called.
fn with_initialiser(
    section: &ExportSectionReader<'_>,
) -> Result<Option<ExportSection>, ModuleError> {
    let exports = section.clone().into_iter().collect::<Result<Vec<_>, _>>().map_err(invalid)?;
    let has = |name| exports.iter().any(|export| export.name == name);
    if has(INITIALISER) || !has(CONSTRUCTORS) {
        return Ok(None);
    }
    let mut renamed = ExportSection::new();
    for export in exports {
        let kind = match export.kind {
            ExternalKind::Func | ExternalKind::FuncExact => ExportKind::Func,
            ExternalKind::Table => ExportKind::Table,
            ExternalKind::Memory => ExportKind::Memory,
            ExternalKind::Global => ExportKind::Global,
            ExternalKind::Tag => ExportKind::Tag,
        };
        let name = if export.name == CONSTRUCTORS { INITIALISER } else { export.name };
        renamed.export(name, kind, export.index);
    }
    Ok(Some(renamed))
}

/// The kind of a good core module, and its component without a front.
#[cfg(test)]
pub(super) fn wrapped(bytes: &[u8]) -> (Kind, Vec<u8>) {
    let (kind, code) = check(bytes, Wasi::Refuse).unwrap();
    let (resolve, world) = contract(kind).unwrap();
    (kind, encode(&resolve, world, code).unwrap())
}
