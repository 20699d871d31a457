//! P4, SystemVerilog and BPF C: the same constants and header layouts for the twins on other targets.

use super::NOTICE;
use super::rust::snake_case;
use crate::spec::{Constant, Field, Header, Spec};

/// `p4/include/fanin_fields.p4`.
pub fn p4(spec: &Spec) -> String {
    let mut text = format!("// {NOTICE}\n\n#ifndef FANIN_FIELDS_P4\n#define FANIN_FIELDS_P4\n\n");
    for constant in &spec.constants {
        text += &format!(
            "// {}\nconst {} FANIN_{} = {};\n",
            constant.doc,
            p4_type(constant),
            constant.name,
            constant.literal()
        );
    }
    for (name, code, doc) in codes(spec) {
        text += &format!("// {doc}\nconst bit<8> FANIN_{name} = {code};\n");
    }
    text.extend(spec.headers.iter().map(p4_header));
    text + "\n#endif\n"
}

fn p4_type(constant: &Constant) -> String {
    format!("{}<{}>", if constant.kind.is_signed() { "int" } else { "bit" }, constant.kind.bits())
}

fn p4_header(header: &Header) -> String {
    let row = |kind: &str, bits: u32, name: &str| format!("    {kind}<{bits}> {name};\n");
    let fields = |field: &Field| -> String {
        if field.parts.is_empty() {
            return row(if field.signed { "int" } else { "bit" }, field.bytes * 8, &field.name);
        }
        field.parts.iter().map(|part| row("bit", part.bits, &part.name)).collect()
    };
    let rows: String = header.fields.iter().map(fields).collect();
    format!("\n// {}, {} bytes.\nheader {}_h {{\n{rows}}}\n", header.title, header.bytes, header.name)
}

/// `rtl/include/fanin_fields.svh`.
pub fn system_verilog(spec: &Spec) -> String {
    let mut text =
        format!("// {NOTICE}\n\n`ifndef FANIN_FIELDS_SVH\n`define FANIN_FIELDS_SVH\n\npackage fanin_fields;\n\n");
    for constant in &spec.constants {
        let sign = if constant.kind.is_signed() { "signed " } else { "" };
        let width = constant.kind.bits() - 1;
        text += &format!(
            "// {}\nlocalparam logic {sign}[{width}:0] {} = {};\n",
            constant.doc,
            constant.name,
            sv_literal(constant)
        );
    }
    for (name, code, doc) in codes(spec) {
        text += &format!("// {doc}\nlocalparam logic [7:0] {name} = 8'd{code};\n");
    }
    text.extend(spec.headers.iter().map(sv_struct));
    text + "\nendpackage\n\n`endif\n"
}

fn sv_literal(constant: &Constant) -> String {
    let bits = constant.kind.bits();
    let (minus, magnitude) = (if constant.value < 0 { "-" } else { "" }, constant.value.unsigned_abs());
    let sign = if constant.kind.is_signed() { "s" } else { "" };
    if constant.hex {
        format!("{minus}{bits}'{sign}h{magnitude:X}")
    } else {
        format!("{minus}{bits}'{sign}d{magnitude}")
    }
}

fn sv_struct(header: &Header) -> String {
    let row = |sign: &str, bits: u32, name: &str| format!("    logic {sign}[{}:0] {name};\n", bits - 1);
    let fields = |field: &Field| -> String {
        if field.parts.is_empty() {
            return row(if field.signed { "signed " } else { "" }, field.bytes * 8, &field.name);
        }
        field.parts.iter().map(|part| row("", part.bits, &part.name)).collect()
    };
    let rows: String = header.fields.iter().map(fields).collect();
    // Packed, first field highest: the order in which the bytes arrive.
    format!(
        "\n// {}.\nlocalparam int {}_HEADER_BYTES = {};\ntypedef struct packed {{\n{rows}}} {}_header_t;\n",
        header.title,
        header.name.to_uppercase(),
        header.bytes,
        header.name
    )
}

/// `xdp/include/fanin_generated.h`.
pub fn bpf_c(spec: &Spec) -> String {
    let mut text = format!("/* {NOTICE} */\n#ifndef FANIN_GENERATED_H\n#define FANIN_GENERATED_H\n\n");
    for constant in &spec.constants {
        text += &format!("/* {} */\n#define FANIN_{} {}\n", constant.doc, constant.name, constant.literal());
    }
    for (name, code, doc) in codes(spec) {
        text += &format!("/* {doc} */\n#define FANIN_{name} {code}\n");
    }
    let refused = spec.drop_reasons.iter().filter(|reason| reason.refused);
    let mask: u64 = refused.map(|reason| 1 << reason.code).sum();
    text += "/* Drop reasons, and a bit for each that is answered by a Refusal. */\n";
    text += &format!("#define FANIN_DROP_COUNT {}\n#define FANIN_DROP_REFUSED {mask:#x}\n", spec.drop_reasons.len());
    text.extend(spec.headers.iter().map(c_header));
    text + "\n#endif\n"
}

/// Fields as they lie in the packet, in network byte order; a field of several parts gets a shift and a mask per part.
fn c_header(header: &Header) -> String {
    let name = header.name.to_uppercase();
    let mut rows = String::new();
    let mut parts = String::new();
    for field in &header.fields {
        rows += &format!("    __u{} {};\n", field.bytes * 8, field.name);
        for part in &field.parts {
            let part_name = format!("{name}_{}", part.name.to_uppercase());
            let mask = (1u64 << part.bits) - 1;
            parts += &format!("#define {part_name}_SHIFT {}\n#define {part_name}_MASK {mask:#x}\n", part.shift);
        }
    }
    // Told that fields may lie anywhere, the compiler would read them byte by byte.
    let is_natural = header.fields.iter().all(|field| field.offset.is_multiple_of(field.bytes));
    let layout = if is_natural { "" } else { " __attribute__((packed))" };
    format!(
        "\n/* {}. */\n#define {name}_HEADER_BYTES {}\nstruct {}_header {{\n{rows}}}{layout};\n{parts}",
        header.title, header.bytes, header.name
    )
}

/// Members of the enumerations and the drop reasons as `NAME`, code and meaning.
fn codes(spec: &Spec) -> Vec<(String, u8, &str)> {
    let members = spec.enumerations.iter().flat_map(|enumeration| {
        let prefix = snake_case(&enumeration.name).to_uppercase();
        enumeration.values.iter().map(move |value| {
            (format!("{prefix}_{}", snake_case(&value.name).to_uppercase()), value.code, value.doc.as_str())
        })
    });
    let reasons = spec
        .drop_reasons
        .iter()
        .map(|reason| (format!("DROP_{}", snake_case(&reason.name).to_uppercase()), reason.code, reason.doc.as_str()));
    members.chain(reasons).collect()
}
