"""With prorata a program does what it does without: the same results, in the same order of effects,
with the same overlap of its kernels; and what it is charged is what the device says it used.
"""
import json
import pathlib
import subprocess
import sys
import time

import harness
import pytest
import quiet

pytestmark = pytest.mark.pairs

PROGRAM = pathlib.Path(__file__).resolve().parent / "program.py"
KERNELS = harness.BUILD / "tests" / "conformance_kernels.so"
DILATION = 4
OVERLAP = 0.1         # of the kernels' time
CHARGED = 0.02        # of what the device says
CHARGED_LEAST_NS = 200_000  # events stand a few microseconds beside what they measure


class OrderCase(harness.MachineTestCase):
    # Copies that take long by the model and little of this machine's time, which holds streams up;
    # for the same reason the clock is slowed down.
    MACHINE_TOML = f"dilation = {DILATION}\n[[devices]]\nd2d_gb_per_s = 0.05\n"

    DEVICES = 1

    def command(self, scenario, *more):
        return [sys.executable, PROGRAM, scenario, KERNELS, *more]

    def without(self, scenario):
        status, out, err = self.machine.call(self.command(scenario), harness.DEADLINE_S,
                                             self.machine.bare_environment())
        self.assertEqual(status, 0, out + err)
        return json.loads(out)

    def on_a_share(self, scenario, *options):
        """(its result, device time charged, device time by the device's own account)."""
        self.machine.start_agent("--dilation", str(DILATION))
        process = self.machine.start(
            self.machine.command(["--name", "a", "--memory", "4GiB", *options],
                                 self.command(scenario, "--stay")), stdin=subprocess.PIPE)
        result = json.loads(harness.read_line(process))
        used_ns = sum(self.used_ns(device) for device in range(self.DEVICES))
        # The helper harvests and the agent looks, now and then.
        charged_ns = self.settled(lambda: sum(
            device["device_time_ns"] for device in self.machine.share("a")["devices"]))
        self.assertIsNone(process.poll())
        process.communicate("", timeout=harness.DEADLINE_S)
        return result, charged_ns, used_ns

    def used_ns(self, device):
        return sum(self.machine.usage(device)["processes"].values())

    @staticmethod
    def settled(read):
        """The value when it has not changed for half a second."""
        value, since = read(), time.monotonic()
        while time.monotonic() - since < 0.5:
            if (now := read()) != value:
                value, since = now, time.monotonic()
        return value

    def check(self, scenario, *options, charged=CHARGED):
        without = self.without(scenario)
        with quiet.Watch() as watch:
            result, charged_ns, used_ns = self.on_a_share(scenario, *options)
        print(scenario, without, result, charged_ns, used_ns)
        self.assertEqual(result["order"], without["order"])
        self.assertLessEqual(abs(result["overlap"] - without["overlap"]), OVERLAP,
                             (result, without))
        if charged is None:
            return
        # What is not proven idle is charged: a gap too much, never too little. What members publish
        # may be half a millisecond old.
        allowed_ns = used_ns * charged + CHARGED_LEAST_NS + 500_000
        watch.judge(self, used_ns - charged_ns <= allowed_ns,
                    f"charged {charged_ns} ns, used {used_ns} ns")


class Order(OrderCase):
    def test_streams_joined_by_events(self):
        self.check("streams")

    def test_capture_global(self):
        self.check("capture-global")

    def test_capture_thread_local(self):
        self.check("capture-thread-local")

    def test_capture_relaxed(self):
        self.check("capture-relaxed")

    def test_more_work_behind_a_wait_than_the_backlog_holds(self):
        self.check("wait-value")

    def test_launches_behind_a_wait_that_their_own_thread_ends(self):
        """Nothing but the lease is waited for, and it comes, whatever stands behind the wait."""
        self.machine.start_agent("--dilation", str(DILATION))
        for number, kernel_us in ((30, 2000), (2000, 20)):
            command = self.command("self-release", str(number), str(kernel_us))
            for options in ((), ("--compute-limit", "0.3"), ("--compute-limit", "0.1")):
                for _ in range(2):
                    status, out, err = self.machine.call(
                        self.machine.command(["--memory", "4GiB", *options], command))
                    self.assertEqual(status, 0, out + err)
                    self.assertEqual(json.loads(out)["order"], [6 * number])

    def test_work_behind_a_host_function(self):
        self.check("host-function")

    def test_polling(self):
        self.check("polling")

    def test_copies_and_fills_are_charged(self):
        self.check("copies")

    def test_boxes_arrays_and_batches_are_charged(self):
        self.check("boxes")

    def test_several_contexts_and_the_other_ones_stream(self):
        # Events tell wall time: what the device takes to switch between the two is in it, and, once
        # for as long as they have work, how late the helper looks.
        self.check("contexts", charged=0.15)


class TwoDevices(OrderCase):
    MACHINE_TOML = f"""
dilation = {DILATION}
[[devices]]
d2d_gb_per_s = 0.05
[[devices]]
d2d_gb_per_s = 0.05
[[links]]
devices = [0, 1]
type = "nvlink"
"""
    DEVICES = 2

    def test_copies_to_a_peer_are_not(self):
        self.check("peers", "--gpu", "0,1")
