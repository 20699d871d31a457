//! Rust: the wire's fields, codes and limits; the protocol's drop reasons.

use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::NOTICE;
use crate::spec::{Constant, DropReason, Enumeration, Field, Header, Spec};

/// `crates/wire/src/generated.rs`.
pub fn wire(spec: &Spec) -> Result<String> {
    let mut text = format!("// {NOTICE}\n\n//! Fields, codes and limits of the wire formats.\n\n");
    text.extend(spec.constants.iter().map(constant));
    text.extend(spec.enumerations.iter().map(enumeration));
    text.extend(spec.headers.iter().map(header));
    format_rust(&text)
}

/// `crates/protocol/src/generated.rs`.
pub fn protocol(spec: &Spec) -> Result<String> {
    let reasons = &spec.drop_reasons;
    let table = |column: fn(&DropReason) -> String| -> String {
        reasons.iter().map(|reason| format!("Self::{} => {},\n", reason.name, column(reason))).collect()
    };
    let variants: String = reasons
        .iter()
        .map(|reason| format!("/// {}\n///\n/// {}\n{} = {},\n", reason.doc, reason.hint, reason.name, reason.code))
        .collect();
    let all: String = reasons.iter().map(|reason| format!("Self::{},", reason.name)).collect();
    let codes: String =
        reasons.iter().map(|reason| format!("{} => Some(Self::{}),\n", reason.code, reason.name)).collect();
    let refused: Vec<_> =
        reasons.iter().filter(|reason| reason.refused).map(|reason| format!("Self::{}", reason.name)).collect();
    format_rust(&format!(
        "// {NOTICE}

//! Why a packet was not used, declared once: counters, metrics, logs and refusals derive from it.

/// Why a switch or a worker did not use a packet. Nothing is dropped without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum DropReason {{ {variants} }}

impl DropReason {{
    /// Number of reasons: the length of a table with one entry for each.
    pub const COUNT: usize = {count};

    /// Every reason, in the order of its code.
    pub const ALL: [Self; Self::COUNT] = [{all}];

    /// Code in a Refusal's `detail`; from 0, without gaps, so it is also the position in [`Self::ALL`].
    pub const fn code(self) -> u8 {{ self as u8 }}

    /// The reason with this code.
    pub const fn from_code(code: u8) -> Option<Self> {{ match code {{ {codes} _ => None, }} }}

    /// True if the switch answers the packet with a Refusal that carries this reason.
    pub const fn is_refused(self) -> bool {{ matches!(self, {refused}) }}

    /// Name in metrics and logs.
    pub const fn name(self) -> &'static str {{ match self {{ {names} }} }}

    /// What happened, as a sentence.
    pub const fn describe(self) -> &'static str {{ match self {{ {docs} }} }}

    /// What a person can do about it.
    pub const fn hint(self) -> &'static str {{ match self {{ {hints} }} }}
}}

impl core::fmt::Display for DropReason {{
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {{ f.write_str(self.name()) }}
}}
",
        count = reasons.len(),
        refused = refused.join(" | "),
        names = table(|reason| format!("{:?}", snake_case(&reason.name))),
        docs = table(|reason| format!("{:?}", reason.doc)),
        hints = table(|reason| format!("{:?}", reason.hint)),
    ))
}

fn constant(constant: &Constant) -> String {
    let Constant { name, kind, doc, .. } = constant;
    format!("{}pub const {name}: {} = {};\n\n", doc_comment("///", doc), kind.name(), constant.literal())
}

fn enumeration(enumeration: &Enumeration) -> String {
    let Enumeration { name, doc, values } = enumeration;
    let variants: String =
        values.iter().map(|value| format!("/// {}\n{} = {},\n", value.doc, value.name, value.code)).collect();
    let all: String = values.iter().map(|value| format!("Self::{},", value.name)).collect();
    let codes: String = values.iter().map(|value| format!("{} => Ok(Self::{}),\n", value.code, value.name)).collect();
    let names: String =
        values.iter().map(|value| format!("Self::{} => {:?},\n", value.name, snake_case(&value.name))).collect();
    format!(
        "/// {doc}
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum {name} {{ {variants} }}

impl {name} {{
    /// Every value, in the order of its code.
    pub const ALL: [Self; {count}] = [{all}];

    /// Code on the wire.
    pub const fn code(self) -> u8 {{ self as u8 }}

    /// Name in logs and errors.
    pub const fn name(self) -> &'static str {{ match self {{ {names} }} }}
}}

impl TryFrom<u8> for {name} {{
    /// The code that no value has.
    type Error = u8;

    fn try_from(code: u8) -> Result<Self, u8> {{ match code {{ {codes} _ => Err(code), }} }}
}}

impl core::fmt::Display for {name} {{
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {{ f.write_str(self.name()) }}
}}
",
        count = values.len(),
    )
}

fn header(header: &Header) -> String {
    let prefix = header.prefix();
    let fields: String = header.fields.iter().map(|field| field_constants(&prefix, field)).collect();
    format!(
        "// {title}.\n\n/// Bytes of the header: {title}.\npub const {prefix}HEADER_BYTES: usize = {bytes};\n\n{fields}",
        title = header.title,
        bytes = header.bytes,
    )
}

fn field_constants(prefix: &str, field: &Field) -> String {
    let name = field.name.to_uppercase();
    let mut text = format!(
        "/// Where `{}`, {}, lies. {}\npub const {prefix}{name}_OFFSET: usize = {};\n\n",
        field.name,
        field.rust_type(),
        field.doc,
        field.offset
    );
    for part in &field.parts {
        let name = part.name.to_uppercase();
        text += &format!(
            "/// Bits of `{}` that hold `{}`. {}\npub const {prefix}{name}_MASK: {ty} = 0x{:X};\n\n\
             /// How far those bits are shifted up.\npub const {prefix}{name}_SHIFT: u32 = {};\n\n",
            field.name,
            part.name,
            part.doc,
            part.mask(),
            part.shift,
            ty = field.rust_type(),
        );
    }
    text
}

fn doc_comment(sign: &str, text: &str) -> String {
    text.lines().map(|line| format!("{sign} {line}\n")).collect()
}

/// `DuplicateContribution` as `duplicate_contribution`.
pub fn snake_case(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}

/// Through rustfmt, so that `cargo fmt --check` and `generate --check` never disagree.
fn format_rust(text: &str) -> Result<String> {
    let mut child = Command::new("rustfmt")
        .args(["--edition", "2024", "--emit", "stdout", "--quiet"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start rustfmt: install it with `rustup component add rustfmt`")?;
    child.stdin.take().context("rustfmt has no input")?.write_all(text.as_bytes())?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "rustfmt refused the generated text:\n{text}");
    Ok(String::from_utf8(output.stdout)?)
}
