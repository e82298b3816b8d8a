#!/usr/bin/env python3
"""Runs, where there is an NVIDIA driver, what only a GPU can tell, and keeps the results.

Needs a build (made here or carried here, with the sources beside it) and Python; no CMake, no
compiler. Steps, each with its own file bench/results/DEVICE-DATE-STEP.json:

  facts   build/bin/gpu-facts: what the device and its driver do
  tests   the tests labelled "gpu", on this driver in place of the simulated GPU
  limits  the tests labelled "limits": what each function may take of a share (docs/reference/memory.md)
  conformance  build/tests/conformance_suite: every rule of the driver that the simulated GPU is held
          to, and that does not hold here (docs/reference/conformance.md)
  demo    scripts/demo.py
  micro   build/bin/micro: what the client library adds to a call on this host (its driver is one
          that does nothing: the difference is what counts, and it needs no GPU)

Exit status: 0 all that ran passed, 1 something failed, 77 there is no NVIDIA driver.
"""
import argparse
import contextlib
import ctypes
import datetime
import json
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import conformance  # pylint: disable=wrong-import-position
import run_tests  # pylint: disable=wrong-import-position

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
NO_DRIVER = 77
SKIPPED = 77
TESTS_TIMEOUT_S = 3600  # of all tests of a step; each has its own (pytest.ini)
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib", "/usr/local/nvidia/lib64",
           "/usr/local/nvidia/lib", "/usr/lib/aarch64-linux-gnu")


class Problem(Exception):
    """Ends the check with one clear line."""


# --- The driver -----------------------------------------------------------------------------------

def library_candidates(name):
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        if folder:
            yield pathlib.Path(folder) / name
    ldconfig = shutil.which("ldconfig") or "/sbin/ldconfig"
    with contextlib.suppress(OSError):
        listing = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=False).stdout
        for match in re.finditer(rf"^\s*{re.escape(name)} .*=> (\S+)$", listing, re.M):
            yield pathlib.Path(match.group(1))
    for folder in FOLDERS:
        yield pathlib.Path(folder) / name


def ours(path, build):
    """Whether a library is the simulated driver or the client library of a build of prorata."""
    path = path.resolve()
    return path.is_relative_to(build.resolve()) or (path.parent.parent / "bin" / "prorata").exists()


def find_libraries(build):
    """{name: path} of the driver's libraries, those of this project left out."""
    found = {}
    for name in LIBRARIES:
        for path in library_candidates(name):
            if path.exists() and not ours(path, build):
                found[name] = path
                break
    return found


def open_driver(path):
    """What cuInit and the first device of a libcuda say."""
    cuda = ctypes.CDLL(str(path))
    if (code := cuda.cuInit(0)) != 0:
        raise Problem(f"{path} is there, but cuInit answered {code}: is a GPU reachable from here?")
    device, version = ctypes.c_int(), ctypes.c_int()
    name, uuid = ctypes.create_string_buffer(128), ctypes.create_string_buffer(16)
    for what, code in (("cuDeviceGet", cuda.cuDeviceGet(ctypes.byref(device), 0)),
                       ("cuDeviceGetName", cuda.cuDeviceGetName(name, 128, device)),
                       ("cuDeviceGetUuid_v2", cuda.cuDeviceGetUuid_v2(uuid, device)),
                       ("cuDriverGetVersion", cuda.cuDriverGetVersion(ctypes.byref(version)))):
        if code != 0:
            raise Problem(f"{path}: {what} answered {code}")
    digits = uuid.raw.hex()
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return {"name": name.value.decode(), "uuid": "GPU-" + "-".join(parts),
            "cuda_version": version.value}


def driver_version(path):
    if path is None:
        return ""
    nvml = ctypes.CDLL(str(path))
    text = ctypes.create_string_buffer(96)
    if nvml.nvmlInit_v2() != 0 or nvml.nvmlSystemGetDriverVersion(text, 96) != 0:
        return ""
    nvml.nvmlShutdown()
    return text.value.decode()


def describe(libraries):
    device = open_driver(libraries["libcuda.so.1"])
    return {**device, "driver": driver_version(libraries.get("libnvidia-ml.so.1"))}


