//! `spec/fields.toml` as values, checked before anything is generated from it.

use std::collections::HashSet;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// All of `spec/fields.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Packet headers.
    #[serde(rename = "header")]
    pub headers: Vec<Header>,
    /// Closed sets of codes.
    #[serde(rename = "enumeration")]
    pub enumerations: Vec<Enumeration>,
    /// Limits, defaults and sentinels.
    #[serde(rename = "constant")]
    pub constants: Vec<Constant>,
    /// Why a packet is not used.
    #[serde(rename = "drop_reason")]
    pub drop_reasons: Vec<DropReason>,
}

/// One packet header, big-endian, without gaps.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// Name of the format: `fanin`, `p4app`.
    pub name: String,
    /// Heading in the reference page.
    pub title: String,
    /// Length in bytes; must be the sum of the fields.
    pub bytes: u32,
    /// What the header is for.
    pub doc: String,
    /// The fields in order.
    #[serde(rename = "field")]
    pub fields: Vec<Field>,
}

/// One field of a header.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Field {
    /// Name in `snake_case`.
    pub name: String,
    /// First byte, counted from the header's start.
    pub offset: u32,
    /// Width in bytes: 1, 2 or 4.
    pub bytes: u32,
    /// Two's complement if true.
    #[serde(default)]
    pub signed: bool,
    /// What it means.
    pub doc: String,
    /// Bit ranges with a meaning of their own, from the highest to the lowest; together they fill the field.
    #[serde(default)]
    pub parts: Vec<Part>,
}

/// A range of bits inside a field.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Name in `snake_case`.
    pub name: String,
    /// Position of the lowest bit.
    pub shift: u32,
    /// Number of bits.
    pub bits: u32,
    /// What it means.
    pub doc: String,
}

impl Part {
    /// The part's bits in the whole field.
    pub fn mask(&self) -> u64 {
        ((1 << self.bits) - 1) << self.shift
    }
}

/// A closed set of 8-bit codes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Enumeration {
    /// Name in `CamelCase`.
    pub name: String,
    /// What it tells apart.
    pub doc: String,
    /// Its members.
    pub values: Vec<EnumerationValue>,
}

/// One member of an [`Enumeration`].
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnumerationValue {
    /// Name in `CamelCase`.
    pub name: String,
    /// Code on the wire.
    pub code: u8,
    /// What it means.
    pub doc: String,
}

/// A limit, a default or a sentinel.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constant {
    /// Name in `UPPER_CASE`, unit last.
    pub name: String,
    /// Rust's name of the type: `u8`, `u16`, `u32`, `i16`.
    #[serde(rename = "type")]
    pub kind: IntegerType,
    /// The value.
    pub value: i64,
    /// Shown in hexadecimal if true.
    #[serde(default)]
    pub hex: bool,
    /// What it limits or means.
    pub doc: String,
}

impl Constant {
    /// The value as Rust, Python and people write it.
    pub fn literal(&self) -> String {
        if self.hex { format!("0x{:X}", self.value) } else { self.value.to_string() }
    }
}

/// Integer types that constants may have.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IntegerType {
    /// 8 bits, unsigned.
    U8,
    /// 16 bits, unsigned.
    U16,
    /// 32 bits, unsigned.
    U32,
    /// 16 bits, two's complement.
    I16,
}

impl IntegerType {
    /// Rust's name of the type.
    pub fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::I16 => "i16",
        }
    }

    /// Width in bits.
    pub fn bits(self) -> u32 {
        match self {
            Self::U8 => 8,
            Self::U16 | Self::I16 => 16,
            Self::U32 => 32,
        }
    }

    /// True for two's complement.
    pub fn is_signed(self) -> bool {
        matches!(self, Self::I16)
    }

    fn holds(self, value: i64) -> bool {
        match self {
            Self::U8 => u8::try_from(value).is_ok(),
            Self::U16 => u16::try_from(value).is_ok(),
            Self::U32 => u32::try_from(value).is_ok(),
            Self::I16 => i16::try_from(value).is_ok(),
        }
    }
}

/// Who finds the reason to drop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum At {
    /// The switch only.
    Switch,
    /// The worker only.
    Worker,
    /// Either.
    Both,
}

