"""generated/{cuda,nvml}_abi.h: the library's C types, constants and prototypes."""

from model import Enum, Record, Typedef, declare


def _record_lines(record, indent):
    pad = " " * indent
    lines = []
    for f in record.fields:
        align = f"PRORATA_ABI_ALIGN({f.align}) " if f.align else ""
        bits = f" : {f.bits}" if f.bits is not None else ""
        if f.record is None:
            lines.append(f"{pad}{align}{declare(f.type, f.name)}{bits};")
            continue
        tag = f" {f.record.tag}" if f.record.tag else ""
        lines.append(f"{pad}{align}{f.record.kind}{tag} {{")
        lines += _record_lines(f.record, indent + 2)
        lines.append(f"{pad}}}{' ' if f.name else ''}{f.name}{f.dims};")
    return lines


def _enum_lines(enum):
    for name, value in enum.values:
        yield f"  {name} = {value if -2**31 <= value < 2**31 else hex(value)},"


def type_lines(entry):
    match entry:
        case Typedef(name, text):
            return [f"typedef {declare(text, name)};"]
        case Enum():
            kind, body = "enum", list(_enum_lines(entry))
        case Record():
            kind, body = entry.kind, _record_lines(entry, 2)
    if entry.typedef:
        return [f"typedef {kind} {{", *body, f"}} {entry.typedef};"]
    return [f"{kind} {entry.tag} {{".replace("  ", " "), *body, "};"]


def prototype(function):
    params = ", ".join(declare(p.type, p.name) for p in function.params) or "void"
    return f"{function.returns} {function.symbol}({params});"


def generate(library):
    out = ["#pragma once", "", "#include <stddef.h>", "#include <stdint.h>", "",
           "#ifdef __cplusplus", "#define PRORATA_ABI_ALIGN(n) alignas(n)", 'extern "C" {',
           "#else", "#define PRORATA_ABI_ALIGN(n) _Alignas(n)", "#endif", "",
           "#pragma GCC visibility push(default)", ""]
    for entry in library.types:
        out += [*type_lines(entry), ""]
    out += [f"#define {name} {value}" for name, value in library.macros]
    out += [""]
    out += [prototype(f) for f in library.functions]
    out += ["", "#pragma GCC visibility pop", "#undef PRORATA_ABI_ALIGN", "#ifdef __cplusplus",
            '}  // extern "C"', "#endif"]
    return out
