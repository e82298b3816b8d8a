"""64 members begin at once: what prorata adds to cuInit of each."""
import os
import statistics
import unittest

import pytest

import harness
import mounted_share
from unmet import unmet

pytestmark = pytest.mark.alone

PROGRAM = harness.BUILD / "tests" / "start_together"
MEMBERS = 64
ROUNDS = 30
BAR_US = 5000
SLOW = 1.5  # a round whose programs took the processors so many times as long as those of the middle round
SLOW_MAX = ROUNDS // 5


def without_slow(bare, shared):
    """The pairs of rounds without those, SLOW_MAX at most, in which the processors were slower, and how many these are.

    The programs of all rounds do the same work. For a tenth of a second at a time this machine's processors have taken
    two to three times as long for it, with a share or without, and for each instruction alike; then the last of 64 that
    share two of them waits for all others. More such rounds than SLOW_MAX are ours and stay.
    """
    usual = [statistics.median(worked for _, worked in rounds) for rounds in (bare, shared)]
    times = [max(b[1] / usual[0], s[1] / usual[1]) for b, s in zip(bare, shared)]
    slow = sorted((i for i, ratio in enumerate(times) if ratio > SLOW), key=times.__getitem__)[-SLOW_MAX:]
    kept = [i for i in range(len(times)) if i not in slow]
    return [bare[i][0] for i in kept], [shared[i][0] for i in kept], len(slow)


class Case(harness.MachineTestCase):
    def setUp(self):
        super().setUp()
        self.machine.start_agent("--cdi-dir", self.machine.folder / "cdi")
        status, _, err = self.machine.call(
            [harness.PRORATA, "create", "all", "--memory", "8GiB", "--any-container"])
        self.assertEqual(status, 0, err)

    def round(self, command, environment):
        """What cuInit took each of the programs, and all of them together of the processors, in microseconds."""
        begin_read, begin_write = os.pipe()
        end_read, end_write = os.pipe()
        members = [self.machine.start(["bash", "-c", f'exec "$@" 3<&{end_read}', "bash", *command],
                                      environment, stdin=begin_read, pass_fds=(end_read,))
                   for _ in range(MEMBERS)]
        os.close(begin_read)
        os.close(end_read)
        for member in members:
            self.assertEqual(harness.read_line(member), "ready\n")
        os.close(begin_write)
        took, worked = [], []
        for member in members:
            result, took_us, worked_us = harness.read_line(member).split()
            self.assertEqual(result, "0")
            took.append(float(took_us))
            worked.append(float(worked_us))
        os.close(end_write)
        for member in members:
            self.assertEqual(member.wait(harness.DEADLINE_S), 0)
        return took, sum(worked)

    def measure(self, command, environment, *arguments):
        """(in the worst round, of the worst rank in the mean of all rounds, both in words): what a share adds."""
        bare, shared = [], []
        for _ in range(ROUNDS + SLOW_MAX):
            bare.append(self.round([PROGRAM, *arguments], self.machine.bare_environment()))
            shared.append(self.round(command([PROGRAM, *arguments]), environment))
        bare, shared, slow = without_slow(bare, shared)
        # Of the first that was done, of the second, and so on: each of 64 in the mean of the rounds. One round says
        # little: of two without prorata the last is up to 8 ms earlier or 4 ms later (docs/reports/call-costs.md).
        added = [statistics.mean(later) - statistics.mean(sooner)
                 for sooner, later in zip(zip(*map(sorted, bare)), zip(*map(sorted, shared)))]  # fmt: skip
        worst = max(max(s) - max(b) for s, b in zip(shared, bare))
        text = (f"cuInit of {MEMBERS} at once, in the mean of {len(bare)} rounds: the middle one takes "
                f"{added[MEMBERS // 2]:.0f} us more, the last {added[-1]:.0f}, and none more than {max(added):.0f}; the "
                f"last of one round up to {worst:.0f} us more than that of the round before; left out: {slow} in which the machine was slow")
        print(text)
        return worst, max(added), text

    def in_container(self):
        if reason := mounted_share.why_not():
            self.skipTest(reason)
        return self.measure(mounted_share.command_in(self, "all"), {"LD_LIBRARY_PATH": str(harness.LIB_DIR)})

    def preloaded(self, *arguments):
        return self.measure(lambda program: self.machine.command(["--name", "all"], program), {}, *arguments)


# No quiet.Watch: two processors on which 64 programs begin at once are not quiet, whoever else is there.
class StartTogether(Case):
    """With the simulated driver as it is: its cuInit takes 0.3 ms of a processor, and waits for nothing."""

    @unmet("the last of 64 takes 9 to 18 ms more in the worst round; each 4 to 6 in the mean of all")
    def test_in_a_container_each_of_64_is_late_by_five_milliseconds_at_most(self):
        worst, _, text = self.in_container()
        self.assertLessEqual(worst, BAR_US, text)

    # Preloaded into programs of all kinds, the library loads the driver in cuInit, where the program's loader did it
    # before.
    @unmet("the last of 64 takes 12 to 24 ms more in the worst round; each up to 14 in the mean of all")
    def test_preloaded_each_of_64_is_late_by_five_milliseconds_at_most(self):
        worst, _, text = self.preloaded()
        self.assertLessEqual(worst, BAR_US, text)


class BesideADriverThatTakesItsTime(Case):
    """As on a GPU: the agent answers while the driver begins. A tenth of what docs/reference/simulated-gpu.md quotes."""

    MACHINE_TOML = "init_ms = 50\n"

    def test_in_a_container_each_rank_of_64_is_late_by_five_milliseconds_at_most_in_the_mean(self):
        _, rank, text = self.in_container()
        self.assertLessEqual(rank, BAR_US, text)

    # In cuInit alone the last is up to 7 ms later: what the program's loader did before is part of it.
    def test_preloaded_each_rank_of_64_has_loaded_and_begun_five_milliseconds_late_at_most_in_the_mean(self):
        _, rank, text = self.preloaded("load")
        self.assertLessEqual(rank, BAR_US, text)


if __name__ == "__main__":
    unittest.main()
