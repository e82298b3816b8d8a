"""A program whose container has a processor quota: once that is used up, none of its threads runs for the rest of the
period. Here SIGSTOP and SIGCONT make one of a quarter, since a test may have no cgroup of its own."""
import signal
import threading
import unittest

import pytest

import harness
from test_liveness import DILATION, Case

pytestmark = pytest.mark.pairs

PERIOD_S = 0.1 * DILATION  # that of the kernel's scheduler, on the slowed-down clock
ON_PART = 0.25


class Quota(threading.Thread):
    """While it is entered, the program runs for a part of each period."""

    def __init__(self, program):
        super().__init__()
        self.program = program
        self.over = threading.Event()

    def run(self):
        while not self.over.wait(PERIOD_S * ON_PART):
            self.program.send_signal(signal.SIGSTOP)
            self.over.wait(PERIOD_S * (1 - ON_PART))
            self.program.send_signal(signal.SIGCONT)

    def __enter__(self):
        self.start()

    def __exit__(self, *_):
        self.over.set()
        self.join()


class ProcessorQuota(Case):
    def use_in_quota(self, *share_options):
        program = self.machine.start_load(
            ["--name", "a", *share_options],
            ["--seconds", 60, "--kernel-us", 1000, "--per-sync", 4, "--announce", "--dilation", DILATION])
        harness.read_event(program, "kernels")
        with Quota(program):
            charged_ns = self.machine.share("a")["devices"][0]["device_time_ns"]
            _, use = self.parts_over(10, [program])
            charged_ns = self.machine.share("a")["devices"][0]["device_time_ns"] - charged_ns
        charged = charged_ns * DILATION / 10e9
        print(f"used {use:.3f}, charged {charged:.3f}")
        program.kill()
        program.wait()
        return use, charged

    def test_the_time_in_which_it_does_not_run_is_not_charged(self):
        self.start_agent()
        use, charged = self.use_in_quota()
        self.assertGreater(use, 0.2)
        self.assertLess(charged, use + 0.2)
        use, _ = self.use_in_quota("--compute-limit", "0.3")
        self.assertGreater(use, 0.2, "what it can use is within its limit")
        for limit, delta in ((0.1, 0.03), (0.05, 0.015)):
            use, _ = self.use_in_quota("--compute-limit", str(limit))
            self.assertAlmostEqual(use, limit, delta=delta)


if __name__ == "__main__":
    unittest.main()
