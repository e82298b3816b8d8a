"""docs/reference/memory.md from spec/cuda_memory.toml: what each function does to a share's memory."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from model import ROOT
from overlay import SpecError

SPEC = ROOT / "spec" / "cuda_memory.toml"
TESTS = ROOT / "tests" / "limits"
# Every function of these roles has an answer; one of another role may have.
ROLES = ("alloc", "free", "graph", "ipc", "context", "module")
# Those of them that need a pair of tests.
PAIRED = ("charged", "given back", "refused")
ANSWERS = PAIRED + ("free of charge",)
KEYS = {"answer", "functions", "what", "why", "limit", "correct", "untested"}
TEST = re.compile(r"\b[A-Z_]*TEST(?:_[FP])?\(\s*(\w+),\s*(\w+)\s*[,)]")


@dataclass(frozen=True)
class Answer:
    functions: tuple[str, ...]
    answer: str
    what: str      # how much, rounded how; which error
    why: str
    limit: str     # "Suite.Test"; {} stands for the function without its "cu"
    correct: str
    untested: str  # why there is no pair

    def pair(self, function):
        name = function.removeprefix("cu")
        return tuple(test.replace("{}", name) for test in (self.limit, self.correct) if test)


def tests_of(folder):
    """Suite.Test of every GoogleTest test in a folder's sources."""
    return {f"{suite}.{name}" for path in sorted(Path(folder).glob("*.cc"))
            for suite, name in TEST.findall(path.read_text())}


def _answer(entry):
    names = ", ".join(entry.get("functions", ["?"])[:2])
    if unknown := set(entry) - KEYS:
        raise SpecError(f"memory: {names}: {sorted(unknown)[0]} is not a key")
    answer = Answer(tuple(entry["functions"]), entry["answer"], entry.get("what", ""),
                    entry.get("why", ""), entry.get("limit", ""), entry.get("correct", ""),
                    entry.get("untested", ""))
    if answer.answer not in ANSWERS:
        raise SpecError(f"memory: {names}: {answer.answer} is not an answer")
    if not (answer.what or answer.why):
        raise SpecError(f"memory: {names}: says neither what nor why")
    paired = bool(answer.limit) and bool(answer.correct)
    if answer.answer in PAIRED and paired == bool(answer.untested):
        raise SpecError(f"memory: {names}: needs a pair of tests, or a reason why there is none")
    return answer


def check(cuda, sections, tests):
    """Refuses a function without an answer or with two, and names that mean nothing."""
    roles = {f.base: f.role for f in cuda.functions}
    seen = set()
    for answers in sections.values():
        for answer in answers:
            for function in answer.functions:
                if function not in roles:
                    raise SpecError(f"memory: {function} is not a base function")
                if function in seen:
                    raise SpecError(f"memory: {function} has two answers")
                seen.add(function)
    for function, role in sorted(roles.items()):
        if role in ROLES and function not in seen:
            raise SpecError(f"memory: {function} ({role}) has no answer")
    for answers in sections.values():
        for answer in answers:
            for function in answer.functions:
                for test in answer.pair(function):
                    if test not in tests:
                        raise SpecError(f"memory: {function}: tests/limits has no test {test}")


def load_answers(text):
    """title -> answers, in the order of the file."""
    return {title: [_answer(entry) for entry in entries]
            for title, entries in tomllib.loads(text)["sections"].items()}


def _rows(answer):
    """One row for all functions with the same tests."""
    rows = {}
    for function in answer.functions:
        rows.setdefault(answer.pair(function), []).append(function)
    about = ". ".join(part.rstrip(".") for part in (answer.what, answer.why) if part)
    for pair, functions in rows.items():
        tests = "<br>".join(pair) or (f"none: {answer.untested}" if answer.untested else "")
        names = " ".join(f"`{name}`" for name in functions)
        yield f"| {names} | {answer.answer} | {about} | {tests} |"


def generate(cuda, text=None, tests=None):
    sections = load_answers(SPEC.read_text() if text is None else text)
    check(cuda, sections, tests_of(TESTS) if tests is None else tests)
    answers = [answer for entries in sections.values() for answer in entries]
    count = {kind: sum(len(a.functions) for a in answers if a.answer == kind) for kind in ANSWERS}
    lines = [
        "# What each function does to a share's memory", "",
        "Every function of the driver that allocates, frees, builds graphs, crosses processes, makes",
        "contexts or loads code has an answer here, and so have some others that could take device",
        "memory: it is **charged** to the share (how much, rounded how), it **gives back** what was",
        "charged, it is **free of charge** (why), or it is **refused** (which error, why). All versions",
        "of a function (`_v2`, `_ptsz`) have the same answer. For each that charges, gives back or",
        "refuses, a pair of tests of `tests/limits` shows that the limit stops it, nothing being charged",
        "then, and that correct use within the limit is left alone.", "",
        ", ".join(f"{number} {kind}" for kind, number in count.items()) + ".",
    ]
    for title, entries in sections.items():
        lines += ["", f"## {title}", "", "| functions | answer | how much, and why | tests |",
                  "|---|---|---|---|"]
        lines += [row for answer in entries for row in _rows(answer)]
    return lines
