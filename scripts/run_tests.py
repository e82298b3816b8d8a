#!/usr/bin/env python3
"""Runs ctest and ends with what was expected to fail (tests/unmet.py), what the failed tests said,
their names, and one line: how many passed, failed, and were skipped by name. Nothing is run again:
a test that fails now and then is a bug.

--label all runs everything; --label asan-ubsan or tsan runs the unit tests and those multi-process
tests whose labels say that they can run under that sanitizer.
"""
import argparse
import dataclasses
import os
import pathlib
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import test_report

KEPT_OF_FAILED = 4 << 20  # bytes of one test's output; the end is kept
KEPT_OF_PASSED = 16 << 10
MOST_NOISY = 0.03  # of all tests; a run that skipped more for noise says so
UNMET = "EXPECTED FAILURE"  # how a line begins that tells of one


def select(label):
    if label == "all":
        return []
    return ["-L", f"^(unit|{label})$", "-LE", f"^no-{label}$"]


@dataclasses.dataclass
class Results:
    passed: int = 0  # those that were expected to fail, and did, among them
    failed: list = dataclasses.field(default_factory=list)
    skipped: list = dataclasses.field(default_factory=list)
    unmet: list = dataclasses.field(default_factory=list)


def counts(junit):
    found = Results()
    for case in ElementTree.parse(junit).getroot().iter("testcase"):
        text = case.findtext("system-out") or ""
        if case.get("status") == "run":
            found.passed += 1
            found.unmet += [(case.get("name"), line[line.index(UNMET):])
                            for line in text.splitlines() if UNMET in line]
        elif case.get("status") in ("disabled", "notrun"):
            reason = [line for line in text.splitlines() if "SKIPPED" in line or "kipped" in line]
            found.skipped.append((case.get("name"),
                                  reason[0].strip() if reason else "no reason given"))
        else:
            took = f"(it took {float(case.get('time', 0)):.0f} s)"  # a timeout is known by it
            found.failed.append((case.get("name"), f"{text}\n{took}"))
    return found


def noise_warning(found):
    """A line where too much was skipped because the machine was noisy; else nothing."""
    noisy = sum("noisy" in reason for _, reason in found.skipped)
    total = found.passed + len(found.failed) + len(found.skipped)
    if noisy <= MOST_NOISY * total:
        return ""
    return (f"NOT JUDGED: {noisy} of {total} tests were skipped because the machine was noisy; "
            "run them again on a quieter one")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True)
    parser.add_argument("--label", default="all")
    args = parser.parse_args()
    junit = pathlib.Path(args.build).resolve() / f"tests-{args.label}.xml"
    junit.unlink(missing_ok=True)
    jobs = os.environ.get("PRORATA_TEST_JOBS", str(os.cpu_count() or 1))
    code = subprocess.run(
        ["ctest", "--test-dir", args.build, "--output-on-failure", "--no-tests=error",
         "--test-output-size-failed", str(KEPT_OF_FAILED), "--test-output-size-passed",
         str(KEPT_OF_PASSED), "--test-output-truncation", "head",
         "-j", jobs, "--output-junit", str(junit), *select(args.label)], check=False).returncode
    if not junit.exists():
        print(f"run_tests: ctest wrote no report (exit status {code})", file=sys.stderr)
        return code or 1
    found = counts(junit)
    for name, reason in found.skipped:
        print(f"SKIPPED {name}: {reason}")
    for name, line in found.unmet:
        print(f"{line} ({name})")
    if warning := noise_warning(found):
        print(warning)
    test_report.finish(args.label, found.passed, found.failed, len(found.skipped),
                       len(found.unmet))
    return code or (1 if found.failed or not found.passed else 0)


if __name__ == "__main__":
    sys.exit(main())
