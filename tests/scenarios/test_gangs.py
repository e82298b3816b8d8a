"""Two programs of two processes each, whose kernels on one GPU wait for those on the other, on the
same two GPUs: with real processes, on the slowed-down clock."""
import json
import sys
import unittest

import pytest

import harness

pytestmark = pytest.mark.pairs

DILATION = 16
KERNELS = 250   # of 1 ms, in each process: in all, each device has half a second of work
IDEAL_S = 2 * KERNELS * 0.001 * DILATION
MACHINE = f"""
dilation = {DILATION}
devices = [{{ context_memory = "64MiB" }}, {{ context_memory = "64MiB" }}]
"""
# A rank for each GPU, as torchrun starts them, each with options of its own.
JOB = """
import json, subprocess, sys
own, *load = sys.argv[1:]
ranks = [subprocess.Popen([*load, "--device", str(rank), *map(str, options)], stdout=subprocess.PIPE, text=True)
         for rank, options in enumerate(json.loads(own))]
for rank in ranks:
    print(rank.communicate()[0].splitlines()[-1])
sys.exit(any(rank.returncode for rank in ranks))
"""


class Gangs(harness.MachineTestCase):
    MACHINE_TOML = MACHINE

    def setUp(self):
        super().setUp()
        self.machine.start_agent("--dilation", str(DILATION))

    def begin(self, name, number, *options, first=(), kernel_us=1000, kernels=(KERNELS, KERNELS), every=(1, 1)):
        """A job; `first`: more options of its first rank."""
        load = [harness.GPULOAD, "--kernel-us", kernel_us, "--per-sync", 16, "--dilation", DILATION,
                "--collective-job", number, "--wait-for", self.machine.folder / "begin"]
        own = [["--kernels", kernels[rank], "--collective-every", every[rank], *(() if rank else first)]
               for rank in (0, 1)]
        return self.machine.start(self.machine.command(
            ["--name", name, "--gpu", "0,1", "--memory", "1GiB", *options],
            [sys.executable, "-c", JOB, json.dumps(own), *load]))

    def begin_beside(self):
        """A busy program on each GPU, beside a job that has begun; both go on at once."""
        load = ["--seconds", 1.5, "--kernel-us", 1000, "--per-sync", 16, "--dilation", DILATION,
                "--wait-for", self.machine.folder / "begin"]
        beside = [self.machine.start_load(["--name", f"beside-{gpu}", "--gpu", gpu, "--memory", "1GiB",
                                           "--compute", "0.5"], load) for gpu in "01"]
        harness.wait_until(
            lambda: all((share := self.machine.share(name)) and len(share["members"]) == members
                        for name, members in (("job", 2), ("beside-0", 1), ("beside-1", 1))),
            what="all programs in their shares")
        (self.machine.folder / "begin").touch()
        return beside

    def begin_third(self):
        """A program on GPU 1 alone, so that the two GPUs cannot agree by chance on whose turn it
        is: two that take turns alike on both never stall, and are no gangs."""
        load = [harness.GPULOAD, "--kernels", KERNELS // 2, "--kernel-us", 1500,
                "--per-sync", 4, "--dilation", DILATION,
                "--wait-for", self.machine.folder / "begin"]
        third = self.machine.start(self.machine.command(
            ["--name", "c", "--gpu", "1", "--memory", "1GiB", "--compute", "0.3"], load))
        harness.wait_until(lambda: (share := self.machine.share("c")) and share["members"],
                           what="the program on GPU 1")
        return third

    def run_two(self, *options):
        """(the longest wall time of a process, what `ps` said of the first while they ran)."""
        jobs = [self.begin(name, number, *options) for number, name in enumerate("ab", start=1)]
        harness.wait_until(
            lambda: all((share := self.machine.share(name)) and len(share["members"]) == 2
                        for name in "ab"), what="two processes in each share")
        (self.machine.folder / "begin").touch()
        walls, seen = [], None
        for job in jobs:
            while job.poll() is None:
                share = self.machine.share("a")
                seen = share if share and (not seen or share["runs_as_gang"]) else seen
                try:
                    job.wait(0.2)
                except harness.subprocess.TimeoutExpired:
                    pass
            out, err = job.communicate()
            self.assertEqual(job.returncode, 0, err)
            reports = [json.loads(line) for line in out.splitlines()]
            self.assertEqual([report["kernels"] for report in reports], [KERNELS] * 2)
            walls += [report["wall_s"] for report in reports]
        return max(walls), seen

    def test_one_whose_first_rank_is_busy_elsewhere_leaves_others_theirs(self):
        # It evaluates, or saves, after each synchronisation. The kernel of its other rank waits on GPU 1 meanwhile,
        # and half of that is another's: that one had 0.39.
        self.begin("job", 1, "--gang", "always", "--compute", "0.4", first=("--gap-us", 60_000))
        for program in self.begin_beside():
            out, err = program.communicate()
            self.assertEqual(program.returncode, 0, err)
            had = json.loads(out.splitlines()[-1])["kernels"] * 0.001 / 1.5
            self.assertGreaterEqual(had, (1 - 3 * 0.03) * 0.5)  # three times the simulation's tolerance

    def test_one_whose_ranks_do_not_launch_alike_keeps_its_request(self):
        job = self.begin("job", 1, "--gang", "always", "--compute", "0.4", kernel_us=2000, kernels=(150, 120),
                         every=(5, 4))
        self.begin_beside()
        out, err = job.communicate()
        self.assertEqual(job.returncode, 0, err)
        wall_s = max(json.loads(line)["wall_s"] for line in out.splitlines())
        self.assertLessEqual(wall_s, 150 * 0.002 * DILATION / ((1 - 3 * 0.03) * 0.4))

    def events(self):
        status, out, err = self.machine.call([harness.PRORATA, "events", "--all", "--no-follow",
                                              "--json"])
        self.assertEqual(status, 0, err)
        return [json.loads(line) for line in out.splitlines()]

    def test_asked_for_two_lose_little_to_each_other(self):
        # 97 % and more on a quiet machine; with leases of each GPU alone 14 %.
        wall_s, share = self.run_two("--gang", "always")
        self.assertTrue(share["runs_as_gang"])
        self.assertEqual(share["gang"], "always")
        self.assertLess(wall_s, IDEAL_S / 0.6)
        self.assertNotIn("gang_begun", [event["event"] for event in self.events()])

    def test_two_that_stall_become_gangs_and_it_is_told(self):
        # With requests: without any both hold their leases, and nothing stalls.
        third = self.begin_third()
        wall_s, share = self.run_two("--compute", "0.3")
        third.communicate()
        self.assertEqual(third.returncode, 0)
        self.assertEqual(share["gang"], "auto")
        begun = [event for event in self.events() if event["event"] == "gang_begun"]
        self.assertTrue(begun)
        self.assertIn("--gang always", begun[0]["detail"])
        self.assertLess(wall_s, IDEAL_S / 0.3)


if __name__ == "__main__":
    unittest.main()
