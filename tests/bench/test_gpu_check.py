"""gpu_check.py: what it answers without a driver, how it reads a build's tests, what it keeps."""
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
import ctest_files  # pylint: disable=wrong-import-position
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
        if not gpu_check.conformance.program(BUILD).exists():
            self.skipTest("the conformance suite is not built")
        done = self.call("--simulated", "--steps", "conformance")
        self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-3000:])
        self.assertRegex(done.stdout, r"[2-9]\d\d rules hold, 0 do not")


class ReadTests(Folder):
    """A build that was made in /made/build from /made and now lies elsewhere."""

    def setUp(self):
        super().setUp()
        self.build = self.folder / "build"
        (self.build / "sub").mkdir(parents=True)
        (self.build / "CMakeCache.txt").write_text(
            "CMAKE_CACHEFILE_DIR:INTERNAL=/made/build\nCMAKE_HOME_DIRECTORY:INTERNAL=/made\n")
        (self.build / "CTestTestfile.cmake").write_text("# text\nsubdirs(\"sub\")\nsubdirs(\"gone\")\n")
        (self.build / "sub" / "CTestTestfile.cmake").write_text(
            'add_test(a.b.c "/usr/bin/python3.9" "/made/tests/run_one.py" "a b" "c\\"d")\n'
            'set_tests_properties(a.b.c PROPERTIES  ENVIRONMENT "X=/made/build;Y=/made/z" '
            'LABELS "multiprocess;gpu" SKIP_RETURN_CODE "77" TIMEOUT "7" _BACKTRACE "/made/CMakeLists.txt;5")\n'
            'include("/made/build/sub/unit_tests.cmake")\n')
        (self.build / "sub" / "unit_tests.cmake").write_text(
            "add_test([=[u.A.B(c)]=]  /made/build/tests/u [==[--gtest_filter=A.B]==] --also)\n"
            "set_tests_properties([=[u.A.B(c)]=]  PROPERTIES WORKING_DIRECTORY /made/build/sub "
            "SKIP_REGULAR_EXPRESSION [==[\\[  SKIPPED \\]]==] TIMEOUT 120 LABELS unit)\n"
            "set( u_TESTS x)\n")

    def test_reads_commands_and_settings_and_moves_their_paths(self):
        python, unit = ctest_files.read_tests(self.build, self.folder)
        self.assertEqual(python.name, "a.b.c")
        self.assertEqual(python.command, [sys.executable, f"{self.folder}/tests/run_one.py", "a b", 'c"d'])
        self.assertEqual(python.environment, {"X": str(self.build), "Y": f"{self.folder}/z"})
        self.assertEqual(python.labels, {"multiprocess", "gpu"})
        self.assertEqual((python.timeout_s, python.skip_code), (7, 77))
        self.assertEqual(unit.name, "u.A.B(c)")
        self.assertEqual(unit.command, [f"{self.build}/tests/u", "--gtest_filter=A.B", "--also"])
        self.assertEqual(unit.folder, f"{self.build}/sub")
        self.assertEqual(unit.labels, {"unit"})

    def test_finds_this_test_in_its_own_build(self):
        if not (BUILD / "CTestTestfile.cmake").exists():
            self.skipTest(f"{BUILD} has no CTestTestfile.cmake")
        names = [test.name for test in ctest_files.read_tests(BUILD, ROOT)]
        self.assertIn(f"bench_gpu_check.ReadTests.{self._testMethodName}", names)
        self.assertEqual(len(names), len(set(names)))


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
