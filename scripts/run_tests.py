#!/usr/bin/env python3
"""Runs the tests of a build, those of ctest and those of pytest, and ends with what was expected to
fail (tests/unmet.py), what the failed tests said, their names, and one line: how many passed, failed,
and were skipped by name. Nothing is run again: a test that fails now and then is a bug.

--label all runs everything; unit the tests of one source file each; asan-ubsan or tsan the unit tests
and those multi-process tests that can run under that sanitizer; main-flows a few on a real Kubernetes,
which are skipped by name where it is not built. Options of pytest's after -- run
pytest alone, in the environment that the build needs:

    run_tests.py --build build/tsan --label tsan -- tests/cli/test_run.py -k agent
"""
import argparse
import concurrent.futures
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

import test_report

ROOT = pathlib.Path(__file__).resolve().parent.parent
# One for all builds, beside their folders.
PYTHON = ROOT / "build" / "venv-pytest" / "bin" / "python"
KEPT_OF_FAILED = 4 << 20  # bytes of one test's output; the end is kept
KEPT_OF_PASSED = 16 << 10
NOISY_MAX = 0.03  # of all tests; a run that skipped more for noise says so
UNMET = "EXPECTED FAILURE"  # how a line begins that reports one
# Which tests of pytest's belong to a label; `pairs` and `alone` further divide them.
MARKS = {"all": "", "unit": "unit", "asan-ubsan": "asan_ubsan and not unsanitized",
         "tsan": "tsan and not unsanitized and not no_tsan", "main-flows": "main_flow"}
NO_TESTS = 5  # pytest's exit status
SANITIZERS = ("asan-ubsan", "tsan")  # none of their tests measures real time


def select(label):
    if label == "all":
        return []
    return ["-L", f"^(unit|{label})$", "-LE", f"^no-{label}$"]


@dataclasses.dataclass
class Results:
    passed: int = 0  # those that were expected to fail, and did, among them
    passed_names: list = dataclasses.field(default_factory=list)  # of pytest's
    failed: list = dataclasses.field(default_factory=list)
    skipped: list = dataclasses.field(default_factory=list)
    unmet: list = dataclasses.field(default_factory=list)

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.unmet += other.unmet


def ctest_results(junit):
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


def pytest_name(case):
    """As pytest takes it: tests/cli/test_x.py::Class::test_y."""
    parts = [case.get("file"), case.get("classname", "").rsplit(".", 1)[-1], case.get("name")]
    return "::".join(part for part in parts if part)


def pytest_results(junit):
    found = Results()
    failed = {}
    for case in ElementTree.parse(junit).getroot().iter("testcase"):
        name = pytest_name(case)
        broken = case.findall("failure") + case.findall("error")
        skipped = case.find("skipped")
        if broken:
            said = [one.text or one.get("message", "") for one in broken]
            said += [case.findtext(stream) or "" for stream in ("system-out", "system-err")]
            said.append(f"(it took {float(case.get('time', 0)):.0f} s)")
            failed[name] = "\n".join([failed.get(name, ""), *said]).strip()
        elif skipped is not None and skipped.get("type") == "pytest.xfail":
            found.passed += 1
            found.unmet.append((name, f"{UNMET} {skipped.get('message', '')}"))
        elif skipped is not None:
            found.skipped.append((name, skipped.get("message", "no reason given")))
        else:
            found.passed += 1
            found.passed_names.append(name)
    found.failed = list(failed.items())
    return found


def noise_warning(found):
    """A line where too much was skipped because the machine was noisy; else nothing."""
    noisy = sum("noisy" in reason for _, reason in found.skipped)
    total = found.passed + len(found.failed) + len(found.skipped)
    if noisy <= NOISY_MAX * total:
        return ""
    return (f"NOT JUDGED: {noisy} of {total} tests were skipped because the machine was noisy; "
            "run them again on a quieter one")


def cmake_cache(build):
    return dict(re.findall(r"^(\w+):\w+=(.*)$", (build / "CMakeCache.txt").read_text(encoding="utf-8"), re.M))


def find_symbolizer(build):
    """A sanitizer's report names functions if llvm-symbolizer is in PATH: it is beside the compiler."""
    cached = cmake_cache(build)
    if cached.get("PRORATA_SANITIZE"):
        folder = pathlib.Path(cached["CMAKE_CXX_COMPILER"]).resolve().parent
        os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"


def pytest_environment(build):
    """Tests load the simulated NVML into Python (tests/harness.py), and a sanitizer's library must
    be there before what needs it. Programs that a test starts do not get it (harness.Machine)."""
    environment = {**os.environ, "PRORATA_BUILD_DIR": str(build)}
    cached = cmake_cache(build)
    if kind := re.search("address|thread", cached.get("PRORATA_SANITIZE", "")):
        library = subprocess.run(
            [cached["CMAKE_CXX_COMPILER"],
             f"-print-file-name=libclang_rt.{kind.group()[0]}san-x86_64.so"],
            capture_output=True, text=True, check=True).stdout.strip()
        environment |= {"LD_PRELOAD": library, "ASAN_OPTIONS": "detect_leaks=0"}
    return environment


