"""A program that is stopped (Ctrl-Z, a debugger, `docker pause`) while it wants its GPU: real
processes, on the slowed-down clock."""
import os
import signal
import unittest

import pytest

import harness

pytestmark = pytest.mark.pairs

DILATION = 16


class Stopped(harness.MachineTestCase):
    MACHINE_TOML = f'dilation = {DILATION}\ndevices = [{{ context_memory = "64MiB" }}]\n'

    def setUp(self):
        super().setUp()
        self.machine.start_agent("--dilation", str(DILATION))

    def begin(self, name, *options):
        load = [harness.GPULOAD, "--kernels", 10 ** 6, "--kernel-us", 1000, "--per-sync", 16,
                "--dilation", DILATION]
        self.machine.start(self.machine.command(["--name", name, "--memory", "1GiB", *options],
                                                load))
        harness.wait_until(lambda: self.on(name) and self.on(name)["busy_time_ns"] > 0,
                           what=f"{name} to have run something")
        return self.machine.share(name)["members"][0]["pid"]

    def on(self, name):
        share = self.machine.share(name)
        return share["devices"][0] if share else None

    def check(self, pid, name, other):
        """Another has all of the device while `name` is stopped, and `name` what it had after."""
        os.kill(pid, signal.SIGSTOP)
        harness.wait_until(lambda: self.on(name)["throttle_reasons"] == ["does_not_answer"],
                           what="that to be said")
        charged_ns = self.on(name)["device_time_ns"]
        busy_ns = self.on(other)["busy_time_ns"]
        harness.wait_until(lambda: self.on(other)["busy_time_ns"] > busy_ns + 100_000_000,
                           what="a tenth of a second of the GPU's time")
        harness.wait_until(lambda: self.on(other)["achieved"] > 0.95,
                           what=f"{other} to have what {name} does not use")
        self.assertLess(self.on(name)["device_time_ns"] - charged_ns, 5_000_000)
        os.kill(pid, signal.SIGCONT)

    def test_others_have_what_it_does_not_use(self):
        first = self.begin("a", "--compute", "0.9")
        self.begin("b", "--compute", "0.1")
        self.check(first, "a", "b")
        harness.wait_until(lambda: self.on("a")["achieved"] > 0.85, what="a to have its request")

    def test_of_the_highest_priority(self):
        self.begin("b")
        first = self.begin("a", "--priority", "5")
        self.check(first, "a", "b")
        harness.wait_until(lambda: self.on("a")["achieved"] > 0.95, what="a to have all of it")

    def test_of_a_share_with_a_limit(self):
        first = self.begin("a", "--compute", "0.3", "--compute-limit", "0.3")
        self.begin("b")
        self.check(first, "a", "b")
        harness.wait_until(lambda: self.on("a")["achieved"] > 0.25, what="a to have its part")


if __name__ == "__main__":
    unittest.main()
