"""What a destroyed pool still holds stays charged: found by the stress."""
import pathlib
import subprocess
import sys
import unittest

import harness
from harness import MIB

PROGRAM = pathlib.Path(__file__).resolve().parent / "destroyed_pool.py"


class DestroyedPool(harness.MachineTestCase):
    def test_is_charged_until_the_device_has_freed_its_memory(self):
        # The charge went when the free was queued: a share of 1 GiB could have 256 MiB more.
        self.machine.start_agent()
        nvml = harness.Nvml(self.machine)
        self.addCleanup(nvml.close)
        program = self.machine.start(
            self.machine.command(["--name", "p", "--memory", "1GiB"], [sys.executable, PROGRAM]),
            stdin=subprocess.PIPE)
        self.assertEqual(harness.read_line(program), "destroyed\n")
        share = self.machine.share("p")
        taken = nvml.memory()[2]
        self.assertEqual(taken, share["overhead_bytes"] + 256 * MIB)
        self.assertEqual(share["used_bytes"], taken)
        program.stdin.write("g")
        program.stdin.flush()
        self.assertEqual(harness.read_line(program), "freed\n")
        # The helper thread destroys the pool when nothing is left in it.
        harness.wait_until(lambda: nvml.memory()[2] == share["overhead_bytes"], what="the memory")
        harness.wait_until(
            lambda: self.machine.share("p")["used_bytes"] == share["overhead_bytes"],
            what="the charge")
        self.assertEqual(harness.read_line(program), "True\n")  # the default pool is current again
        self.assertEqual(harness.read_line(program), "True\n")  # and cannot be destroyed


if __name__ == "__main__":
    unittest.main()
