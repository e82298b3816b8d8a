"""However a program reaches the driver, it meets its share; and what it does with processes and
threads does not break it."""
import json
import subprocess
import unittest

import pytest

import harness
from harness import GIB, MIB

pytestmark = [pytest.mark.asan_ubsan, pytest.mark.tsan]

FILL = ["--allocate", "128MiB", "--until-refused"]
# CUDA_ERROR_*: what a forked child may get. A hang or a crash is what must not be.
NOT_INITIALIZED, INVALID_CONTEXT = 3, 201


class Reach(harness.MachineTestCase):
    def setUp(self):
        super().setUp()
        self.machine.start_agent()

    def check_held(self, *load_options):
        report = self.machine.run_json(["--memory", "1GiB"], [*load_options, *FILL])
        self.assertEqual(report["memory"]["total"], GIB, load_options)
        self.assertEqual(report["refused"], "CUDA_ERROR_OUT_OF_MEMORY", load_options)
        self.assertLess(report["allocated_bytes"], GIB)
        self.assertGreater(report["allocated_bytes"], 0)

    def test_dlopen(self):
        self.check_held("--load", "dlopen")

    def test_dlopen_local(self):
        self.check_held("--load", "dlopen-local")

    def test_dlopen_of_the_development_name(self):
        self.check_held("--load", "dlopen-dev")

    def test_absolute_path_of_the_library(self):
        self.check_held("--load", harness.LIB_DIR / "libcuda.so.1")

    def test_get_proc_address_at_versions_and_flags(self):
        for version in (11030, 11080, 12000, 12040, 13000):
            self.check_held("--load", "getprocaddress", "--api-version", version)
        self.check_held("--load", "getprocaddress", "--per-thread-default")
        self.check_held("--load", "getprocaddress-v1", "--api-version", "11080")

    @pytest.mark.no_tsan
    def test_linked(self):
        probe = harness.BUILD / "tests" / "linked_probe"
        status, out, err = self.machine.call(
            self.machine.command(["--memory", "1GiB"], [probe, "--fill"]))
        self.assertEqual(status, 0, out + err)
        report = json.loads(out)
        self.assertEqual(report["total"], GIB)
        self.assertEqual(report["refused"], 2)
        self.assertLess(report["allocated_bytes"], GIB)

    def test_kernels_by_every_way(self):
        for way in ("dlopen", "getprocaddress"):
            for graph in ("0", "5"):
                name = f"{way}-{graph}"
                load = self.machine.start_load(
                    ["--name", name, "--memory", "1GiB"],
                    ["--load", way, "--graph", graph, "--kernels", "100", "--kernel-us", "200",
                     "--announce", "--hold", "600"])
                harness.read_event(load, "done")
                harness.wait_until(lambda n=name: self.machine.share(n)["device_time_ns"] >= 15e6,
                                   what=f"charged GPU time of {name}")
                load.terminate()
                out, err = load.communicate(timeout=harness.DEADLINE_S)
                report = json.loads(out.splitlines()[-1])
                self.assertEqual(report["kernels"], 100, err)
                self.assertEqual(report["stamped"], 100)


class NewerDriver(harness.MachineTestCase):
    """A driver above the spec, and a program that asks for its version: the spec's functions are
    still governed. (A version above the driver's own is refused by the driver.)"""
    MACHINE_TOML = "driver_version = 13010\n"

    def test_get_proc_address_above_the_spec(self):
        self.machine.start_agent()
        report = self.machine.run_json(["--memory", "1GiB"], ["--load", "getprocaddress",
                                                              "--api-version", "13010", *FILL])
        self.assertEqual(report["memory"]["total"], GIB)
        self.assertEqual(report["refused"], "CUDA_ERROR_OUT_OF_MEMORY")


class ProcessesAndThreads(harness.MachineTestCase):
    def setUp(self):
        super().setUp()
        self.machine.start_agent()

    def test_fork_after_init(self):
        report = self.machine.run_json(
            ["--memory", "1GiB"],
            ["--fork", *FILL, "--verify", "--kernels", "50", "--kernel-us", "100"])
        self.assertIn(report["forked_child"], (NOT_INITIALIZED, INVALID_CONTEXT))
        self.assertEqual(report["kernels"], 50)
        self.assertEqual(report["refused"], "CUDA_ERROR_OUT_OF_MEMORY")

    def test_a_second_program_on_the_same_share(self):
        # Both live on 2 GiB: what the one holds, the other cannot have.
        script = (f"{harness.GPULOAD} --allocate 512MiB --announce --hold 600 & "
                  f"read x; {harness.GPULOAD} --allocate 64MiB --until-refused; kill %1; wait")
        process = self.machine.start(self.machine.command(
            ["--name", "two", "--memory", "2GiB"], ["bash", "-c", script]), stdin=subprocess.PIPE)
        harness.read_event(process, "done")
        held = self.machine.share("two")["used_bytes"]
        process.stdin.write("go\n")
        process.stdin.flush()
        report = json.loads(harness.read_line(process))
        self.assertEqual(report["refused"], "CUDA_ERROR_OUT_OF_MEMORY")
        self.assertLessEqual(report["allocated_bytes"], 2 * GIB - held)
        self.assertGreater(report["allocated_bytes"], 0)
        self.assertEqual(report["memory"]["total"], 2 * GIB)

    @pytest.mark.no_tsan
    def test_exec_keeps_the_share(self):
        # The first program joined; the one it execs joins anew, and the first one's memory is back.
        script = ("import ctypes, os; c = ctypes.CDLL('libcuda.so.1'); assert c.cuInit(0) == 0; "
                  "x = ctypes.c_void_p(); assert c.cuDevicePrimaryCtxRetain(ctypes.byref(x), 0) == 0;"
                  f"os.execv('{harness.GPULOAD}', ['gpuload', '--allocate', '128MiB', "
                  "'--until-refused'])")
        status, out, err = self.machine.call(self.machine.command(
            ["--memory", "1GiB"], ["python3", "-c", script]))
        self.assertEqual(status, 0, out + err)
        report = json.loads(out.splitlines()[-1])
        self.assertEqual(report["memory"]["total"], GIB)
        self.assertGreaterEqual(report["allocated_bytes"], 256 * MIB)

    def test_64_launching_threads(self):
        report = self.machine.run_json(
            ["--memory", "2GiB"],
            ["--threads", "64", "--kernels", "20", "--kernel-us", "100", "--per-sync", "5"])
        self.assertEqual(report["kernels"], 64 * 20)
        self.assertEqual(report["stamped"], 64 * 20)

    def test_global_capture_beside_contended_launches_is_not_invalidated(self):
        rival = self.machine.start_load(
            ["--name", "rival", "--memory", "2GiB", "--compute", "0.5"],
            ["--seconds", "600", "--kernel-us", "2000", "--announce"])
        harness.read_event(rival, "kernels")
        # On a busy machine a few seconds are too few for so many captures.
        captures, seconds = 0, 4
        while captures <= 10:
            self.assertLess(seconds, 200, "hardly a capture ended")
            report = self.machine.run_json(
                ["--name", f"captures-{seconds}", "--memory", "2GiB", "--compute", "0.3"],
                ["--seconds", seconds, "--kernel-us", "1000", "--threads", "2", "--capture-beside"],
                timeout_s=seconds + harness.DEADLINE_S)
            self.assertEqual(report["captures_lost"], 0)
            self.assertGreater(report["kernels"], 0)
            captures, seconds = captures + report["captures"], 2 * seconds


if __name__ == "__main__":
    unittest.main()
