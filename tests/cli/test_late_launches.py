"""Launches that are long in the CUDA driver. A function's first launch may load its module, or compile it, for
seconds: nothing runs meanwhile, so others have the device and nobody is charged. A driver may also hang, with
its lock held, so that no other call of the program returns, those of prorata's library among them."""
import signal
import subprocess
import time

import pytest

import harness
from test_liveness import SIM_USAGE, Case

pytestmark = pytest.mark.pairs

LATE_S = 5
LAUNCH = 400  # of the first program
KERNEL_US = 1000


class LateCase(Case):
    """One program with such a launch, of several in its share."""
    KIND, SHARE = "late-launch", ("--compute", "0.5")

    def setUp(self):
        self.MACHINE_TOML = Case.MACHINE_TOML + f"""
[[faults]]
kind = "{self.KIND}"
nth_process = 1
launch = {LAUNCH}
for_ms = {LATE_S * 1000}
"""  # pylint: disable=invalid-name
        super().setUp()
        self.start_agent("--cdi-dir", self.machine.folder / "cdi")
        status, _, err = self.machine.call(
            [harness.PRORATA, "create", "late", "--memory", "4GiB", *self.SHARE])
        self.assertEqual(status, 0, err)
        self.usage = self.machine.start([SIM_USAGE], stdin=subprocess.PIPE)
        harness.read_line(self.usage)
        self.late = self.start_waiting("--name", "late")

    def start_waiting(self, *share_options):
        """A program that waits for each of its kernels, so that nothing is under way when it launches."""
        load = self.machine.start_load(share_options, [
            "--seconds", 60, "--kernel-us", KERNEL_US, "--per-sync", 1, "--announce", "--dilation", 4])
        harness.read_event(load, "kernels")
        return load

    def had_ns(self):
        return self.busy_ns(self.usage)[0][str(self.late.pid)]

    def is_late(self):
        """The device runs nothing of it for as long as 75 of its kernels take, by the device's clock."""
        processes, begun_ns = self.busy_ns(self.usage)
        had_ns = processes[str(self.late.pid)]
        now = harness.wait_until(lambda: self.device_after(begun_ns + 75 * KERNEL_US * 1000),
                                 what="the device's clock to go on")
        return now[str(self.late.pid)] == had_ns

    def device_after(self, when_ns):
        """What each process has had, once the device's clock is past that time."""
        processes, now_ns = self.busy_ns(self.usage)
        return processes if now_ns >= when_ns else None

    def await_late(self):
        harness.wait_until(self.is_late, what="a program whose launch does not return")

    def await_return(self):
        had_ns = self.had_ns()
        harness.wait_until(lambda: self.had_ns() > had_ns, what="the launch's return")


class LateLaunch(LateCase):
    def test_others_have_the_device_and_afterwards_each_has_its_part_at_once(self):
        other = self.start_busy("--name", "other", "--memory", "4GiB", "--compute", "0.5")
        self.await_late()
        parts, use = self.parts_over(2, [self.late, other])
        print("while it is late", parts, use)
        self.assertGreater(parts[1], 0.99)
        self.assertGreater(use, 0.95)
        self.await_return()
        parts, use = self.parts_over(3, [self.late, other])
        print("afterwards", parts, use)
        self.assertAlmostEqual(parts[1], 0.5, delta=0.04)  # the other does not wait for its kernels

    def test_another_program_of_its_share_goes_on(self):
        other = self.start_busy("--name", "other", "--memory", "4GiB", "--compute", "0.5")
        peer = self.start_busy("--name", "late")
        self.await_late()
        parts, use = self.parts_over(2, [self.late, peer, other])
        print("while it is late", parts, use)
        self.assertTrue(self.is_late(), "it was late for too short a time to be looked at")
        self.assertAlmostEqual(parts[1], 0.5, delta=0.03)
        self.assertAlmostEqual(parts[2], 0.5, delta=0.03)
        self.assertGreater(use, 0.9)


class HangingDriver(LateLaunch):
    KIND = "hang"

    def test_another_program_of_its_share_has_all_of_its_memory(self):
        self.await_late()
        report = self.machine.run_json(["--name", "late"], ["--kernels", 5, "--allocate", "2GiB"])
        self.assertEqual(report["allocated_bytes"], 2 * 1024 * harness.MIB)
        self.assertTrue(self.is_late(), "it hung for too short a time to be looked at")

    def test_killed_it_leaves_nothing(self):
        self.await_late()
        begun_s = time.monotonic()
        self.late.send_signal(signal.SIGKILL)
        self.late.wait()
        harness.wait_until(lambda: self.machine.share("late")["used_bytes"] == 0,
                           what="a share that holds nothing")
        self.assertLess(time.monotonic() - begun_s, 2)
        report = self.machine.run_json(["--name", "late"], ["--kernels", 5, "--allocate", "2GiB"])
        self.assertEqual(report["allocated_bytes"], 2 * 1024 * harness.MIB)


class LateLaunchOfASmallShare(LateCase):
    SHARE, OTHER = ("--compute", "0.1"), ("--compute", "0.9")

    def test_it_owes_nothing_for_that(self):
        if self.OTHER:
            self.start_busy("--name", "other", "--memory", "4GiB", *self.OTHER)
        self.await_late()
        self.await_return()
        _, use = self.parts_over(3, [self.late])
        print("afterwards", use)
        self.assertGreater(use, 0.08)


class LateLaunchWithinALimit(LateLaunchOfASmallShare):
    SHARE, OTHER = ("--compute-limit", "0.1"), ()


class LaunchesThatBlock(Case):
    """CUDA_LAUNCH_BLOCKING=1: a launch returns when its kernel has ended, and none is outstanding meanwhile."""
    MACHINE_TOML = ""

    def test_a_limit_holds(self):
        self.machine.start_agent()
        program = self.machine.start_load(
            ["--compute-limit", "0.2"], ["--seconds", 60, "--kernel-us", 500_000, "--announce"],
            environment={"CUDA_LAUNCH_BLOCKING": "1"})
        harness.read_event(program, "kernels")
        _, use = self.parts_over(12, [program])
        print("used", use)
        self.assertLess(use, 0.2 + 0.06, "a kernel more or less is 0.04")
        self.assertGreater(use, 0.2 - 0.06)