# --- Steps: each gives (status, result); status is "passed", "failed" or "skipped: why" -----------

class Check:
    def __init__(self, build, environment, conformance_s=math.inf):
        self.build = build
        self.environment = environment
        self.conformance_s = conformance_s

    def run(self, command, timeout_s, environment=None, folder=None):
        """(exit status, stdout, stderr); at the timeout the command and its children are killed."""
        process = subprocess.Popen([str(word) for word in command], text=True, errors="replace",
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, start_new_session=True, cwd=folder,
                                   env={**self.environment, **(environment or {})})
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            err += f"\nkilled: not over after {timeout_s:g} s"
        return process.returncode, out, err

    def json_program(self, program, options, timeout_s):
        path = self.build / "bin" / program
        if not path.exists():
            return f"skipped: {path} is not built", {}
        code, out, err = self.run([path, *options], timeout_s)
        if code == SKIPPED:
            return f"skipped: {((err or out).strip().splitlines() or ['no reason given'])[-1]}", {}
        result = {"exit_status": code, "errors": err.strip().splitlines()[-20:]}
        try:
            result["report"] = json.loads(out)
        except ValueError:
            return "failed", {**result, "output": out.splitlines()[-50:]}
        return ("passed" if code == 0 else "failed"), result

    def facts(self):
        return self.json_program("gpu-facts", [], 120)

    def micro(self):
        return self.json_program("micro", ["--json", "--dir", self.build], 300)

    def conformance(self):
        program = conformance.program(self.build)
        if not program.exists():
            return f"skipped: {program} is not built", {}
        result = conformance.differences(self.build, self.environment, seconds=self.conformance_s)
        print(f"  {len(result['held'])} rules hold, {len(result['differences'])} do not, "
              f"{len(result['skipped'])} skipped, {len(result['did_not_run'])} did not run", flush=True)
        failed = result["differences"] or result["did_not_run"]
        return ("failed" if failed else "passed"), result

    def demo(self):
        script = ROOT / "scripts" / "demo.py"
        if not script.exists():
            return f"skipped: {script} is not there", {}
        code, out, err = self.run([sys.executable, script, "--build", self.build], 300)
        result = {"exit_status": code, "output": out.splitlines()[-40:],
                  "errors": err.strip().splitlines()[-20:]}
        return ("passed" if code == 0 else "failed"), result

    def tests(self):
        return self.labelled("gpu")

    def limits(self):
        return self.labelled("limits")

    def labelled(self, label):
        # Of the build's own pytest only the packages, which are Python alone: its interpreter stayed
        # where it was made.
        packages = sorted(self.build.glob("venv-pytest/lib/python3*/site-packages"))
        if not packages:
            return f"skipped: {self.build}/venv-pytest is not there; run `make everything`", {}
        result = {"passed": [], "failed": {}, "skipped": {}, "errors": []}
        with tempfile.TemporaryDirectory(prefix="prorata-gpu-check-") as folder:
            junit = pathlib.Path(folder) / "report.xml"
            code, out, err = self.run(
                [sys.executable, "-m", "pytest", "-q", "-m", label, f"--junitxml={junit}",
                 "-o", "junit_family=xunit1", "-p", "no:cacheprovider"], TESTS_TIMEOUT_S,
                {"PYTHONPATH": str(packages[0]), "PRORATA_BUILD_DIR": str(self.build)}, ROOT)
            if not junit.exists():
                result["errors"] = (out + err).strip().splitlines()[-30:]
                return "failed", result
            found = run_tests.pytest_results(junit)
        if code == run_tests.NO_TESTS:
            return f"skipped: no test is marked {label}", {}
        result["passed"] = found.passed_names
        result["skipped"] = dict(found.skipped)
        result["failed"] = {name: said.splitlines()[-30:] for name, said in found.failed}
        result["errors"] = list(result["failed"])
        for verdict in ("passed", "skipped", "failed"):
            for name in result[verdict]:
                print(f"  {verdict:8}{name}", flush=True)
        return ("failed" if code else "passed"), result


STEPS = ("facts", "demo", "tests", "limits", "micro", "conformance")


# --- Results --------------------------------------------------------------------------------------

