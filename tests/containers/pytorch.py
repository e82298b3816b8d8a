"""PyTorch from PyPI, as a container has it: its environment is mounted, with the Python that it was made with. It is there
once `make test-compatibility` has fetched it."""
import json
import os
import pathlib
import subprocess

import harness

ENVIRONMENT = harness.BUILD / "compatibility" / "cuda13"
SUITE = harness.ROOT / "tests" / "compatibility"


def why_not():
    """Why it is not here, or ""."""
    if os.environ.get("PRORATA_TEST_COMPATIBILITY") != "all":
        return ("NEEDS PYTORCH: run by `make test-compatibility`, or with PRORATA_TEST_COMPATIBILITY=all once that has "
                "fetched it")
    if not (ENVIRONMENT / ".torch").exists():
        return f"NEEDS PYTORCH: it is not in {ENVIRONMENT}; `scripts/setup.sh compatibility BUILD all` fetches it"
    return ""


def _facts():
    """Of the environment's Python: where its installation is, its library, and its modules in C."""
    program = ("import json, sys, sysconfig; print(json.dumps([sys.base_prefix, sysconfig.get_path('stdlib'), "
               "sysconfig.get_config_var('DESTSHARED')]))")
    out = subprocess.run([ENVIRONMENT / "bin" / "python", "-c", program], text=True, check=True,
                         capture_output=True).stdout
    return map(pathlib.Path, json.loads(out))


def _interpreter():
    return (ENVIRONMENT / "bin" / "python").resolve()


def programs():
    """For what these are linked to, as image.write takes them; they themselves are mounted."""
    _, _, modules = _facts()
    return [(_interpreter(), "usr/bin/python-linked", 0o755),
            *((module, f"usr/lib/{module.name}", 0o644) for module in modules.glob("*.so"))]


def mounted():
    """Folders and files of this machine that are to be in the container, at their own places, to read."""
    prefix, library, _ = _facts()
    of_python = [library, _interpreter()] if prefix == pathlib.Path("/usr") else [prefix]
    return [ENVIRONMENT, SUITE, *of_python]


def command(*arguments):
    return [str(part) for part in (ENVIRONMENT / "bin" / "python", "-B", SUITE / "exercise_pytorch.py", *arguments)]


def environment(size):
    """Of a program on a share of so many bytes."""
    return {"COMPATIBILITY_TOTAL_BYTES": str(size), "COMPATIBILITY_CUDA_MAJOR": "13", "HOME": "/tmp"}


def check(test, out, where):
    """That PyTorch saw its size, was refused beyond it, and went on, by what it printed."""
    report = json.loads(out.splitlines()[-1])
    print(f"PyTorch {report['version']} in {where}: {'; '.join(report['done'])}")
    test.assertIn("out of memory, caught, and after", "; ".join(report["done"]))
