"""docs/reference/nvml.md and generated/nvml_hidden.inc from spec/nvml_answers.toml: what NVML shows on a share."""

import tomllib

from model import ROOT
from overlay import SpecError

SPEC = ROOT / "spec" / "nvml_answers.toml"
ANSWERS = {"share": "shows the share", "hidden": "hidden", "device": "passed through",
           "control": "passed through"}
KEYS = {"answer", "what", "functions"}


def load_answers(nvml, text=None):
    """title -> entries, in the order of the file; refuses what contradicts itself or the API."""
    sections = tomllib.loads(SPEC.read_text() if text is None else text)["sections"]
    bases = {f.base for f in nvml.functions}
    answers = {}
    for entry in (entry for entries in sections.values() for entry in entries):
        names = ", ".join(entry.get("functions", ["?"])[:2])
        if set(entry) != KEYS:
            raise SpecError(f"nvml answers: {names}: {sorted(set(entry) ^ KEYS)[0]}")
        if entry["answer"] not in ANSWERS:
            raise SpecError(f"nvml answers: {names}: {entry['answer']} is not an answer")
        for name in entry["functions"]:
            if name not in bases:
                raise SpecError(f"nvml answers: {name} is not a base function")
            if name in answers:
                raise SpecError(f"nvml answers: {name} has two answers")
            answers[name] = entry["answer"]
    for function in nvml.functions:
        if function.base not in answers:
            raise SpecError(f"nvml answers: {function.base} has no answer")
        if (answers[function.base] == "share") != function.overridden:
            raise SpecError(f"nvml answers: {function.symbol} is "
                            f"{'' if function.overridden else 'not '}overridden, and its answer is "
                            f"{answers[function.base]}")
        if answers[function.base] == "hidden" and function.returns != "nvmlReturn_t":
            raise SpecError(f"nvml answers: {function.symbol} cannot say that it is not supported")
    return sections


def hidden(nvml):
    names = {name for entries in load_answers(nvml).values() for entry in entries
             if entry["answer"] == "hidden" for name in entry["functions"]}
    return [f"PRORATA_NVML_HIDDEN({f.symbol})" for f in nvml.functions if f.base in names]


def generate(nvml, text=None):
    sections = load_answers(nvml, text)
    entries = [entry for section in sections.values() for entry in section]
    count = {kind: sum(len(e["functions"]) for e in entries if e["answer"] == kind)
             for kind in ANSWERS}
    lines = [
        "# What NVML shows on a share", "",
        "Every function of NVML has an answer here; all versions of a function (`_v2`) have the same.",
        f"{count['share']} **show the share**; {count['hidden']} are **hidden**: they answer",
        "`NVML_ERROR_NOT_SUPPORTED`, since they concern others and mean nothing for a share;",
        f"{count['device'] + count['control']} are **passed through**: they are about the device itself "
        "or the library, or they set", "something, which is left to the driver's permissions.", "",
        "Memory, process lists and `cuMemGetInfo` are read from the same words, the members' own, so",
        "they agree at any moment ([why](../design/decisions/one-view.md)). The total is always the limit.",
        "A member's memory that cannot be read (no agent, and it joined since) counts by its grant.",
        "Outside a share nothing differs from the driver's own library.",
    ]
    for title, section in sections.items():
        lines += ["", f"## {title}", "", "| functions | answer | what, and why |", "|---|---|---|"]
        for entry in section:
            names = " ".join(f"`{name}`" for name in entry["functions"])
            what = " ".join(entry["what"].split())
            lines.append(f"| {names} | {ANSWERS[entry['answer']]} | {what} |")
    return lines
