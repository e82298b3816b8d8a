"""PyTorch from PyPI in a container on a share: it sees the share's size, is refused beyond it, and goes on.

Runs with `make test-compatibility`, which fetches PyTorch (PRORATA_TEST_COMPATIBILITY=all); else it is skipped. The environment of
the wheels is mounted into the container, with the Python that it was made with."""
import json
import os
import pathlib
import subprocess
import unittest

import harness
import podman
from harness import GIB

ENVIRONMENT = harness.BUILD / "compatibility" / "cuda13"
SUITE = harness.ROOT / "tests" / "compatibility"
SHARE = 6 * GIB


def python_facts():
    """Of the environment's Python: where its installation is, its library, and its modules in C."""
    program = ("import json, sys, sysconfig; print(json.dumps([sys.base_prefix, sysconfig.get_path('stdlib'), "
               "sysconfig.get_config_var('DESTSHARED')]))")
    out = subprocess.run([ENVIRONMENT / "bin" / "python", "-c", program], text=True, check=True,
                         capture_output=True).stdout
    return map(pathlib.Path, json.loads(out))


class PyTorch(podman.PodmanTestCase):
    def setUp(self):
        if os.environ.get("PRORATA_TEST_COMPATIBILITY") != "all":
            self.skipTest("NEEDS PYTORCH: run by `make test-compatibility`, or with PRORATA_TEST_COMPATIBILITY=all once that has "
                          "fetched it")
        if not (ENVIRONMENT / ".torch").exists():
            self.skipTest(f"NEEDS PYTORCH: it is not in {ENVIRONMENT}; `scripts/setup.sh compatibility BUILD all` fetches it")
        prefix, library, modules = python_facts()
        interpreter = (ENVIRONMENT / "bin" / "python").resolve()
        # For what these are linked to; they themselves are mounted.
        self.PROGRAMS = [(interpreter, "usr/bin/python-linked", 0o755)]  # pylint: disable=invalid-name
        self.PROGRAMS += [(module, f"usr/lib/{module.name}", 0o644) for module in modules.glob("*.so")]
        folders = [ENVIRONMENT, SUITE, library if prefix == pathlib.Path("/usr") else prefix]
        self.options = [f"--volume={folder}:{folder}:ro" for folder in folders]
        if prefix == pathlib.Path("/usr"):
            self.options.append(f"--volume={interpreter}:{interpreter}:ro")
        super().setUp()

    def exercise(self, *arguments):
        share = self.create("torch", "--memory", str(SHARE))
        options = [*self.options, "--env", f"COMPATIBILITY_TOTAL_BYTES={SHARE}", "--env", "COMPATIBILITY_CUDA_MAJOR=13",
                   "--env", "HOME=/tmp"]
        program = [ENVIRONMENT / "bin" / "python", "-B", SUITE / "exercise_pytorch.py", *arguments]
        status, out, err = self.podman.run(self.named("torch"), share, program, options)
        self.assertEqual(status, 0, out + err)
        report = json.loads(out.splitlines()[-1])
        print(f"PyTorch {report['version']} in a container: {'; '.join(report['done'])}")
        self.assertIn("out of memory, caught, and after", "; ".join(report["done"]))
        self.assertLessEqual(self.machine.peak_bytes(), SHARE)

    def test_in_a_container(self):
        self.exercise()

    def test_with_cuda_malloc_async(self):
        self.exercise("backend:cudaMallocAsync")


if __name__ == "__main__":
    unittest.main()
