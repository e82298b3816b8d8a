"""64 members begin at once: what prorata adds to cuInit of each."""
import os
import pathlib
import statistics
import sys
import unittest

import pytest

import harness
import mounted_share
from unmet import unmet

pytestmark = pytest.mark.alone

PROGRAM = pathlib.Path(__file__).resolve().with_name("start_together.py")
MEMBERS = 64
# Each must keep the bar: that the median does is chance, 2.2 to 5.2 ms in runs on one machine.
ROUNDS = 15
BAR_US = 5000


class StartTogether(harness.MachineTestCase):
    def setUp(self):
        super().setUp()
        self.machine.start_agent("--cdi-dir", self.machine.folder / "cdi")
        status, _, err = self.machine.call(
            [harness.PRORATA, "create", "all", "--memory", "8GiB", "--any-container"])
        self.assertEqual(status, 0, err)

    def round(self, command, environment):
        """What cuInit took each of the programs, in microseconds."""
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
        took = []
        for member in members:
            result, took_us = harness.read_line(member).split()
            self.assertEqual(result, "0")
            took.append(float(took_us))
        os.close(end_write)
        for member in members:
            self.assertEqual(member.wait(harness.DEADLINE_S), 0)
        return took

    def check(self, command, environment):
        program = [sys.executable, PROGRAM]
        bare, shared = [], []
        for _ in range(ROUNDS):
            bare.append(self.round(program, self.machine.bare_environment()))
            shared.append(self.round(command(program), environment))
        median, last = (statistics.median(of(s) - of(b) for s, b in zip(shared, bare))
                        for of in (statistics.median, max))  # fmt: skip
        worst = max(max(s) - max(b) for s, b in zip(shared, bare))
        text = (f"cuInit of {MEMBERS} at once: {median:.0f} us more in the median, {last:.0f} us more for the last "
                f"(medians of {ROUNDS} rounds; in the worst of them {worst:.0f} us)")
        print(text)
        self.assertLessEqual(worst, BAR_US, text)

    # No quiet.Watch: two processors on which 64 programs begin at once are not quiet, whoever else is there.
    @unmet("the last of 64 takes 2.2 to 5.2 ms more in the median of 15 rounds, and more than 5 in some of them")
    def test_in_a_container_each_of_64_is_late_by_five_milliseconds_at_most(self):
        if reason := mounted_share.why_not():
            self.skipTest(reason)
        self.check(mounted_share.command_in(self, "all"), {"LD_LIBRARY_PATH": str(harness.LIB_DIR)})

    # Preloaded into programs of all kinds, the library loads the driver in cuInit, where the program's loader did it
    # before.
    @unmet("the last of 64 takes 6.0 to 11 ms more on two processors")
    def test_preloaded_each_of_64_is_late_by_five_milliseconds_at_most(self):
        self.check(lambda program: self.machine.command(["--name", "all"], program), {})


if __name__ == "__main__":
    unittest.main()
