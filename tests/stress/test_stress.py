"""64 threads in 8 processes of one share allocate in every way there is; the device is the judge.

What the simulated GPU gives out is counted twice: by a watcher who asks NVML as fast as it can, and
by the machine itself, whose high-water mark misses nothing in between.

    PRORATA_STRESS_SECONDS=60 PRORATA_TEST_SEED=7 build/venv-pytest/bin/pytest tests/stress/test_stress.py
"""
import json
import os
import random
import signal
import subprocess
import time
import unittest

import harness
from harness import GIB, MIB

MEMORY_STRESS = harness.BUILD / "tests" / "memory_stress"
SECONDS = float(os.environ.get("PRORATA_STRESS_SECONDS", 6))
LIMIT = 2 * GIB
PROCESSES, THREADS = 8, 8
# Those that are charged before the driver is called; of code, the variables (here nothing else takes
# memory, docs/reference/memory.md). Not `vmm_shared` and `vmm_import`: physical memory lives on in a descriptor that lies unread in a socket, when no process
# has it that could be charged.
KINDS = os.environ.get("PRORATA_STRESS_KINDS", "plain,pitched,managed,array,mipmap,async,pool,vmm,"
                       "context,graph,module,ipc,ipc_import,green").split(",")


@unittest.skipIf(harness.REAL_GPU, "its judge is the simulated machine's own account")
class Stress(harness.MachineTestCase):
    MACHINE_TOML = """
[[devices]]
memory = "8GiB"
context_memory = "48MiB"
"""

    def setUp(self):
        super().setUp()
        self.machine.start_agent()
        self.nvml = harness.Nvml(self.machine)
        self.addCleanup(self.nvml.close)
        self.seed = int(os.environ.get("PRORATA_TEST_SEED", time.time()))
        self.random = random.Random(self.seed)
        print(f"seed: PRORATA_TEST_SEED={self.seed}")
        self.most = 0

    def begin(self):
        """The stress, when all its processes have begun, and who watches the device meanwhile."""
        def sample():
            used = self.nvml.memory()[2]
            self.most = max(self.most, used)
            assert used <= LIMIT, f"{used - LIMIT} bytes above the limit"

        watcher = harness.Watcher(sample, step_s=0)
        watcher.start()
        process = self.machine.start(self.machine.command(
            ["--name", "s", "--memory", str(LIMIT)],
            [MEMORY_STRESS, "--processes", PROCESSES, "--threads", THREADS, "--seconds", 3600,
             "--seed", self.seed, "--kinds", ",".join(KINDS), "--most", 64 * MIB]),
            stdin=subprocess.PIPE)
        self.assertEqual(json.loads(harness.read_line(process))["event"], "begun")
        return process, watcher

    def finish(self, process, watcher):
        """Its report, once all that it says and all that the device says has been judged."""
        process.terminate()  # which it takes for the end of its time
        report = json.loads(harness.read_line(process, 600))
        print(report)
        # Every process freed what it had and is gone; the share is still there.
        harness.wait_until(lambda: self.machine.share("s")["used_bytes"] == 0,
                           what="a ledger at zero")
        self.assertEqual(self.nvml.memory()[2], 0)
        self.assertEqual(self.machine.share("s")["members"], [])
        watcher.stop()
        self.assertEqual((report["errors"], report["crashed"]), (0, []), report["first_error"])
        self.assertLessEqual(self.machine.usage()["peak_bytes"], LIMIT)
        # It was a stress: the share was full, and all kinds were made.
        self.assertGreater(sum(report["refused"].values()), 0)
        self.assertEqual([kind for kind, made in report["made"].items() if not made], [])
        process.stdin.close()
        self.assertEqual(process.wait(timeout=harness.DEADLINE_S), 0)
        harness.wait_until(lambda: not self.machine.ps(), what="the share's end")
        self.check_room()
        return report

    def check_room(self):
        """A program gets a whole share of the same size."""
        report = self.machine.run_json(["--memory", str(LIMIT)],
                                       ["--allocate", "16MiB", "--until-refused"])
        self.assertGreater(report["allocated_bytes"], LIMIT - (48 + 17) * MIB)
        self.assertEqual(report["refused"], "CUDA_ERROR_OUT_OF_MEMORY")

    def for_a_while(self, process, watcher, act=lambda: 0, least=0):
        """Calls act() at random moments until it has been a stress: so many seconds, so many acts that
        did something, a share that was half used (of what is charged, not all is used at once), and
        a watcher who has looked."""
        begin, done = time.monotonic(), 0

        def enough():
            return (done >= least and self.machine.usage()["peak_bytes"] > LIMIT // 2 and
                    watcher.samples > 100)
        while time.monotonic() < begin + SECONDS or not enough():
            self.assertIsNone(process.poll(), "it ended by itself")
            self.assertIsNone(watcher.error)
            self.assertLess(time.monotonic(), begin + SECONDS + 600,
                            f"{done} acts, {self.machine.usage()['peak_bytes']} bytes at most, "
                            f"{watcher.samples} looks")
            time.sleep(self.random.uniform(0, 0.4))
            done += act()

    def test_never_above_the_limit_and_nothing_left(self):
        process, watcher = self.begin()
        self.for_a_while(process, watcher)
        self.finish(process, watcher)

    def test_processes_killed_at_random(self):
        process, watcher = self.begin()

        def kill():
            pids = sorted(self.nvml.processes())
            if not pids:
                return 0
            try:
                os.kill(self.random.choice(pids), signal.SIGKILL)
            except ProcessLookupError:  # its end was on its way
                return 0
            return 1

        self.for_a_while(process, watcher, kill, least=3)
        report = self.finish(process, watcher)
        self.assertGreater(report["killed"], 0)

    def test_agents_killed_at_random(self):
        process, watcher = self.begin()

        def kill():
            self.machine.kill_agent()
            time.sleep(self.random.uniform(0, 0.5))  # the programs go on with nobody there
            self.machine.start_agent()
            return 1

        self.for_a_while(process, watcher, kill, least=2)
        report = self.finish(process, watcher)
        self.assertEqual(report["killed"], 0)


if __name__ == "__main__":
    unittest.main()
