"""Programs that print every number of an ABI header: sizes, offsets, enumerators, constants."""

import re

from model import Enum, Record, Typedef

PRELUDE = """#include <stddef.h>
#include <stdio.h>
#define SHOW(name, value) printf("%s %lld\\n", name, (long long)(value))
#define SHOW_TEXT(name, value) printf("%s %s\\n", name, value)
"""


def type_name(record):
    return record.typedef or f"{record.kind} {record.tag}"


def member_paths(record, prefix=""):
    """Every member that has an address, nested ones as `a.b`; the flag says what holds it."""
    for field in record.fields:
        path = f"{prefix}{field.name}"
        if field.record is not None:
            if field.name:
                yield path
            dims = "[0]" * field.dims.count("[")
            yield from member_paths(field.record, f"{path}{dims}." if field.name else prefix)
        elif field.name and field.bits is None:
            yield path


def record_lines(record):
    name = type_name(record)
    yield f'SHOW("sizeof {name}", sizeof({name}));'
    yield f'SHOW("alignof {name}", _Alignof({name}));'
    for path in member_paths(record):
        yield f'SHOW("{name}.{path}", offsetof({name}, {path}));'
        yield f'SHOW("sizeof {name}.{path}", sizeof((({name}*)0)->{path}));'


def macro_line(name, value, macros):
    """Shows a macro that is a number, a pointer made of one, or text; a type or a bit range has
    no value."""
    value = macros.get(value, value)
    if '"' in value:
        return f'SHOW_TEXT("{name}", {name});'
    if value.endswith("_t") or re.fullmatch(r"\d+:\d+", value):
        return ""
    return f'SHOW("{name}", {name});'


def probe_lines(library):
    macros = dict(library.macros)
    for entry in library.types:
        match entry:
            case Record():
                yield from record_lines(entry)
            case Enum():
                for name, _ in entry.values:
                    yield f'SHOW("{name}", {name});'
            case Typedef(name, text) if "(" not in text:
                yield f'SHOW("sizeof {name}", sizeof({name}));'
    for name, value in library.macros:
        yield macro_line(name, value, macros)


def program(library, includes):
    """`includes` is the text that brings the header in; the rest is the same for both sides."""
    functions, body = [], list(probe_lines(library))
    for i in range(0, len(body), 500):  # one huge main takes the compiler long
        lines = "\n  ".join(body[i:i + 500])
        functions.append(f"static void part{i}(void) {{\n  {lines}\n}}\n")
    calls = "".join(f"  part{i}();\n" for i in range(0, len(body), 500))
    return f"{includes}{PRELUDE}{''.join(functions)}int main(void) {{\n{calls}  return 0;\n}}\n"

