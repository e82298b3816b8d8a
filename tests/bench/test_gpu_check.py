"""gpu_check.py: what it answers without a driver, how it runs a build's tests, what it keeps."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PRORATA_BUILD_DIR", ROOT / "build")).resolve()
SCRIPT = ROOT / "scripts" / "gpu_check.py"
sys.path.insert(0, str(SCRIPT.parent))
import conformance  # pylint: disable=wrong-import-position
import gpu_check  # pylint: disable=wrong-import-position


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="prorata-gpu-check-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name).resolve()

    def call(self, *options, **environment):
        return subprocess.run([sys.executable, SCRIPT, "--build", BUILD, *options], check=False,
                              env={**os.environ, **environment}, capture_output=True, text=True,
                              timeout=800)


class WithoutADriver(Folder):
    def setUp(self):
        super().setUp()
        found = gpu_check.find_libraries(BUILD)
        if found or gpu_check.shutil.which("nvidia-smi"):
            self.skipTest("this machine has an NVIDIA driver")

    def test_says_so_in_one_line_and_runs_nothing(self):
        before = sorted(gpu_check.RESULTS.iterdir())
        done = self.call()
        self.assertEqual(done.returncode, 77, done.stderr)
        self.assertEqual(len(done.stdout.splitlines()), 1)
        self.assertIn("no NVIDIA driver was found", done.stdout)
        self.assertEqual(done.stderr, "")
        self.assertEqual(sorted(gpu_check.RESULTS.iterdir()), before)

    def test_does_not_take_the_simulated_driver_or_the_client_library_for_one(self):
        if not (BUILD / "sim" / "libcuda.so.1").exists():
            self.skipTest("the simulated driver is not built")
        done = self.call(LD_LIBRARY_PATH=f"{BUILD}/sim:{BUILD}/lib")
        self.assertEqual(done.returncode, 77, done.stdout + done.stderr)

    def test_names_a_driver_that_has_no_libcuda(self):
        (self.folder / "libnvidia-ml.so.1").write_bytes(b"")
        done = self.call(LD_LIBRARY_PATH=str(self.folder))
        self.assertEqual(done.returncode, 1)
        self.assertIn("no libcuda.so.1", done.stderr)


class Options(Folder):
    def test_refuses_an_unknown_step(self):
        done = self.call("--steps", "facts,coffee")
        self.assertEqual(done.returncode, 2)
        self.assertIn("unknown step: coffee", done.stderr)


class Conformance(Folder):
    def test_runs_the_suite_and_counts_the_rules(self):
        if not conformance.program(BUILD).exists():
            self.skipTest("the conformance suite is not built")
        # A part of it: all of it runs in tests/conformance.
        part = [test for test in conformance.tests(BUILD) if test.startswith("GraphExecTest.")]
        done = self.call("--simulated", "--steps", "conformance", GTEST_FILTER="GraphExecTest.*")
        self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-3000:])
        self.assertGreater(len(part), 10)
        self.assertIn(f" {len(part)} rules hold, 0 do not", done.stdout)

    def test_what_the_time_does_not_suffice_for_did_not_run_and_is_no_pass(self):
        if not conformance.program(BUILD).exists():
            self.skipTest("the conformance suite is not built")
        check = gpu_check.Check(BUILD, {**os.environ, "PRORATA_DRIVER_DIR": str(BUILD / "sim")}, 0)
        status, result = check.conformance()
        self.assertEqual(status, "failed")
        self.assertEqual(sorted(result["did_not_run"]), sorted(conformance.tests(BUILD)))
        self.assertEqual(result["held"], [])
        self.assertEqual(result["differences"], [])


class Labelled(Folder):
    """Tests by their marks, run by the pytest that the build carries."""

    def labelled(self, *methods, packages=BUILD / "venv-pytest"):
        build = self.folder / "build"
        build.mkdir()
        (build / "venv-pytest").symlink_to(packages)
        tests = self.folder / "tests"
        tests.mkdir()
        (self.folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  gpu: x\ntestpaths = tests\n")
        (tests / "test_made.py").write_text("import os\nimport pytest\n\n" + "\n\n".join(methods) + "\n")
        self.addCleanup(setattr, gpu_check, "ROOT", gpu_check.ROOT)
        gpu_check.ROOT = self.folder
        return gpu_check.Check(build, dict(os.environ)).labelled("gpu")

    def test_runs_those_and_says_what_became_of_each(self):
        status, result = self.labelled(
            "@pytest.mark.gpu\ndef test_good():\n"
            f"    assert os.environ['PRORATA_BUILD_DIR'] == '{self.folder}/build'",
            "@pytest.mark.gpu\ndef test_bad():\n    assert 1 == 2",
            "@pytest.mark.gpu\ndef test_skipped():\n    pytest.skip('no second GPU')",
            "def test_other():\n    assert False")
        self.assertEqual(status, "failed")
        self.assertEqual(result["passed"], ["tests/test_made.py::test_made::test_good"])
        self.assertEqual(result["skipped"], {"tests/test_made.py::test_made::test_skipped": "no second GPU"})
        (bad,) = result["failed"]
        self.assertIn("test_bad", bad)
        self.assertIn("assert 1 == 2", "\n".join(result["failed"][bad]))

    def test_a_build_without_pytest_is_no_failure_of_the_gpu(self):
        status, _ = self.labelled("def test_x():\n    pass", packages=self.folder / "nowhere")
        self.assertIn("skipped: ", status)
        self.assertIn("make everything", status)


class Steps(Folder):
    """With made-up steps: what is written, and the exit status."""

    def run_steps(self, folder, **steps):
        made = type("Made", (gpu_check.Check,), {
            name: (lambda self, outcome=outcome: outcome) for name, outcome in steps.items()})
        device = {"name": "NVIDIA H200 (x)", "uuid": "GPU-1"}
        return gpu_check.run_steps(made(self.folder, {}), list(steps), device, folder)

    def setUp(self):
        super().setUp()
        self.addCleanup(setattr, gpu_check, "ROOT", gpu_check.ROOT)
        gpu_check.ROOT = self.folder

    def test_keeps_each_result_under_the_devices_name(self):
        status = self.run_steps(self.folder / "results", facts=("passed", {"x": 1}),
                                demo=("skipped: no demo", {}))
        self.assertEqual(status, 0)
        (path,) = (self.folder / "results").iterdir()
        self.assertRegex(path.name, r"^nvidia-h200-x-\d{4}-\d\d-\d\d-facts\.json$")
        record = json.loads(path.read_text())
        self.assertEqual(record["result"], {"x": 1})
        self.assertEqual(record["device"]["uuid"], "GPU-1")
        self.assertIn("commit", record)

    def test_a_failed_step_fails_the_check_and_is_kept_too(self):
        status = self.run_steps(self.folder / "results", tests=("failed", {"errors": ["why"]}))
        self.assertEqual(status, 1)
        self.assertEqual(len(list((self.folder / "results").iterdir())), 1)

    def test_writes_nothing_when_simulated(self):
        self.assertEqual(self.run_steps(None, facts=("passed", {})), 0)
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_kills_what_does_not_end(self):
        check = gpu_check.Check(self.folder, dict(os.environ))
        code, _, err = check.run(["sh", "-c", "sleep 60 & wait"], 0.3)
        self.assertNotEqual(code, 0)
        self.assertIn("killed", err)


if __name__ == "__main__":
    unittest.main()
