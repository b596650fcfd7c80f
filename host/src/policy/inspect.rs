//! What a policy file is, without compiling or running it: bytes in, facts out.
//!
//! Nothing here refuses a file: it says what is there, so that an author sees why a host refuses it.

use wasmparser::{Parser, Payload, ProducersSectionReader};

use super::module::Generation;

/// Custom section in which the SDK leaves its version.
const SDK_SECTION: &str = "loadline-sdk";

/// What is in a file.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Inspection {
    /// `component`, `core module`, `formula text` or `unknown`.
    pub form: &'static str,
    /// Its generation, the beginning of the file's SHA-256.
    pub generation: String,
    /// In bytes.
    pub size: usize,
    /// Bytes of code in it.
    pub code_size: usize,
    /// Version of the SDK that it was built with.
    pub sdk: Option<String>,
    /// What it was made by: language, compiler, tools, with versions.
    pub producers: Vec<String>,
    /// Interfaces and modules it imports.
    pub imports: Vec<String>,
    /// Interfaces and functions it exports.
    pub exports: Vec<String>,
    /// Where the reading ended, if it could not go on.
    pub broken: Option<String>,
}

impl Inspection {
    /// Of a file's bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let form = if Parser::is_component(bytes) {
            "component"
        } else if Parser::is_core_wasm(bytes) {
            "core module"
        } else if std::str::from_utf8(bytes).is_ok_and(|text| super::text::compile(text).is_ok()) {
            "formula text"
        } else {
            "unknown"
        };
        let mut found = Self {
            form,
            generation: Generation::of(bytes).to_string(),
            size: bytes.len(),
            code_size: 0,
            sdk: None,
            producers: Vec::new(),
            imports: Vec::new(),
            exports: Vec::new(),
            broken: None,
        };
        if form == "component" || form == "core module" {
            found.broken = found.read(bytes).err().map(|error| error.to_string());
        }
        for list in [&mut found.producers, &mut found.imports, &mut found.exports] {
            list.sort_unstable();
            list.dedup();
        }
        found
    }

    fn read(&mut self, bytes: &[u8]) -> wasmparser::Result<()> {
        let mut depth = 0_usize;
        for payload in Parser::new(0).parse_all(bytes) {
            match payload? {
                Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
                Payload::End(_) => depth = depth.saturating_sub(1),
                Payload::CodeSectionStart { size, .. } => self.code_size += size as usize,
                Payload::CustomSection(section) if section.name() == SDK_SECTION => {
                    self.sdk = std::str::from_utf8(section.data()).ok().map(str::to_owned);
                }
                Payload::CustomSection(section) if section.name() == "producers" => {
                    self.read_producers(section.data(), section.data_offset())?;
                }
                Payload::ImportSection(section) if depth == 0 => {
                    for import in section.into_imports() {
                        self.imports.push(import?.module.to_owned());
                    }
                }
                Payload::ComponentImportSection(section) if depth == 0 => {
                    for import in section {
                        self.imports.push(import?.name.name.to_owned());
                    }
                }
                Payload::ExportSection(section) if depth == 0 => {
                    for export in section {
                        self.exports.push(export?.name.to_owned());
                    }
                }
                Payload::ComponentExportSection(section) if depth == 0 => {
                    for export in section {
                        self.exports.push(export?.name.name.to_owned());
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn read_producers(&mut self, data: &[u8], offset: usize) -> wasmparser::Result<()> {
        let reader = wasmparser::BinaryReader::new(data, offset);
        for field in ProducersSectionReader::new(reader)? {
            for value in field?.values {
                let value = value?;
                self.producers.push(format!("{} {}", value.name, value.version).trim().to_owned());
            }
        }
        Ok(())
    }
}
