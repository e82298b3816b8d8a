"""What loading the client library does: nothing, but in a container, where it is what programs load as the driver."""

import json
import sys
import unittest

import harness
import mounted_share

# Prints when the driver is mapped: after the library was loaded, and after cuInit.
PROGRAM = """
import ctypes, json, sys
def mapped():
    return any(name in line for line in open("/proc/self/maps") for name in ("libcuda.so.real", "/sim/libcuda.so"))
library = ctypes.CDLL("libcuda.so.1")
loaded = mapped()
print("calling cuInit", file=sys.stderr, flush=True)
result = library.cuInit(0)
print(json.dumps([loaded, result, mapped()]))
"""
NO_DEVICE = 100


class Loading(harness.MachineTestCase):
    def setUp(self):
        super().setUp()
        self.machine.start_agent("--cdi-dir", self.machine.folder / "cdi")
        status, _, err = self.machine.call([harness.PRORATA, "create", "a", "--memory", "1GiB"])
        self.assertEqual(status, 0, err)

    def run_program(self, command, environment):
        status, out, err = self.machine.call(command([sys.executable, "-c", PROGRAM]), environment=environment)
        self.assertEqual(status, 0, err)
        return json.loads(out), err

    def in_container(self, leave_out=(), **environment):
        if reason := mounted_share.why_not():
            self.skipTest(reason)
        return self.run_program(mounted_share.command_in(self, "a", leave_out),
                                {"LD_LIBRARY_PATH": str(harness.LIB_DIR), **environment})  # fmt: skip

    def test_preloaded_it_does_nothing(self):
        seen, _ = self.run_program(lambda program: self.machine.command(["--name", "a"], program), {})
        self.assertEqual(seen, [False, 0, True])

    def test_in_a_container_it_loads_the_driver(self):
        seen, _ = self.in_container()
        self.assertEqual(seen, [True, 0, True])

    def test_without_a_driver_it_is_silent_until_it_is_called(self):
        seen, err = self.in_container({mounted_share.DRIVER}, PRORATA_DRIVER_DIR="/nonexistent")
        self.assertEqual(seen, [False, NO_DEVICE, False])
        before, _, after = err.partition("calling cuInit")
        self.assertEqual(before, "")
        self.assertEqual(after.count("cannot find the NVIDIA driver's libcuda.so.1"), 1, err)


if __name__ == "__main__":
    unittest.main()
