#!/usr/bin/env python3
"""The conformance suite as Python sees it: its rules, what breaks them, how it is run.

conformance.py --build BUILD            writes docs/reference/conformance.md
conformance.py --build BUILD --check    exit 1 if it is not what the suite and mutations.toml say
"""
import argparse
import collections
import contextlib
import json
import math
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "reference" / "conformance.md"
MUTATIONS = ROOT / "tests" / "conformance" / "mutations.toml"
RULES_HEADER = ROOT / "sim" / "core" / "model" / "rules.h"
SILENCE_S = 300  # of a test that says nothing for so long: it hangs
BROKEN_PATIENCE_S = 2  # a broken driver's streams are given up sooner than a right one's

LINE = re.compile(r"\[( RUN      |       OK |  FAILED  |  SKIPPED )\] ([\w.]+)(?: \(|$)")


def program(build):
    return pathlib.Path(build) / "tests" / "conformance_suite"


def _ask(build, option):
    return subprocess.run([program(build), option], capture_output=True, text=True, check=True,
                          timeout=60).stdout


def rules(build):
    """[{test, rule, source}], as the program lists them."""
    return json.loads(_ask(build, "--list-rules"))


def tests(build):
    """Every test that GoogleTest knows in the program."""
    fixture, found = "", []
    for line in _ask(build, "--gtest_list_tests").splitlines():
        word = line.split("#")[0].rstrip()
        if word.startswith("  "):
            found.append(fixture + word.strip())
        elif word.endswith("."):
            fixture = word
    return found


def breakable_rules():
    """The names in rules.h."""
    return re.findall(r'\bX\(k\w+,[\s\\]*"([^"]+)"\)', RULES_HEADER.read_text(encoding="utf-8"))


def mutations():
    """{part: {rule: {without, tests}}}."""
    with open(MUTATIONS, "rb") as file:
        return tomllib.load(file)


def all_mutations():
    """{rule: {without, tests}} of all parts."""
    return {rule: entry for part in mutations().values() for rule, entry in part.items()}


# --- Running --------------------------------------------------------------------------------------

def _watched(command, environment, limit_s, end):
    """Runs a command; kills it when it has said nothing for so long since it began a test (for SILENCE_S before: on a busy
    machine a process takes seconds to begin), or at `end`: (output, how it ended)."""
    process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment,
                               start_new_session=True)
    chunks, ending = [], ""
    with process.stdout as pipe:
        while True:
            left_s = end - time.monotonic()
            silent_s = limit_s if b"[ RUN " in b"".join(chunks) else max(limit_s, SILENCE_S)
            if not select.select([pipe], [], [], max(0, min(silent_s, left_s)))[0]:
                ending = "hung" if silent_s < left_s else "did not run"
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # its children hold the pipe open, too
            chunk = os.read(pipe.fileno(), 65536)
            if not chunk:
                break
            chunks.append(chunk)
    if process.wait() not in (0, 1) and not ending:
        ending = "crashed"
    return b"".join(chunks).decode(errors="replace"), ending


def _verdicts(output, ending):
    """{test: (verdict, its lines)}; a test that was begun and not ended gets `ending`."""
    found, lines = {}, collections.defaultdict(list)
    current = None
    for line in output.splitlines():
        match = LINE.match(line)
        # The list of failures at the end names tests again.
        if match and match[1].strip() == "RUN":
            current = match[2]
            found[current] = ending or "crashed"
        elif match and match[2] == current:
            found[current], current = match[1].strip(), None
        elif current:
            lines[current].append(line)
    return {test: (verdict, lines[test]) for test, verdict in found.items()}


def run(build, names, environment=None, limit_s=SILENCE_S, options=(), seconds=math.inf):
    """Runs the tests named, all in one process, and what a hang or a crash left over in another, as long as
    `seconds` are not over: {test: ("OK" | "FAILED" | "SKIPPED" | "hung" | "crashed" | "did not run", its lines)}."""
    environment = {**os.environ, **(environment or {})}
    found, left = {}, list(names)
    end = time.monotonic() + seconds
    while left and time.monotonic() < end:
        output, ending = _watched([program(build), "--gtest_filter=" + ":".join(left), *options],
                                  environment, limit_s, end)
        more = _verdicts(output, ending)
        if not more:
            tail = output.splitlines()[-5:]
            return found | {test: ("did not run", tail) for test in left}
        found |= more
        left = [test for test in left if test not in found]
    return found | {test: ("did not run", ["the time was over"]) for test in left}


