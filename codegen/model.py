"""The spec as typed Python values: spec/*.json (imported facts) and spec/*_overlay.toml (ours).

Every generator takes a `Library` from here and none reads a spec file itself.
"""

import json
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from overlay import Overlay, base_name

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Param:
    name: str
    type: str
    direction: str  # "in", "out" or "inout"


@dataclass(frozen=True)
class Function:
    symbol: str   # as exported, `cuMemAllocAsync_ptsz`
    base: str     # without version and stream suffix, `cuMemAllocAsync`
    header: str
    returns: str
    params: tuple[Param, ...]
    role: str
    index: int    # position among all symbols, sorted by name
    overridden: bool  # the client library defines it by hand

    @property
    def role_constant(self):
        return "k" + "".join(word.capitalize() for word in self.role.split("-"))


@dataclass(frozen=True)
class Version:
    name: str
    version: int
    flag: int     # 0, or 2 for the per-thread variant, as cuGetProcAddress spells it
    symbol: str


@dataclass(frozen=True)
class Field:
    name: str     # empty for an anonymous member
    type: str     # empty when `record` is set
    record: "Record | None"
    dims: str     # of a record member, `[4]`
    bits: int | None
    align: int | None


@dataclass(frozen=True)
class Record:
    kind: str     # "struct" or "union"
    tag: str
    typedef: str  # name when the record has no tag of its own
    fields: tuple[Field, ...]


@dataclass(frozen=True)
class Enum:
    tag: str
    typedef: str
    values: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Typedef:
    name: str
    type: str


@dataclass(frozen=True)
class Library:
    name: str                  # "cuda" or "nvml"
    api_version: int
    types: tuple[Record | Enum | Typedef, ...]
    macros: tuple[tuple[str, str], ...]
    functions: tuple[Function, ...]
    versions: tuple[Version, ...] = ()
    by_symbol: dict = field(default_factory=dict)


def declare(type_text, name):
    """The C declaration of `name` with a type that spec/ spells without it."""
    if "(*" in type_text:
        return re.sub(r"\(\*(\s*const)?", lambda m: f"{m[0]}{' ' if m[1] else ''}{name}",
                      type_text, count=1)
    if found := re.match(r"(.*?)\s*((?:\[[^\]]*\])+)$", type_text):
        return f"{found[1]} {name}{found[2]}"
    if " (" in type_text:  # a function type, not a pointer to one
        return type_text.replace(" (", f" {name}(", 1)
    return f"{type_text}{'' if type_text.endswith('*') else ' '}{name}"


def _record(entry):
    fields = tuple(Field(f["name"], f.get("type", ""),
                         _record(f["record"]) if "record" in f else None,
                         f.get("dims", ""), f.get("bits"), f.get("align"))
                   for f in entry["fields"])
    return Record(entry["kind"], entry.get("tag", ""), entry.get("typedef", ""), fields)


def _type(entry):
    if entry["kind"] == "typedef":
        return Typedef(entry["name"], entry["type"])
    if entry["kind"] == "enum":
        return Enum(entry.get("tag", ""), entry.get("typedef", ""),
                    tuple((n, v) for n, v in entry["values"]))
    return _record(entry)


def _versioned(types):
    """Names of structs, and of typedefs for them, whose first member is `version`."""
    names = set()
    for entry in types:
        if isinstance(entry, Record) and entry.fields[0].name == "version":
            names.add(entry.typedef or f"{entry.kind} {entry.tag}")
        elif isinstance(entry, Typedef) and entry.type in names:
            names.add(entry.name)
    return names


def load(name, spec_dir=ROOT / "spec"):
    """Reads one library, "cuda" or "nvml", and refuses a spec that contradicts itself."""
    spec = json.loads((spec_dir / f"{name}.json").read_text())
    tables = [tomllib.loads((spec_dir / f"{name}_{part}.toml").read_text())
              for part in ("overlay", "directions")]
    types = tuple(_type(t) for t in spec["types"])
    overlay = Overlay(*tables, _versioned(types), name)
    entries = sorted(spec["functions"] + overlay.private_functions, key=lambda f: f["name"])
    overlay.check({f["name"]: f for f in entries})
    functions = tuple(
        Function(f["name"], base_name(f["name"]), f["header"], f["returns"],
                 tuple(Param(p["name"], p["type"], overlay.direction(f["name"], p))
                       for p in f["params"]),
                 overlay.role(f["name"]), index, f["name"] in overlay.overrides)
        for index, f in enumerate(entries))
    versions = tuple(sorted((Version(*v) for v in spec.get("versions", [])),
                            key=lambda v: (v.name, v.flag, v.version)))
    return Library(name, spec["api_version"], types,
                   tuple((m["name"], m["value"]) for m in spec["macros"]), functions, versions,
                   {f.symbol: f for f in functions})
