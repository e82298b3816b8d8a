"""Two shares that were promised more than their device has, each with many threads that allocate in
every way there is: one waits where the device is full, the other is refused at once.

    PRORATA_STRESS_SECONDS=60 PRORATA_TEST_SEED=7 build/venv-pytest/bin/pytest tests/stress/test_overcommit.py
"""
import json
import os
import subprocess
import time
import unittest

import harness
from harness import GIB, MIB

MEMORY_STRESS = harness.BUILD / "tests" / "memory_stress"
SECONDS = float(os.environ.get("PRORATA_STRESS_SECONDS", 4))
DEVICE = 2 * GIB
LIMIT = DEVICE * 3 // 4  # of each of the two
# Those that are charged before the driver is called, as in test_stress.py.
KINDS = "plain,pitched,managed,array,mipmap,async,pool,vmm,context,graph".split(",")


@unittest.skipIf(harness.REAL_GPU, "its judge is the simulated machine's own account")
class Overcommitted(harness.MachineTestCase):
    MACHINE_TOML = """
[[devices]]
memory = "2GiB"
context_memory = "16MiB"
"""

    def setUp(self):
        super().setUp()
        self.machine.start_agent("--overcommit", "1.5")
        self.nvml = harness.Nvml(self.machine)
        self.addCleanup(self.nvml.close)
        self.seed = int(os.environ.get("PRORATA_TEST_SEED", time.time()))
        print(f"seed: PRORATA_TEST_SEED={self.seed}")

    def begin(self, name, on_full):
        return self.machine.start(self.machine.command(
            ["--name", name, "--memory", str(LIMIT), "--on-full", on_full],
            [MEMORY_STRESS, "--processes", 2, "--threads", 4, "--seconds", 3600,
             "--seed", self.seed, "--kinds", ",".join(KINDS), "--most", 128 * MIB]),
            stdin=subprocess.PIPE)

    def test_never_above_the_device_and_nothing_left(self):
        programs = {name: self.begin(name, on_full)
                    for name, on_full in (("waits", "wait=2s"), ("fails", "fail"))}
        for program in programs.values():
            self.assertEqual(json.loads(harness.read_line(program))["event"], "begun")
        begin, waited, looks = time.monotonic(), 0, 0
        # Until it was a stress: the device was nearly full, and somebody had to wait for it.
        while (time.monotonic() < begin + SECONDS or looks < 10 or not waited or
               self.machine.usage()["peak_bytes"] < DEVICE * 7 // 8):
            for program in programs.values():
                self.assertIsNone(program.poll(), "it ended by itself")
            self.assertLess(time.monotonic(), begin + SECONDS + 600,
                            f"{waited} waits, {self.machine.usage()['peak_bytes']} bytes at most")
            shares = {share["name"]: share["devices"][0] for share in self.machine.ps()}
            # Without the overhead, of which the audit's part is no grant.
            granted = {name: share["granted_bytes"] - share["overhead_bytes"]
                       for name, share in shares.items()}
            self.assertLessEqual(sum(granted.values()), DEVICE, granted)
            self.assertLessEqual(max(granted.values()), LIMIT, granted)
            self.assertEqual(shares["fails"]["memory_waits"], 0)
            waited += shares["waits"]["memory_waits"]
            looks += 1
            time.sleep(0.02)
        for program in programs.values():
            program.terminate()  # which it takes for the end of its time
        for name, program in programs.items():
            report = json.loads(harness.read_line(program, 600))
            print(name, report)
            self.assertEqual((report["errors"], report["crashed"]), (0, []), report["first_error"])
            self.assertGreater(sum(report["refused"].values()), 0)
            self.assertEqual([kind for kind, made in report["made"].items() if not made], [])
        for name in programs:
            harness.wait_until(lambda: self.machine.share(name)["used_bytes"] == 0,
                               what=f"the ledger of {name} at zero")
            self.assertEqual(self.machine.share(name)["members"], [])
        self.assertEqual(self.nvml.memory()[2], 0)
        self.assertLessEqual(self.machine.usage()["peak_bytes"], DEVICE)
        for program in programs.values():
            program.stdin.close()
            self.assertEqual(program.wait(timeout=harness.DEADLINE_S), 0)
        harness.wait_until(lambda: not self.machine.ps(), what="the shares' end")


if __name__ == "__main__":
    unittest.main()
