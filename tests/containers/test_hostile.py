"""A container against its own share and against its neighbour's."""
import pathlib
import subprocess
import time
import unittest

import harness
import podman
import quiet
import pytest
from harness import GIB

pytestmark = pytest.mark.alone

PYTHON = pathlib.Path("/usr/bin/python3").resolve()
LIBRARY = pathlib.Path("/usr/lib") / PYTHON.name
SCRIPT = harness.ROOT / "tests" / "containers" / "hostile.py"
SECONDS = 3  # of an attack, and of the time before it


class Hostile(podman.PodmanTestCase):
    PROGRAMS = [(PYTHON, "usr/bin/python3", 0o755)]

    def start_neighbour(self):
        # It queues far ahead, so that it needs hardly any of a processor, which an attack takes from it as any
        # program does.
        share = self.create("neighbour", "--memory", "2GiB", "--compute", "0.5")
        process = self.podman.start(
            *self.podman.run_arguments(self.named("neighbour"), share, "--rm"), "gpuload",
            "--allocate", "128MiB", "--count", "8", "--per-sync", "500", "--seconds", "600", "--announce")
        harness.read_event(process, "kernels")
        return share, process

    def test_it_is_refused_and_its_neighbour_does_not_notice(self):
        neighbour, process = self.start_neighbour()
        share = self.create("hostile", "--memory", "1GiB", "--compute", "0.2")
        attack = self.start_attack(share)
        before = self.machine.share(neighbour)
        # All that is here for the test: what else runs is noise.
        pids = [self.podman.pid_of(self.named(name)) for name in ("neighbour", "hostile")]
        with quiet.Watch([*pids, *self.machine.agent_pids()]) as watch:
            control = self.part_of_time(lambda: time.sleep(SECONDS))
            attacked = self.part_of_time(lambda: self.let_it_attack(attack))
        after = self.machine.share(neighbour)
        attack.communicate("", timeout=harness.DEADLINE_S)
        for name in ("memory_limit_bytes", "used_bytes", "granted_bytes", "refusals",
                     "compute_request"):
            self.assertEqual(after[name], before[name], name)
        self.assertEqual(len(after["members"]), 1)
        self.assertIsNone(process.poll())
        watch.judge(self, attacked > control - 0.01,
                    f"the neighbour got {attacked:.3f} of the time, and {control:.3f} before")

    def part_of_time(self, during):
        """For what part of the time the device runs kernels meanwhile: those of the neighbour. By its own account, for
        what a share was charged is up to 0.1 s old."""
        before = self.machine.usage()
        during()
        return self.machine.busy_since(before)

    def start_attack(self, share):
        """A container that waits for a line to begin."""
        attack = self.podman.start(
            *self.podman.run_arguments(
                self.named("hostile"), share, "--rm", "--interactive", "--ulimit", "nofile=4096:4096",
                "--ulimit", "nproc=1024:1024", "--volume", f"{LIBRARY}:{LIBRARY}:ro",
                "--volume", f"{SCRIPT}:/hostile.py:ro"),
            "python3", "-S", "-E", "/hostile.py", str(SECONDS), stdin=subprocess.PIPE)
        harness.read_event(attack, "ready")
        return attack

    def let_it_attack(self, attack):
        attack.stdin.write("\n")
        attack.stdin.flush()
        done = harness.read_event(attack, "done")
        self.assertEqual(done["found"], [])
        self.assertGreater(done["rounds"], 1)
        self.assertGreater(min(done["connected"]), 0)

    def test_as_many_members_as_there_can_be(self):
        neighbour, _ = self.start_neighbour()
        before = self.machine.share(neighbour)
        share = self.create("crowd", "--memory", "8GiB")
        box = self.named("crowd")
        self.podman.call(*self.podman.run_arguments(box, share, "--detach", "--rm"), "sleep", "600")
        crowd = [self.podman.start("exec", box, "gpuload", "--allocate", "1MiB", "--hold", "600",
                                   "--announce") for _ in range(20)]
        for process in crowd:
            try:
                harness.read_event(process, "allocated")
            except AssertionError:
                continue  # its share is full: contexts take memory, too
        after = self.machine.share(neighbour)
        self.assertEqual(after["used_bytes"], before["used_bytes"])
        self.assertLessEqual(self.machine.share(share)["used_bytes"], 8 * GIB)
        self.assertGreater(self.machine.share(share)["refusals"], 0)
        self.podman.call("kill", box)
        harness.wait_until(lambda: self.machine.share(share)["used_bytes"] == 0,
                           what="the memory's return")
        self.podman.run_json(self.named("next"), share, ["--allocate", "64MiB"])


if __name__ == "__main__":
    unittest.main()