def run_broken(build, names, broken, limit_s=SILENCE_S, options=()):
    """The same on a simulated GPU that breaks rules."""
    with tempfile.TemporaryDirectory(prefix="prorata-conformance-") as folder:
        machine = pathlib.Path(folder) / "machine.toml"
        machine.write_text(f"broken_rules = {json.dumps(list(broken))}\n", encoding="utf-8")
        environment = {"PRORATA_SIM_MACHINE": str(machine)}
        if broken:
            environment["PRORATA_CONFORMANCE_PATIENCE_S"] = str(BROKEN_PATIENCE_S)
        return run(build, names, environment, limit_s, options)


def differences(build, environment, limit_s=SILENCE_S, seconds=math.inf):
    """What scripts/gpu_check.py keeps: which rules hold on the driver under test, and which not."""
    stated = {rule["test"]: rule for rule in rules(build)}
    found = run(build, tests(build), environment, limit_s, seconds=seconds)
    result = {"held": [], "skipped": {}, "did_not_run": [], "differences": [], "errors": []}
    for test, (verdict, lines) in found.items():
        if verdict == "OK":
            result["held"].append(test)
        elif verdict == "SKIPPED":
            result["skipped"][test] = next((line for line in lines if "only for" in line or
                                            "Skipped" not in line), "no reason given")
        elif verdict == "did not run":
            result["did_not_run"].append(test)
        else:
            rule = stated.get(test, {"rule": "", "source": ""})
            result["differences"].append({**rule, "test": test, "verdict": verdict,
                                          "output": lines[-20:]})
            result["errors"].append(f"{verdict}: {test}: {rule['rule']}")
    return result


# --- The document ---------------------------------------------------------------------------------

def document(build):
    stated = rules(build)
    parts = mutations()
    by_fixture = collections.defaultdict(list)
    for rule in stated:
        by_fixture[rule["test"].split(".")[0]].append(rule)
    broken = all_mutations()
    lines = [
        "# Conformance",
        "",
        "<!-- Written by scripts/conformance.py; make it anew when a rule changes. -->",
        "",
        f"{len(stated)} rules of the CUDA driver, each a test of `tests/conformance` and the place "
        "that documents it.",
        "They run on the simulated GPU with `make test`, and on a GPU with `make gpu-check`, which "
        "writes",
        "every rule that does not hold there to `bench/results` ([what an H100 said](../reports/gpu.md)).",
        "",
        f"{len(broken)} of them can be broken on purpose (`broken_rules` in the simulated machine's "
        "file); a test",
        "shows that the tests named then fail.",
        "",
        "## Rules",
        "",
    ]
    for fixture in sorted(by_fixture):
        lines += [f"### {fixture}", "", "| test | rule | documented in |", "|---|---|---|"]
        lines += [f"| {rule['test'].split('.')[1]} | {rule['rule']} | {rule['source']} |"
                  for rule in by_fixture[fixture]]
        lines.append("")
    lines += ["## Rules that can be broken", ""]
    for part in parts:
        lines += [f"### {part}", "", "| broken rule | what a driver without it does | tests that "
                  "notice |", "|---|---|---|"]
        lines += [f"| `{name}` | {entry['without']} | {', '.join(entry['tests'])} |"
                  for name, entry in parts[part].items()]
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    text = document(options.build)
    if not options.check:
        DOCUMENT.write_text(text, encoding="utf-8")
        return 0
    if DOCUMENT.exists() and DOCUMENT.read_text(encoding="utf-8") == text:
        return 0
    print(f"{DOCUMENT.relative_to(ROOT)} is not what the suite says: run scripts/conformance.py",
          file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
