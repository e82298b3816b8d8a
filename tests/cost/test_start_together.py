"""64 members begin at once: what prorata adds to cuInit of each."""
import os
import pathlib
import statistics
import sys
import unittest

import pytest

import harness
from unmet import unmet

pytestmark = pytest.mark.alone

PROGRAM = pathlib.Path(__file__).resolve().with_name("start_together.py")
MEMBERS = 64
ROUNDS = 5
BAR_US = 5000


class StartTogether(harness.MachineTestCase):
    def round(self, on_share):
        """What cuInit took each of them, in microseconds."""
        begin_read, begin_write = os.pipe()
        end_read, end_write = os.pipe()
        program = [sys.executable, PROGRAM]
        command = self.machine.command(["--name", "all"], program) if on_share else program
        environment = {} if on_share else self.machine.bare_environment()
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

    # A join takes the agent about 0.1 ms of a processor, one after another, and its member 0.33 ms more
    # than the driver alone: most of that is to load the driver, which a program without prorata did
    # before cuInit. So the last of 64 waits for the work of all. No quiet.Watch: two processors on which
    # 64 programs begin at once are not quiet, whoever else is there.
    @unmet("the median of 64 takes 3 to 6.5 ms more on two quiet processors, the last 10.6 to 14.8")
    def test_each_of_64_is_late_by_five_milliseconds_at_most(self):
        self.machine.start_agent("--cdi-dir", self.machine.folder / "cdi")
        status, _, err = self.machine.call([harness.PRORATA, "create", "all", "--memory", "8GiB"])
        self.assertEqual(status, 0, err)
        bare, shared = [], []
        for _ in range(ROUNDS):
            bare.append(self.round(False))
            shared.append(self.round(True))

        def added_us(of_64):
            return statistics.median(of_64(s) - of_64(b) for s, b in zip(shared, bare))

        text = (f"cuInit of {MEMBERS} at once: {added_us(statistics.median):.0f} us more in the median, "
                f"{added_us(max):.0f} us more for the last (medians of {ROUNDS} rounds)")
        print(text)
        self.assertLessEqual(added_us(max), BAR_US, text)


if __name__ == "__main__":
    unittest.main()