def commit_of(build):
    """The commit that was built: what make everything noted, or else what the sources are."""
    noted = build / "commit"
    if noted.exists():
        return noted.read_text(encoding="ascii").strip()
    with contextlib.suppress(OSError):
        done = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=40"], cwd=ROOT,
                              capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return done.stdout.strip()
    return "unknown"


def slug(name):
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "device"


def write_result(folder, step, record):
    """Whole or not at all. A later run of the same day replaces the earlier."""
    path = folder / f"{slug(record['device']['name'])}-{record['date'][:10]}-{step}.json"
    folder.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".tmp")
    part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    part.replace(path)
    return path


def run_steps(check, steps, device, folder):
    """Runs and records all; `folder` None prints the results instead. The exit status."""
    failed = []
    for step in steps:
        print(f"gpu-check: {step} ...", flush=True)
        begin = time.monotonic()
        try:
            status, result = getattr(check, step)()
        except OSError as error:
            status, result = "failed", {"errors": [str(error)]}
        seconds = time.monotonic() - begin
        print(f"gpu-check: {step}: {status} ({seconds:.0f} s)", flush=True)
        if status == "failed":
            failed.append(step)
        record = {"step": step, "status": status, "device": device,
                  "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                  "commit": commit_of(check.build), "seconds": round(seconds, 1), "result": result}
        if folder is None:
            print(json.dumps(record, indent=1))
        elif not status.startswith("skipped"):
            print(f"gpu-check: wrote {write_result(folder, step, record).relative_to(ROOT)}")
        if status == "failed":
            for line in result.get("errors", []):
                print(f"  {line}", file=sys.stderr)
    if failed:
        print(f"gpu-check: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def check_simulated(build, steps, conformance_s):
    libraries = {name: build / "sim" / name for name in LIBRARIES}
    for path in libraries.values():
        if not path.exists():
            raise Problem(f"{path} is not built: run `make everything` first")
    with tempfile.TemporaryDirectory(prefix="prorata-gpu-check-") as state:
        place = {"PRORATA_DRIVER_DIR": str(build / "sim"), "PRORATA_SIM_STATE": state}
        os.environ.update(place)  # describe() loads the driver into this process
        print("gpu-check: on the SIMULATED GPU; nothing is written to bench/results", flush=True)
        return run_steps(Check(build, {**os.environ, **place}, conformance_s), steps, describe(libraries), None)


def check_real(build, steps, conformance_s):
    libraries = find_libraries(build)
    nvidia_smi = shutil.which("nvidia-smi")
    if not libraries and not nvidia_smi:
        print("gpu-check: no NVIDIA driver was found (looked for nvidia-smi in PATH and for "
              f"{' and '.join(LIBRARIES)} where the loader looks); nothing was run")
        return NO_DRIVER
    if "libcuda.so.1" not in libraries:
        seen = nvidia_smi or libraries["libnvidia-ml.so.1"]
        raise Problem(f"{seen} is there, but no libcuda.so.1 where the loader looks: install the "
                      "driver's CUDA library, or put its folder into LD_LIBRARY_PATH")
    # The tests' harness then uses the machine's own driver.
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith("PRORATA_SIM") and name != "PRORATA_DRIVER_DIR"}
    environment["PRORATA_TEST_GPU"] = "real"
    device = describe(libraries)
    print(f"gpu-check: {device['name']}, driver {device['driver'] or 'of unknown version'}", flush=True)
    return run_steps(Check(build, environment, conformance_s), steps, device, RESULTS)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--steps", default=",".join(STEPS),
                        help=f"some of {','.join(STEPS)} (default: all)")
    parser.add_argument("--simulated", action="store_true",
                        help="the same on the simulated GPU; prints the results, writes none")
    parser.add_argument("--conformance-seconds", type=float, default=math.inf,
                        help="that step begins nothing after so long (a GPU needs about three minutes)")
    options = parser.parse_args()
    steps = options.steps.split(",")
    if unknown := [step for step in steps if step not in STEPS]:
        parser.error(f"unknown step: {unknown[0]}; known are {', '.join(STEPS)}")
    build = options.build.resolve()
    try:
        check = check_simulated if options.simulated else check_real
        return check(build, steps, options.conformance_seconds)
    except (Problem, OSError) as error:
        print(f"gpu-check: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
