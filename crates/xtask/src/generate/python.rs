//! Python: the constants that tests, tools and the torch backend read.

use super::NOTICE;
use super::rust::snake_case;
use crate::spec::{Constant, DropReason, Enumeration, Header, Spec};

/// `python/fanin/_generated.py`.
pub fn module(spec: &Spec) -> String {
    let mut text = format!(
        "# {NOTICE}\n\"\"\"Fields, codes and limits of fanin's wire formats.\"\"\"\n\n\
         from enum import IntEnum\nfrom typing import NamedTuple\n\n"
    );
    for Constant { name, doc, .. } in &spec.constants {
        let literal = spec_literal(spec, name);
        text += &format!("{name} = {literal}\n\"\"\"{doc}\"\"\"\n");
    }
    text += "\n\nclass Field(NamedTuple):\n    \"\"\"Where a big-endian field lies in its header.\"\"\"\n\n    \
             offset: int\n    bytes: int\n    signed: bool\n";
    text.extend(spec.headers.iter().map(header));
    text.extend(spec.enumerations.iter().map(enumeration));
    text += &drop_reasons(&spec.drop_reasons);
    text
}

fn spec_literal(spec: &Spec, name: &str) -> String {
    spec.constants.iter().filter(|constant| constant.name == name).map(Constant::literal).collect()
}

fn header(header: &Header) -> String {
    let name = header.name.to_uppercase();
    let rows: String = header
        .fields
        .iter()
        .map(|field| {
            let signed = if field.signed { "True" } else { "False" };
            format!("    \"{}\": Field({}, {}, {signed}),\n", field.name, field.offset, field.bytes)
        })
        .collect();
    format!("\n{name}_HEADER_BYTES = {}\n{name}_FIELDS = {{\n{rows}}}\n\"\"\"{}.\"\"\"\n", header.bytes, header.title)
}

fn enumeration(enumeration: &Enumeration) -> String {
    let rows: String = enumeration
        .values
        .iter()
        .map(|value| {
            let name = snake_case(&value.name).to_uppercase();
            format!("    {name} = {}\n    \"\"\"{}\"\"\"\n", value.code, value.doc)
        })
        .collect();
    format!("\n\nclass {}(IntEnum):\n    \"\"\"{}\"\"\"\n\n{rows}", enumeration.name, enumeration.doc)
}

fn drop_reasons(reasons: &[DropReason]) -> String {
    let mut text = String::from(
        "\n\nclass DropReason(IntEnum):\n    \"\"\"Why a switch or a worker did not use a packet.\"\"\"\n\n",
    );
    for reason in reasons {
        let name = snake_case(&reason.name).to_uppercase();
        text += &format!("    {name} = {}\n    \"\"\"{}\"\"\"\n", reason.code, reason.doc);
    }
    text += "\n\nDROP_REASON_HINTS = {\n";
    for reason in reasons {
        let name = snake_case(&reason.name).to_uppercase();
        text += &format!("    DropReason.{name}: {:?},\n", reason.hint);
    }
    text + "}\n\"\"\"What a person can do about each reason.\"\"\"\n"
}
