"""The hand-written half of the spec: roles, argument directions, overrides, private names."""

import re

ROLES = ("alloc", "free", "launch", "sync", "context", "module", "memory-query", "ipc", "graph",
         "capture", "plain")
DIRECTIONS = ("in", "out", "inout")


class SpecError(Exception):
    """The spec contradicts itself; the message names the key."""


def base_name(symbol):
    """The function without version and stream suffix: cuMemAllocAsync for cuMemAllocAsync_ptsz."""
    return re.sub(r"(_v\d+)?(_ptsz|_ptds)?$", "", symbol)


def _flatten(value):
    """A list of names, or a table of such lists that only groups them for the reader."""
    if isinstance(value, dict):
        return [name for group in value.values() for name in _flatten(group)]
    return value


class Overlay:
    """Answers what the generators ask about a function; `versioned` names the struct types whose
    first member is a version that the caller sets."""

    def __init__(self, table, directions, versioned, library):
        self.library = library
        self.default_role = table.get("default_role")
        self.overrides = set(_flatten(table["overrides"]))
        self.private_functions = [{**f, "header": ""} for f in table.get("private", [])]
        self.roles = {}
        for role, names in table.get("roles", {}).items():
            if role not in ROLES:
                raise SpecError(f"{library}: roles.{role} is not a role")
            for name in _flatten(names):
                if name in self.roles:
                    raise SpecError(f"{library}: {name} has two roles, "
                                    f"{self.roles[name]} and {role}")
                self.roles[name] = role
        self.rule = directions["rule"]
        self.versioned = versioned
        self.exceptions = directions.get("exceptions", {})

    def role(self, symbol):
        role = self.roles.get(base_name(symbol), self.default_role)
        if role is None:
            raise SpecError(f"{self.library}: {base_name(symbol)} has no role")
        return role

    def direction(self, symbol, param):
        for key in (symbol, base_name(symbol)):
            if found := self.exceptions.get(key, {}).get(param["name"]):
                return found
        direction = self.rule[self._type_class(param["type"])]
        if direction not in DIRECTIONS:
            raise SpecError(f"{self.library}: {symbol}: the direction of {param['type']} "
                            f"{param['name']} must be stated")
        return direction

    def _type_class(self, text):
        if "(*" in text or not text.endswith(("*", "]")):
            return "value"
        if "versioned" in self.rule and text.removesuffix(" *") in self.versioned:
            return "versioned"
        if text == "void *":
            return "void_pointer"
        return "pointer_to_const" if re.fullmatch(r"const [^*]*\*", text) else "pointer"

    def check(self, functions):
        """Refuses every key that names nothing, so that a typo cannot hide."""
        bases = {}
        for symbol, entry in functions.items():
            for key in (symbol, base_name(symbol)):
                bases.setdefault(key, set()).update(p["name"] for p in entry["params"])
        for symbol in self.overrides - functions.keys():
            raise SpecError(f"{self.library}: overrides: {symbol} is not a symbol")
        for name in self.roles.keys() - {base_name(s) for s in functions}:
            raise SpecError(f"{self.library}: roles: {name} is not a base function")
        for key, params in self.exceptions.items():
            if key not in bases:
                raise SpecError(f"{self.library}: directions: {key} is not a function")
            for name, direction in params.items():
                if name not in bases[key]:
                    raise SpecError(f"{self.library}: directions: {key} has no parameter {name}")
                if direction not in DIRECTIONS:
                    raise SpecError(f"{self.library}: directions: {key}.{name} = {direction}")
