"""Reads C headers into the plain data that spec/*.json holds. Needs pycparser.

Only the importer uses this file; `generate.py` never does. Type text is rendered anew from the
syntax tree, so nothing of a header's wording or layout survives, only names, types and numbers.
"""

import re
from pathlib import Path

from pycparser import c_ast, c_generator, c_parser

_render = c_generator.CGenerator()


class Evaluator:
    """Integer constant expressions, with enumerators seen so far as names."""

    def __init__(self):
        self.known = {}

    def __call__(self, node):
        match node:
            case c_ast.Constant():
                text = node.value.rstrip("uUlL")
                if node.type == "char":
                    return ord(node.value[1:-1])
                return int(text, 8) if re.fullmatch(r"0[0-7]+", text) else int(text, 0)
            case c_ast.ID():
                return self.known[node.name]
            case c_ast.UnaryOp(op="-"):
                return -self(node.expr)
            case c_ast.UnaryOp(op="~"):
                return ~self(node.expr)
            case c_ast.UnaryOp(op="sizeof"):
                return {"int": 4, "unsigned int": 4, "char": 1, "void *": 8}[
                    " ".join(_render.visit(node.expr).split())]
            case c_ast.Cast():
                return self(node.expr)
            case c_ast.BinaryOp():
                a, b = self(node.left), self(node.right)
                return {"+": a + b, "-": a - b, "*": a * b, "|": a | b, "&": a & b,
                        "<<": a << b if b >= 0 else 0, ">>": a >> b if b >= 0 else 0}[node.op]
        raise ValueError(f"not a constant expression: {_render.visit(node)} at {node.coord}")


def type_text(node):
    """The type of a declaration with its name taken out: `void (*)(int)`, `char [64]`."""
    node = c_ast.Typename(None, getattr(node, "quals", None) or [], None, _without_name(node))
    return " ".join(_render.visit(node).replace("\n", " ").split())


def _without_name(node):
    match node:
        case c_ast.TypeDecl():
            return c_ast.TypeDecl(None, node.quals, None, _tag_only(node.type))
        case c_ast.PtrDecl():
            return c_ast.PtrDecl(node.quals, _without_name(node.type))
        case c_ast.ArrayDecl():
            return c_ast.ArrayDecl(_without_name(node.type), node.dim, node.dim_quals)
        case c_ast.FuncDecl():
            return c_ast.FuncDecl(node.args, _without_name(node.type))
    raise ValueError(f"unexpected declarator {node}")


def _tag_only(node):
    if isinstance(node, (c_ast.Struct, c_ast.Union)):
        return type(node)(node.name, None)
    if isinstance(node, c_ast.Enum):
        return c_ast.Enum(node.name, None)
    return node


class HeaderReader:
    """Collects types and functions in order of declaration; `origin(file)` says which to keep."""

    def __init__(self, origin):
        self.origin = origin
        self.types = []
        self.functions = {}
        self.function_types = {}  # typedef name -> (return type, parameter types)
        self.evaluate = Evaluator()
        self._tags = set()

    def read(self, text):
        for node in c_parser.CParser().parse(text).ext:
            header = self.origin(Path(node.coord.file).name)
            if header is None or isinstance(node, (c_ast.FuncDef, c_ast.StaticAssert)):
                continue
            match node:
                case c_ast.Typedef():
                    self._typedef(node, header)
                case c_ast.Decl(type=c_ast.FuncDecl()):
                    self._function(node, header)
                case c_ast.Decl():
                    self._definition(node.type, header)

    def _typedef(self, node, header):
        inner = node.type
        while not isinstance(inner, c_ast.TypeDecl):
            inner = inner.type
        record = inner.type
        if isinstance(record, (c_ast.Struct, c_ast.Union, c_ast.Enum)):
            if record.name is None:
                self._definition(record, header, typedef=node.name)
                return
            self._definition(record, header)
        self.types.append({"kind": "typedef", "name": node.name, "type": type_text(node.type),
                           "header": header})
        function = node.type.type if isinstance(node.type, c_ast.PtrDecl) else None
        if isinstance(function, c_ast.FuncDecl):
            self.function_types[node.name] = self._signature(function)

    def _definition(self, node, header, typedef=None):
        if node.name and not isinstance(node, c_ast.Enum) and node.decls:
            if node.name in self._tags:  # `typedef struct tag {...} A, B;` comes as two typedefs
                return
            self._tags.add(node.name)
        name = {"typedef": typedef} if typedef else {"tag": node.name}
        if isinstance(node, c_ast.Enum) and node.values:
            values = self._enumerators(node)
            self.types.append({"kind": "enum", **name, "values": values, "header": header})
        elif isinstance(node, (c_ast.Struct, c_ast.Union)) and node.decls:
            self.types.append({**self._record(node), **name, "header": header})

    def _enumerators(self, node):
        values, following = [], 0
        for item in node.values.enumerators:
            value = self.evaluate(item.value) if item.value is not None else following
            self.evaluate.known[item.name] = value
            values.append([item.name, value])
            following = value + 1
        return values

    def _record(self, node):
        kind = "struct" if isinstance(node, c_ast.Struct) else "union"
        return {"kind": kind, "fields": [self._field(d) for d in node.decls]}

    def _field(self, decl):
        field = {"name": decl.name or ""}
        inner, suffix = decl.type, ""
        while isinstance(inner, c_ast.ArrayDecl):
            suffix += f"[{_render.visit(inner.dim)}]"
            inner = inner.type
        record = inner.type if isinstance(inner, c_ast.TypeDecl) else inner
        if isinstance(record, (c_ast.Struct, c_ast.Union)) and record.decls:
            field["record"] = self._record(record)
            if record.name:
                field["record"]["tag"] = record.name
            if suffix:
                field["dims"] = suffix
        else:
            field["type"] = type_text(decl.type)
        if decl.bitsize is not None:
            field["bits"] = self.evaluate(decl.bitsize)
        if decl.align:
            field["align"] = self.evaluate(decl.align[0].alignment)
        return field

    def _signature(self, function):
        params = []
        for i, param in enumerate(function.args.params if function.args else []):
            text = type_text(param.type)
            if text != "void":
                params.append({"name": getattr(param, "name", None) or f"arg{i}", "type": text})
        return type_text(function.type), params

    def _function(self, node, header):
        returns, params = self._signature(node.type)
        earlier = self.functions.get(node.name)
        types = [p["type"] for p in params]
        if earlier and [p["type"] for p in earlier["params"]] != types:
            raise ValueError(f"{node.name} is declared twice, differently")
        if not earlier:
            self.functions[node.name] = {"name": node.name, "header": header,
                                         "returns": returns, "params": params}


def read_macros(text, origin, skip):
    """`#define`s that are still in force at the end, from `gcc -E -dD` output."""
    macros, header = {}, None
    for line in text.splitlines():
        if marker := re.match(r'# \d+ "([^"]*)"', line):
            header = origin(Path(marker[1]).name)
        elif gone := re.match(r"#undef (\w+)", line):
            macros.pop(gone[1], None)
        elif header and (found := re.match(r"#define (\w+)(\([^)]*\))? ?(.*)", line)):
            name, args, value = found.groups()
            if args is None and value.strip() and not skip(name, value.strip()):
                macros[name] = {"name": name, "value": " ".join(value.split()), "header": header}
    return list(macros.values())
