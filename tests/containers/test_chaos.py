"""Many containers come and go in random order, some by SIGKILL, with the agent killed and restarted
among them: nothing is left over."""
import os
import pathlib
import random
import signal
import unittest

import pytest

import harness
import podman
from harness import GIB, MIB

CONTAINERS = int(os.environ.get("PRORATA_STORM_CONTAINERS", "50"))
AT_ONCE = 4


class Chaos(podman.PodmanTestCase):
    def start_container(self, name, share):
        process = self.podman.start(
            *self.podman.run_arguments(name, share, "--rm"), "gpuload", "--allocate", "64MiB",
            "--until-refused", "--hold", "600", "--announce")
        return process

    def end_container(self, random_source, name, process):
        how = random_source.choice(("stop", "kill", "init"))
        if how == "init":
            os.kill(self.podman.pid_of(name), signal.SIGKILL)
        elif how == "kill":
            self.podman.call("kill", "--signal", "KILL", name)
        else:
            self.podman.call("kill", "--signal", "TERM", name)
        process.communicate(timeout=harness.DEADLINE_S)

    def descriptors(self):
        agent = self.machine.agent_pids()[0]
        return len(list(pathlib.Path(f"/proc/{agent}/fd").iterdir()))

    @pytest.mark.long
    def test_nothing_is_left(self):
        seed = int(os.environ.get("PRORATA_TEST_SEED", random.randrange(1 << 30)))
        print(f"seed {seed} (PRORATA_TEST_SEED repeats it), {CONTAINERS} containers")
        source = random.Random(seed)
        before = self.descriptors()
        running = {}
        begun = 0
        while begun < CONTAINERS or running:
            chance = source.random()
            if begun < CONTAINERS and len(running) < AT_ONCE and (chance < 0.6 or not running):
                share = self.create(f"s{begun}", "--memory", "1GiB")
                name = self.named(f"c{begun}")
                running[name] = (share, self.start_container(name, share))
                held = harness.read_event(running[name][1], "allocated")
                self.assertEqual(held["allocated_bytes"], GIB - 512 * MIB)
                begun += 1
            elif chance < 0.75:
                self.restart_agent()
                self.assertEqual({s["name"] for s in self.machine.ps()},
                                 {share for share, _ in running.values()})
            elif running:
                name = source.choice(sorted(running))
                share, process = running.pop(name)
                if source.random() < 0.5:  # before its container, or after
                    self.prorata("rm", "-f", share)  # kills what is in the container
                    process.communicate(timeout=harness.DEADLINE_S)
                else:
                    self.end_container(source, name, process)
                    self.prorata("rm", share)
                harness.wait_until(lambda share=share: self.machine.share(share) is None,
                                   what=f"the end of {share}")
        self.assertEqual(self.machine.ps(), [])
        self.assertEqual(list((self.machine.runtime_dir / "shares").iterdir()), [])
        self.assertEqual([path.name for path in pathlib.Path("/var/run/cdi").iterdir()
                          if self.tag in path.name], [])
        mine = str(self.machine.runtime_dir)
        mounts = [line for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()
                  if mine in line]
        self.assertEqual(mounts, [])
        harness.wait_until(lambda: self.machine.gpus()[0]["used_bytes"] == 0,
                           what="the device's memory")
        # An agent that was restarted begins with as many as it has now.
        harness.wait_until(lambda: self.descriptors() <= before, what="the agent's descriptors")


if __name__ == "__main__":
    unittest.main()