def run_ctest(build, label, jobs, log):
    """What it prints goes to `log`."""
    junit = build / f"tests-{label}-ctest.xml"
    junit.unlink(missing_ok=True)
    code = subprocess.run(
        ["ctest", "--test-dir", build, "--output-on-failure", "--no-tests=error",
         "--test-output-size-failed", str(KEPT_OF_FAILED), "--test-output-size-passed",
         str(KEPT_OF_PASSED), "--test-output-truncation", "head",
         "-j", jobs, "--output-junit", junit, *select(label)], stdout=log, stderr=log, check=False).returncode
    if not junit.exists():
        return Results(failed=[("ctest", f"it wrote no report (exit status {code})")])
    found = ctest_results(junit)
    if code and not found.failed:
        found.failed.append(("ctest", f"it ended with {code}, and named no failed test"))
    return found


def run_pytest(build, label, part, jobs):
    """`together` as many as `jobs`; of those that measure real time `pairs` four at a time, `alone` one."""
    junit = build / f"tests-{label}-{part}.xml"
    junit.unlink(missing_ok=True)
    which = part
    if part == "together":
        which = "" if label in SANITIZERS else "not pairs and not alone"
    marks = [mark for mark in (MARKS[label], which) if mark]
    workers = {"together": jobs, "pairs": "4", "alone": "0"}[part]
    command = [PYTHON, "-m", "pytest", "-v", "--durations=10", f"--junitxml={junit}",
               "-m", " and ".join(marks), "-n", workers, "--dist", "worksteal"]
    code = subprocess.run(command, cwd=ROOT, env=pytest_environment(build), check=False).returncode
    if code == NO_TESTS:
        return Results()
    if not junit.exists():
        return Results(failed=[(f"pytest {part}", f"it wrote no report (exit status {code})")])
    found = pytest_results(junit)
    if code and not found.failed:
        found.failed.append((f"pytest {part}", f"it ended with {code}, and named no failed test"))
    return found


def run_both(build, label, jobs):
    """Tests of ctest's wait for a second here and there, and so do pytest's: side by side they take two thirds
    of the time. ctest's output comes in one piece, so that a reader can follow either. Whichever takes longer has
    a job more."""
    sanitized = label in SANITIZERS
    ctest_jobs, pytest_jobs = (str(jobs + more) for more in (sanitized, not sanitized))
    with tempfile.TemporaryFile("w+", errors="replace") as log, concurrent.futures.ThreadPoolExecutor() as pool:
        ctest = pool.submit(run_ctest, build, label, ctest_jobs, log)
        together = run_pytest(build, label, "together", pytest_jobs)
        found = ctest.result()
        log.seek(0)
        shutil.copyfileobj(log, sys.stdout)
    found.add(together)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("--label", default="all", choices=MARKS)
    parser.add_argument("pytest_options", nargs="*", metavar="-- OPTION")
    args = parser.parse_args()
    build = args.build.resolve()
    if not PYTHON.exists():
        print(f"run_tests: {PYTHON} is not there: run `scripts/setup.sh pytest build`",
              file=sys.stderr)
        return 1
    if args.label in SANITIZERS and not cmake_cache(build).get("PRORATA_SANITIZE"):
        print(f"run_tests: {build} was configured without a sanitizer: run `make {args.label}`",
              file=sys.stderr)
        return 1
    find_symbolizer(build)
    if args.pytest_options:
        marks = ["-m", MARKS[args.label]] if MARKS[args.label] else []
        return subprocess.run([PYTHON, "-m", "pytest", *marks, *args.pytest_options], cwd=ROOT,
                              env=pytest_environment(build), check=False).returncode
    jobs = int(os.environ.get("PRORATA_TEST_JOBS", os.cpu_count() or 1))
    flows_only = args.label == "main-flows"
    found = Results() if flows_only else run_both(build, args.label, jobs)
    parts = () if args.label in SANITIZERS else ("alone",) if flows_only else ("pairs", "alone")
    for part in parts:
        found.add(run_pytest(build, args.label, part, str(jobs)))
    for name, reason in found.skipped:
        print(f"SKIPPED {name}: {reason}")
    for name, line in found.unmet:
        print(f"{line} ({name})")
    if warning := noise_warning(found):
        print(warning)
    test_report.finish(args.label, found.passed, found.failed, len(found.skipped),
                       len(found.unmet))
    nothing_ran = not found.passed and not (flows_only and found.skipped)
    return 1 if found.failed or nothing_ran else 0


if __name__ == "__main__":
    sys.exit(main())