/// Why a packet is not used.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DropReason {
    /// Name in `CamelCase`.
    pub name: String,
    /// Code in a Refusal, in metrics and in logs; dense from 0.
    pub code: u8,
    /// Who drops.
    pub at: At,
    /// The switch answers with a Refusal.
    pub refused: bool,
    /// What happened.
    pub doc: String,
    /// What a person can do about it.
    pub hint: String,
}

impl Spec {
    /// Parses and checks the text of `fields.toml`.
    pub fn parse(text: &str) -> Result<Self> {
        let spec: Self = toml::from_str(text).context("spec/fields.toml is not as xtask expects it")?;
        spec.check().context("spec/fields.toml contradicts itself")?;
        Ok(spec)
    }

    fn check(&self) -> Result<()> {
        for header in &self.headers {
            header.check().with_context(|| format!("header {}", header.name))?;
        }
        for enumeration in &self.enumerations {
            let values = &enumeration.values;
            unique(values.iter().map(|value| value.code)).with_context(|| format!("codes of {}", enumeration.name))?;
            unique(values.iter().map(|value| &value.name)).with_context(|| format!("names of {}", enumeration.name))?;
        }
        unique(self.constants.iter().map(|constant| &constant.name)).context("constants")?;
        for constant in &self.constants {
            ensure!(constant.kind.holds(constant.value), "{} does not fit {}", constant.name, constant.kind.name());
        }
        self.check_drop_reasons()
    }

    fn check_drop_reasons(&self) -> Result<()> {
        unique(self.drop_reasons.iter().map(|reason| &reason.name)).context("drop reasons")?;
        for (index, reason) in self.drop_reasons.iter().enumerate() {
            // Dense codes let counters be a plain array; a retired reason keeps its code and says so in `doc`.
            ensure!(
                usize::from(reason.code) == index,
                "drop reason {} must have code {index}: codes are dense",
                reason.name
            );
            ensure!(!reason.hint.is_empty(), "drop reason {} does not say what to do: fill in `hint`", reason.name);
            ensure!(
                !(reason.refused && reason.at == At::Worker),
                "drop reason {} is refused, but only a switch sends refusals",
                reason.name
            );
        }
        Ok(())
    }
}

impl Header {
    /// Put before the names of generated constants: nothing for our own format.
    pub fn prefix(&self) -> String {
        if self.name == "fanin" { String::new() } else { format!("{}_", self.name.to_uppercase()) }
    }

    fn check(&self) -> Result<()> {
        let mut next_offset = 0;
        for field in &self.fields {
            ensure!(
                field.offset == next_offset,
                "field {} is at {} but the one before it ends at {next_offset}",
                field.name,
                field.offset
            );
            ensure!(matches!(field.bytes, 1 | 2 | 4), "field {} has {} bytes: use 1, 2 or 4", field.name, field.bytes);
            field.check_parts()?;
            next_offset += field.bytes;
        }
        ensure!(next_offset == self.bytes, "the fields fill {next_offset} bytes, `bytes` says {}", self.bytes);
        unique(self.fields.iter().map(|field| &field.name))
    }
}

impl Field {
    fn check_parts(&self) -> Result<()> {
        let mut bits_left = self.bytes * 8;
        for part in &self.parts {
            ensure!(
                part.shift + part.bits == bits_left,
                "part {} of field {} must end at bit {bits_left}",
                part.name,
                self.name
            );
            bits_left = part.shift;
        }
        ensure!(self.parts.is_empty() || bits_left == 0, "the parts of field {} leave bits unnamed", self.name);
        Ok(())
    }

    /// Rust's name of the field's type.
    pub fn rust_type(&self) -> String {
        format!("{}{}", if self.signed { 'i' } else { 'u' }, self.bytes * 8)
    }
}

fn unique<T: std::hash::Hash + Eq + std::fmt::Debug>(items: impl Iterator<Item = T>) -> Result<()> {
    let mut seen = HashSet::new();
    for item in items {
        ensure!(!seen.contains(&item), "{item:?} is there twice");
        seen.insert(item);
    }
    Ok(())
}

#[cfg(test)]
#[path = "spec/tests.rs"]
mod tests;
