"""NVIDIA's CUDA runtime, static and shared, 12 and 13, on a share of the simulated GPU.

The runtimes come from PyPI into the virtual environments that scripts/setup.sh makes in the build
folder (PRORATA_CUDA_DIRS, colon-separated, names others); where there is none, the test is skipped
by name.
"""
import json
import os
import pathlib
import shutil
import subprocess
import unittest

import harness
from harness import GIB, MIB

SOURCE = harness.ROOT / "tests" / "cudart" / "fill.cc"
TOGETHER = harness.ROOT / "tests" / "cudart" / "together.cc"
STEP = 128 * MIB


def cuda_folders():
    named = os.environ.get("PRORATA_CUDA_DIRS")
    if named:
        return [pathlib.Path(p) for p in named.split(":")]
    # A preset's build folder lies in build/; the environments are in the outer one.
    return [build / name for build in (harness.BUILD, harness.ROOT / "build")
            for name in ("venv-cuda13", "venv-cuda12")]


def find(pattern):
    for folder in cuda_folders():
        found = sorted(p for p in folder.glob("**/" + pattern) if p.is_file())
        if found:
            return found[0].resolve()
    return None


class Cudart(harness.MachineTestCase):
    def setUp(self):
        super().setUp()
        self.machine.start_agent()

    def folder_of(self, major):
        shared = find(f"libcudart.so.{major}")
        if shared is None:
            self.skipTest(f"no cudart {major} in {':'.join(map(str, cuda_folders()))}")
        return shared.parent

    def build(self, source, major, static, *options):
        folder = self.folder_of(major)
        program = self.machine.folder / source.stem
        library = folder / ("libcudart_static.a" if static else f"libcudart.so.{major}")
        subprocess.run([shutil.which("c++"), "-O1", *options, "-o", program, source, library,
                        f"-Wl,-rpath,{folder}", "-ldl", "-lpthread", "-lrt"], check=True)
        return program

    def build_fill(self, major, static):
        return self.build(SOURCE, major, static)

    def check_fill(self, major, static):
        """Alone with the device it takes it whole; three with 1 GiB each fit beside each other."""
        program = self.build_fill(major, static)
        status, out, err = self.machine.call([program],
                                             environment=self.machine.bare_environment())
        self.assertEqual(status, 0, out + err)
        report = json.loads(out)
        self.assertEqual(report["runtime"] // 1000, major)
        self.assertGreater(report["allocated_bytes"], report["free"] - STEP)

        processes = {name: self.machine.start(self.machine.command(
            ["--name", name, "--memory", "1GiB"], [program, "600"]))
                     for name in ("fill-1", "fill-2", "fill-3")}
        for name, process in processes.items():
            line = harness.read_line(process)
            report = json.loads(line)
            self.assertEqual(report.get("refused"), "cudaErrorMemoryAllocation", line)
            self.assertEqual(report["total"], GIB)
            share = self.machine.share(name)
            self.assertEqual(report["allocated_bytes"],
                             (GIB - share["overhead_bytes"]) // STEP * STEP)
            self.assertEqual(share["used_bytes"],
                             report["allocated_bytes"] + share["overhead_bytes"])

    def test_static_13(self):
        self.check_fill(13, static=True)

    def test_shared_13(self):
        self.check_fill(13, static=False)

    def test_static_12(self):
        self.check_fill(12, static=True)

    def test_shared_12(self):
        self.check_fill(12, static=False)

    def check_together(self, major, static):
        """Two of one share, each refused and going on, as a framework's allocator does."""
        properties = "cudaGetDeviceProperties" + ("_v2" if major == 12 else "")
        program = self.build(TOGETHER, major, static, f"-DPROPERTIES={properties}")
        nvml = harness.Nvml(self.machine)
        self.addCleanup(nvml.close)

        def sample():
            used = nvml.memory()[2]
            assert used <= 2 * GIB, f"{used - 2 * GIB} bytes above the limit"

        watcher = harness.Watcher(sample)
        watcher.start()
        both = self.machine.start(self.machine.command(
            ["--name", "both", "--memory", "2GiB"],
            ["bash", "-c", f"{program} 1 2000 <&0 & one=$!; {program} 2 2000; two=$?; "
             "wait $one && exit $two"]), stdin=subprocess.PIPE)
        for _ in range(2):
            self.assertEqual(harness.read_line(both), "ready\n")
        out, err = both.communicate("go", timeout=harness.DEADLINE_S)
        watcher.stop()
        self.assertEqual(both.returncode, 0, out + err)
        reports = [json.loads(line) for line in out.splitlines()]
        self.assertEqual(len(reports), 2)
        for report in reports:
            self.assertEqual((report["total"], report["properties_total"]), (2 * GIB, 2 * GIB))
            self.assertGreater(report["refused"], 0)
            self.assertGreater(report["recovered"], 0)
        if not harness.REAL_GPU:
            self.assertLessEqual(self.machine.usage()["peak_bytes"], 2 * GIB)
            self.assertGreater(self.machine.usage()["peak_bytes"], GIB)
            harness.wait_until(lambda: nvml.memory()[2] == 0, what="all memory back")

    def test_two_of_one_share_never_exceed_it_together_13(self):
        self.check_together(13, static=True)

    def test_two_of_one_share_never_exceed_it_together_12(self):
        self.check_together(12, static=False)

    def test_vector_add_by_nvcc(self):
        nvcc = find("bin/nvcc")
        if nvcc is None:
            self.skipTest("no nvcc in " + ":".join(map(str, cuda_folders())))
        out = self.machine.folder / "examples"
        subprocess.run([harness.ROOT / "scripts" / "build_examples.sh", out],
                       env={**os.environ, "NVCC": str(nvcc)}, check=True)
        for name in ("vector_add", "vector_add_shared"):
            status, text, err = self.machine.call(self.machine.command(
                ["--memory", "1GiB"], [out / name, "--no-check"]))
            self.assertEqual((status, err), (0, ""))
            self.assertIn(f"of {GIB} bytes free", text)


if __name__ == "__main__":
    unittest.main()
