"""The join is sent before the driver's cuInit: what becomes of it where that fails."""

import subprocess
import sys
import unittest

import harness

# Says what each cuInit answers, then allocates, and stays until its standard input ends.
PROGRAM = """
import ctypes, sys
library = ctypes.CDLL("libcuda.so.1")
print(*[library.cuInit(0) for _ in range(int(sys.argv[1]))], flush=True)
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
print(library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), library.cuCtxSetCurrent(context),
      library.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(64 << 20)), flush=True)
sys.stdin.read()
"""
NO_DEVICE = 100
NOT_INITIALIZED = 3


class InitFails(harness.MachineTestCase):
    MACHINE_TOML = """
[[devices]]
memory = "16GiB"
[[faults]]
kind = "init-fails"
error = "CUDA_ERROR_NO_DEVICE"
nth_process = 1
count = 2
"""

    def setUp(self):
        super().setUp()
        self.machine.start_agent("--cdi-dir", self.machine.folder / "cdi")
        status, _, err = self.machine.call([harness.PRORATA, "create", "a", "--memory", "1GiB"])
        self.assertEqual(status, 0, err)

    def start(self, times):
        return self.machine.start(self.machine.command(["--name", "a"], [sys.executable, "-c", PROGRAM, str(times)]),
                                  stdin=subprocess.PIPE)

    def members(self):
        return [member["pid"] for member in self.machine.share("a")["members"]]

    def end(self, program):
        program.stdin.close()
        self.assertEqual(program.wait(harness.DEADLINE_S), 0)
        harness.wait_until(lambda: self.members() == [], what="a share without members")

    def test_it_joins_once_the_driver_starts(self):
        program = self.start(4)
        self.assertEqual(harness.read_line(program), f"{NO_DEVICE} {NO_DEVICE} 0 0\n")
        self.assertEqual(harness.read_line(program), "0 0 0\n")
        self.assertEqual(self.members(), [program.pid])
        self.assertGreaterEqual(self.machine.share("a")["used_bytes"], 64 << 20)
        self.end(program)

    def test_it_has_nothing_where_the_driver_never_starts(self):
        program = self.start(2)
        self.assertEqual(harness.read_line(program), f"{NO_DEVICE} {NO_DEVICE}\n")
        self.assertEqual(harness.read_line(program), " ".join([str(NOT_INITIALIZED)] * 3) + "\n")
        self.assertEqual(self.machine.share("a")["used_bytes"], 0)
        # The next one has all of it.
        status, out, err = self.machine.call(self.machine.command(
            ["--name", "a"], [harness.GPULOAD, "--allocate", "512MiB"]))  # fmt: skip
        self.assertEqual(status, 0, out + err)
        self.end(program)


if __name__ == "__main__":
    unittest.main()
