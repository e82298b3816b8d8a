#!/usr/bin/env python3
"""Runs ctest and ends with one line: how many passed, failed, and were skipped by name.

--label all runs everything; --label asan-ubsan or tsan runs the unit tests and those multi-process
tests whose labels say that they can run under that sanitizer.
"""
import argparse
import os
import pathlib
import subprocess
import sys
import xml.etree.ElementTree as ElementTree


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
            failed.append(case.get("name"))
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
         "-j", jobs, "--output-junit", str(junit), *select(args.label)], check=False).returncode
    if not junit.exists():
        print(f"run_tests: ctest wrote no report (exit status {code})", file=sys.stderr)
        return code or 1
    passed, failed, skipped = counts(junit)
    for name, reason in skipped:
        print(f"SKIPPED {name}: {reason}")
    for name in failed:
        print(f"FAILED {name}")
    total = pathlib.Path(os.environ["PRORATA_TEST_TOTAL"]) if "PRORATA_TEST_TOTAL" in os.environ else None
    if total:
        with total.open("a", encoding="ascii") as out:
            out.write(f"{passed} {len(failed)} {len(skipped)}\n")
    print(f"{passed} passed, {len(failed)} failed, {len(skipped)} skipped")
    return code or (1 if failed or not passed else 0)


if __name__ == "__main__":
    sys.exit(main())
