#!/usr/bin/env python3
"""Runs ctest and ends with what the failed tests said, their names, and one line: how many passed,
failed, and were skipped by name. Nothing is run again: a test that fails now and then is a bug.

--label all runs everything; --label asan-ubsan or tsan runs the unit tests and those multi-process
tests whose labels say that they can run under that sanitizer.
"""
import argparse
import os
import pathlib
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import test_report

KEPT_OF_FAILED = 4 << 20  # bytes of one test's output; the end is kept


def select(label):
    if label == "all":
        return []
    return ["-L", f"^(unit|{label})$", "-LE", f"^no-{label}$"]


def counts(junit):
    passed, failed, skipped = 0, [], []
    for case in ElementTree.parse(junit).getroot().iter("testcase"):
        if case.get("status") == "run":
            passed += 1
        elif case.get("status") in ("disabled", "notrun"):
            text = case.findtext("system-out") or ""
            reason = [line for line in text.splitlines() if "SKIPPED" in line or "kipped" in line]
            skipped.append((case.get("name"), reason[0].strip() if reason else "no reason given"))
        else:
            took = f"(it took {float(case.get('time', 0)):.0f} s)"  # a timeout is known by it
            failed.append((case.get("name"), f"{case.findtext('system-out') or ''}\n{took}"))
    return passed, failed, skipped


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
         "--test-output-size-failed", str(KEPT_OF_FAILED), "--test-output-truncation", "head",
         "-j", jobs, "--output-junit", str(junit), *select(args.label)], check=False).returncode
    if not junit.exists():
        print(f"run_tests: ctest wrote no report (exit status {code})", file=sys.stderr)
        return code or 1
    passed, failed, skipped = counts(junit)
    for name, reason in skipped:
        print(f"SKIPPED {name}: {reason}")
    test_report.finish(args.label, passed, failed, len(skipped))
    return code or (1 if failed or not passed else 0)


if __name__ == "__main__":
    sys.exit(main())
