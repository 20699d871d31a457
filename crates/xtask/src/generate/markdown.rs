//! The reference page of the wire formats.

use super::NOTICE;
use super::rust::snake_case;
use crate::spec::{At, DropReason, Enumeration, Field, Header, Spec};

/// `docs/reference/fields.md`.
pub fn page(spec: &Spec) -> String {
    let mut text = format!("<!-- {NOTICE} -->\n\n# Wire formats: fields, codes and limits\n");
    text.extend(spec.headers.iter().map(header));
    text.extend(spec.enumerations.iter().map(enumeration));
    text += "\n## Limits, defaults and sentinels\n\n| name | type | value | meaning |\n| --- | --- | --- | --- |\n";
    for constant in &spec.constants {
        text += &format!(
            "| `{}` | {} | {} | {} |\n",
            constant.name,
            constant.kind.name(),
            constant.literal(),
            constant.doc
        );
    }
    text + &drop_reasons(&spec.drop_reasons)
}

fn header(header: &Header) -> String {
    let rows: String = header.fields.iter().map(field).collect();
    format!(
        "\n## {}\n\n{}\n{} bytes, big-endian.\n\n| offset | bytes | type | field | meaning |\n| --- | --- | --- | --- | --- |\n{rows}",
        header.title,
        header.doc.trim_start().to_owned() + "\n",
        header.bytes
    )
}

fn field(field: &Field) -> String {
    let Field { name, offset, bytes, doc, .. } = field;
    let mut rows = format!("| {offset} | {bytes} | {} | `{name}` | {doc} |\n", field.rust_type());
    for part in &field.parts {
        let bits = match part.bits {
            1 => format!("bit {}", part.shift),
            bits => format!("bits {}..{}", part.shift + bits - 1, part.shift),
        };
        rows += &format!("| | | {bits} | `{}` | {} |\n", part.name, part.doc);
    }
    rows
}

fn enumeration(enumeration: &Enumeration) -> String {
    let rows: String = enumeration
        .values
        .iter()
        .map(|value| format!("| {} | {} | {} |\n", value.code, value.name, value.doc))
        .collect();
    format!(
        "\n## {}\n\n{}\n\n| code | name | meaning |\n| --- | --- | --- |\n{rows}",
        enumeration.name, enumeration.doc
    )
}

fn drop_reasons(reasons: &[DropReason]) -> String {
    let mut text = String::from(
        "\n## Drop reasons\n\nWhy a switch or a worker did not use a packet. `refused`: the switch answers with a Refusal whose \
         `detail` is the code; the others are only counted.\n\n\
         | code | name | at | refused | what happened | what to do |\n| --- | --- | --- | --- | --- | --- |\n",
    );
    for DropReason { name, code, at, refused, doc, hint } in reasons {
        let at = match at {
            At::Switch => "switch",
            At::Worker => "worker",
            At::Both => "both",
        };
        let refused = if *refused { "yes" } else { "" };
        text += &format!("| {code} | `{}` | {at} | {refused} | {doc} | {hint} |\n", snake_case(name));
    }
    text
}
