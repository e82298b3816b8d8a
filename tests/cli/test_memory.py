"""The memory of a share, judged by the device itself (NVML)."""
import json
import os
import random
import signal
import subprocess
import time
import unittest

import pytest

import harness
from harness import GIB, MIB

pytestmark = [pytest.mark.gpu, pytest.mark.asan_ubsan, pytest.mark.tsan]

STEP = 128 * MIB
FILL = ["--allocate", "128MiB", "--until-refused"]


class UntilRefused(harness.MachineTestCase):
    """A program asks for 128 MiB at a time until refused."""

    def setUp(self):
        super().setUp()
        self.machine.start_agent()
        self.nvml = harness.Nvml(self.machine)
        self.addCleanup(self.nvml.close)

    def start_filling(self, name):
        process = self.machine.start_load(["--name", name, "--memory", "1GiB"],
                                          [*FILL, "--verify", "--hold", "600", "--announce"])
        return process, harness.read_event(process, "allocated")

    def check_full(self, name, event):
        share = self.machine.share(name)
        overhead = share["overhead_bytes"]
        self.assertGreater(overhead, 0)
        self.assertEqual(share["memory_limit_bytes"], GIB)
        self.assertEqual(event["refused"], "CUDA_ERROR_OUT_OF_MEMORY")
        self.assertEqual(event["allocated_bytes"], (GIB - overhead) // STEP * STEP)
        self.assertEqual(share["used_bytes"], event["allocated_bytes"] + overhead)
        # What the program sees is its share.
        self.assertEqual(event["memory_held"]["total"], GIB)
        self.assertEqual(event["memory_held"]["device_total"], GIB)
        self.assertEqual(event["memory_held"]["free"], GIB - share["used_bytes"])
        # And the device agrees with what `ps` says.
        used = self.nvml.processes()[share["members"][0]["pid"]]
        self.assertEqual(used, share["used_bytes"])
        self.assertLessEqual(used, GIB)

    def test_gets_its_limit_less_the_overhead(self):
        _, event = self.start_filling("one")
        self.check_full("one", event)

    def test_three_fit_beside_each_other(self):
        events = {name: self.start_filling(name)[1] for name in ("one", "two", "three")}
        for name, event in events.items():
            self.check_full(name, event)

    def test_without_prorata_the_first_takes_the_whole_device(self):
        total, free, _ = self.nvml.memory()
        alone = self.machine.bare_json(FILL)
        if harness.REAL_GPU:  # a driver keeps half a GiB for itself, which NVML counts as the device's
            self.assertLessEqual(alone["memory"]["total"], total)
            self.assertGreater(alone["memory"]["total"], total - GIB)
        else:
            self.assertEqual(alone["memory"]["total"], total)
        self.assertGreater(alone["allocated_bytes"], free - GIB)
        self.assertEqual(alone["refused"], "CUDA_ERROR_OUT_OF_MEMORY")

    def test_every_allocator_is_held(self):
        for allocator in ("plain", "async", "managed", "vmm", "pitch", "array"):
            with self.subTest(allocator=allocator):
                process = self.machine.start_load(
                    ["--name", allocator, "--memory", "1GiB"],
                    ["--allocator", allocator, *FILL, "--hold", "600", "--announce"])
                event = harness.read_event(process, "allocated")
                self.assertEqual(event["refused"], "CUDA_ERROR_OUT_OF_MEMORY")
                share = self.machine.share(allocator)
                used = self.nvml.processes()[share["members"][0]["pid"]]
                self.assertLessEqual(used, GIB)
                # A GPU's NVML shows managed memory where it was touched last.
                if allocator != "managed" or not harness.REAL_GPU:
                    self.assertGreater(used, GIB - 2 * STEP)
                process.terminate()
                process.wait()

    def test_a_mapping_whose_handle_was_released_still_counts(self):
        # Released handles gave the charge back while their mappings held the memory, so the whole
        # device was there for the taking.
        for more in ([], ["--again"]):
            with self.subTest(more=more):
                name = "-".join(["released", *more]).replace("--", "")
                process = self.machine.start_load(
                    ["--name", name, "--memory", "1GiB"],
                    ["--allocator", "vmm-released", *FILL, "--verify", *more, "--hold", "600",
                     "--announce"])
                self.check_full(name, harness.read_event(process, "allocated"))
                process.terminate()
                process.wait()

    def test_a_share_without_a_limit_has_all_that_is_free(self):
        with_one = self.machine.start_load(["--name", "first", "--memory", "4GiB"],
                                           ["--hold", "600", "--announce", "--allocate", "1MiB"])
        harness.read_event(with_one, "allocated")
        gpu = self.machine.gpus()[0]
        report = self.machine.run_json(["--name", "rest"], ["--allocate", "1MiB"])
        left = gpu["total_bytes"] - 4 * GIB
        self.assertLessEqual(report["memory"]["total"], left)
        self.assertGreater(report["memory"]["total"], left - GIB)


class ManyProcesses(harness.MachineTestCase):
    """16 processes x 4 threads allocate and free at random on one share."""

    PROCESSES, THREADS = 16, 4
    LIMIT = 10 * GIB

    def setUp(self):
        super().setUp()
        self.machine.start_agent()
        self.nvml = harness.Nvml(self.machine)
        self.addCleanup(self.nvml.close)
        self.idle_bytes = self.nvml.memory()[2]  # a GPU's driver keeps some for itself: 480 MiB on an H100
        self.seed = int(os.environ.get("PRORATA_TEST_SEED", time.time()))
        print(f"seed: PRORATA_TEST_SEED={self.seed}")

    def start_stress(self):
        """All members have their context before any allocates: a share that is full refuses a
        context too."""
        begin = self.machine.folder / "begin"
        script = (f"for i in $(seq {self.PROCESSES}); do {harness.GPULOAD} --stress "
                  f"--threads {self.THREADS} --stress-max 256MiB --seconds 600 --wait-for {begin} "
                  f"--seed $(({self.seed} + i)) > /dev/null & done; echo on; read x; "
                  f"exec {harness.GPULOAD} --allocate 16MiB --until-refused")
        process = self.machine.start(
            self.machine.command(["--name", "s", "--memory", str(self.LIMIT)],
                                 ["bash", "-c", script]), stdin=subprocess.PIPE)
        self.assertEqual(harness.read_line(process), "on\n")
        pids = harness.wait_until(self.members_with_context, what="all members")
        begin.touch()
        return process, pids

    def watch(self):
        peak = [0]

        def sample():
            used = self.nvml.memory()[2] - self.idle_bytes
            peak[0] = max(peak[0], used)
            assert used <= self.LIMIT, f"{used - self.LIMIT} bytes above the limit"

        watcher = harness.Watcher(sample)
        watcher.start()
        return watcher, peak

    def members_with_context(self):
        """The pids of all members, once each has been charged for its context."""
        members = [m["pid"] for m in self.machine.share("s")["members"] if m["used_bytes"] > 0]
        return len(members) == self.PROCESSES and members

    def members(self):
        share = self.machine.share("s")
        return [member["pid"] for member in share["members"]] if share else []

    def test_never_above_the_limit_and_back_at_zero_after_kills(self):
        watcher, peak = self.watch()
        process, pids = self.start_stress()
        rng = random.Random(self.seed)
        harness.wait_until(lambda: peak[0] > self.LIMIT * 0.9, what="use near the limit")
        harness.wait_until(lambda: watcher.samples > 100 or watcher.error, what="enough looks")
        rng.shuffle(pids)
        for pid in pids:
            time.sleep(rng.uniform(0, 0.2))
            os.kill(pid, signal.SIGKILL)
        harness.wait_until(lambda: not any(map(harness.alive, pids)), what="the deaths")
        harness.wait_until(lambda: self.machine.share("s")["used_bytes"] == 0,
                           what="a ledger at zero")
        self.assertEqual(self.members(), [])
        # A new process gets the whole share.
        out, err = process.communicate("go\n", timeout=harness.DEADLINE_S)
        watcher.stop()
        report = json.loads(out.splitlines()[-1])
        overhead = self.LIMIT - report["memory"]["free"]
        self.assertGreater(report["allocated_bytes"], self.LIMIT - overhead - 17 * MIB, err)
        self.assertEqual(report["refused"], "CUDA_ERROR_OUT_OF_MEMORY")

    def test_agent_killed_under_load(self):
        watcher, peak = self.watch()
        process, pids = self.start_stress()
        before = self.machine.promises()
        harness.wait_until(lambda: peak[0] > self.LIMIT * 0.9, what="use near the limit")
        for _ in range(3):
            self.machine.kill_agent()
            time.sleep(0.5)  # the programs go on with nobody there
            self.assertTrue(all(map(harness.alive, pids)))
            self.machine.start_agent()
            harness.wait_until(lambda: sorted(self.members()) == sorted(pids),
                               what="the members' return")
        self.assertEqual(before, self.machine.promises())
        self.assertTrue(all(map(harness.alive, pids)))
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        harness.wait_until(lambda: not self.members(), what="the members' end")
        harness.wait_until(lambda: self.machine.share("s")["used_bytes"] == 0,
                           what="a ledger at zero")
        out, err = process.communicate("go\n", timeout=harness.DEADLINE_S)
        watcher.stop()
        self.assertEqual(json.loads(out.splitlines()[-1])["refused"], "CUDA_ERROR_OUT_OF_MEMORY",
                         err)


if __name__ == "__main__":
    unittest.main()
