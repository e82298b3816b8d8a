"""Memory that a program of one share exports and one of another opens."""
import subprocess
import unittest

import pytest

import harness
from harness import MIB

pytestmark = [pytest.mark.limits, pytest.mark.asan_ubsan, pytest.mark.tsan]

PROGRAM = harness.BUILD / "tests" / "limits_suite"
NOT_PERMITTED = 800


class AcrossShares(harness.MachineTestCase):
    def setUp(self):
        super().setUp()
        self.machine.start_agent()

    def start(self, name, options, arguments):
        return self.machine.start(
            self.machine.command(["--name", name, "--memory", "2GiB", *options],
                                 [PROGRAM, *arguments]), stdin=subprocess.PIPE)

    def open_in(self, name, handle):
        process = self.start(name, [], ["--open", handle])
        result, charged = harness.read_line(process).split()
        return int(result), int(charged)

    def export(self, options=()):
        process = self.start("maker", options, ["--export"])
        return harness.read_line(process).strip()

    def test_another_share_is_refused(self):
        handle = self.export()
        self.assertEqual(self.open_in("other", handle), (NOT_PERMITTED, 0))
        # And the maker is as it was.
        self.assertEqual(self.machine.share("maker")["used_bytes"]
                         - self.machine.share("maker")["overhead_bytes"], 64 * MIB)

    def test_one_that_has_agreed_shares_and_both_pay(self):
        handle = self.export(["--share-memory-with", "third", "--share-memory-with", "other"])
        self.assertEqual(self.open_in("other", handle), (0, 64 * MIB))
        self.assertEqual(self.open_in("fourth", handle), (NOT_PERMITTED, 0))
        self.assertEqual(self.machine.share("maker")["share_memory_with"], ["third", "other"])
        self.assertRegex(self.machine.call([harness.PRORATA, "inspect", "maker"])[1],
                         r"(?m)^exports memory to +third, other$")

    def test_memory_of_nobody_is_the_openers(self):
        process = self.machine.start([PROGRAM, "--export"], self.machine.bare_environment(),
                                     stdin=subprocess.PIPE)
        handle = harness.read_line(process).strip()
        self.assertEqual(self.open_in("other", handle), (0, 64 * MIB))


if __name__ == "__main__":
    unittest.main()
