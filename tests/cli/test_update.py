"""`prorata update`: limits that change while programs run."""
import json
import pathlib
import re
import subprocess
import sys
import time
import unittest

import pytest

import harness

pytestmark = pytest.mark.asan_ubsan

PROGRAM = pathlib.Path(__file__).resolve().parents[1] / "interactive.py"
MIB, GIB = harness.MIB, harness.GIB
OUT_OF_MEMORY = 2


class UpdateCase(harness.MachineTestCase):
    def setUp(self):
        super().setUp()
        self.machine.start_agent()

    def start(self, *share_options):
        program = self.machine.start(
            self.machine.command(["--name", "x", *share_options], [sys.executable, PROGRAM]),
            stdin=subprocess.PIPE)
        self.assertEqual(json.loads(harness.read_line(program)), {"result": 0})
        return program

    def ask(self, program, line):
        program.stdin.write(line + "\n")
        program.stdin.flush()
        return json.loads(harness.read_line(program))

    def update(self, *options, name="x"):
        return self.machine.call([harness.PRORATA, "update", name, *options])

    def update_well(self, *options):
        status, out, err = self.update(*options)
        self.assertEqual((status, out), (0, ""), err)
        return err

    def device(self):
        share = harness.wait_until(lambda: self.machine.share("x"), what="the share")
        return share["devices"][0]


class Memory(UpdateCase):
    def test_up_and_down_in_a_running_program(self):
        program = self.start("--memory", "2GiB")
        self.assertEqual(self.ask(program, "total")["bytes"], 2 * GIB)
        self.assertEqual(self.ask(program, f"alloc {3 * GIB}")["result"], OUT_OF_MEMORY)
        self.assertEqual(self.update_well("--memory", "4GiB"), "")
        self.assertEqual(self.ask(program, "total")["bytes"], 4 * GIB)
        big = self.ask(program, f"alloc {3 * GIB}")
        self.assertEqual(big["result"], 0)
        # Below use: what it has it keeps, and nothing new is given until enough is free.
        self.assertIn("above its new limit", self.update_well("--memory", "1GiB"))
        self.assertEqual(self.ask(program, f"alloc {MIB}")["result"], OUT_OF_MEMORY)
        info = self.ask(program, "info")
        self.assertEqual((info["total"], info["free"]), (GIB, 0))
        self.assertIn("over", self.machine.call([harness.PRORATA, "ps"])[1])
        self.assertEqual(self.ask(program, f"free {big['address']}")["result"], 0)
        self.assertEqual(self.ask(program, f"alloc {MIB}")["result"], 0)
        self.assertEqual(self.ask(program, f"alloc {GIB}")["result"], OUT_OF_MEMORY)
        self.assertNotIn("over", self.machine.call([harness.PRORATA, "ps"])[1])

    def test_what_is_given_back_can_be_promised_to_another(self):
        self.start("--memory", "14GiB")
        refused = self.machine.call(self.machine.command(["--memory", "8GiB"], ["true"]))
        self.assertEqual(refused[0], 1)
        self.update_well("--memory", "6GiB")
        self.assertEqual(
            self.machine.call(self.machine.command(["--memory", "8GiB"], ["true"]))[0], 0)

    def test_a_killed_agent_keeps_the_new_limit(self):
        program = self.start("--memory", "2GiB")
        self.update_well("--memory", "3GiB", "--weight", "7")
        self.machine.kill_agent()
        self.machine.start_agent()
        self.assertEqual((self.device()["memory_limit_bytes"], self.device()["weight"]),
                         (3 * GIB, 7))
        self.assertEqual(self.ask(program, "total")["bytes"], 3 * GIB)


class ADiskThatIsFull(UpdateCase):
    """A folder of the name under which the state is written stands in the way of root, too."""

    def setUp(self):
        super().setUp()
        self.way = self.machine.runtime_dir / "state.json.new"

    def test_what_cannot_be_saved_is_not_changed(self):
        program = self.start("--memory", "1GiB", "--compute-limit", "0.9", "--weight", "5")
        before = self.device()
        self.way.mkdir()
        status, out, err = self.update("--memory", "2GiB", "--compute-limit", "0.2", "--weight", "7",
                                       "--on-full", "wait", "--gang", "never", "--allow-users", "all")
        self.assertEqual((status, out, err.count("\n")), (1, "", 1), err)
        for words in ("state.json.new", "share 'x' has its former terms", "try again"):
            self.assertIn(words, err)
        terms = ("memory_limit_bytes", "memory_request_bytes", "compute_limit", "weight")
        self.assertEqual([self.device()[key] for key in terms], [before[key] for key in terms])
        share = self.machine.share("x")
        self.assertEqual((share["on_full"], share["gang"]), ("fail", "auto"))
        self.assertEqual(self.ask(program, "total")["bytes"], GIB)
        self.way.rmdir()
        self.assertEqual(self.update_well("--memory", "2GiB"), "")
        self.assertEqual(self.ask(program, "total")["bytes"], 2 * GIB)

    def test_what_cannot_be_saved_is_not_made(self):
        self.way.mkdir()
        for command in (["run", "--name", "y", "--memory", "1GiB", "--", "true"],
                        ["create", "y", "--memory", "1GiB"]):
            status, out, err = self.machine.call([harness.PRORATA, *command])
            self.assertEqual((status, out, err.count("\n")), (1, "", 1), err)
            for words in ("state.json.new", "share 'y' was not made", "try again"):
                self.assertIn(words, err)
        self.assertEqual(self.machine.ps(), [])


class Priority(UpdateCase):
    def terms(self):
        device = self.device()
        return device["priority"], device["yield_within_ns"]

    def test_it_is_told_changed_and_kept(self):
        self.start("--memory", "2GiB", "--priority", "50", "--yield-within", "1ms")
        self.assertEqual(self.terms(), (50, 1_000_000))
        self.update_well("--priority", "-3")
        self.assertEqual(self.terms(), (-3, 1_000_000))
        self.update_well("--yield-within", "500us")
        out = self.machine.call([harness.PRORATA, "events", "--all", "--no-follow"])[1]
        self.assertIn("priority 50 to -3", out)
        self.assertIn("yield within 1ms to 500us", out)
        self.machine.kill_agent()
        self.machine.start_agent()
        self.assertEqual(self.terms(), (-3, 500_000))

    def test_what_is_out_of_range_changes_nothing(self):
        self.start("--memory", "2GiB", "--priority", "7")
        for option in (["--priority", "101"], ["--priority", "-101"], ["--priority", "x"],
                       ["--yield-within", "499us"], ["--yield-within", "2s"],
                       ["--yield-within", "2"], ["--priority", "1=5,0=200"]):
            status, out, err = self.update(*option)
            self.assertEqual((status, out, err.count("\n")), (2, "", 1), option)
            self.assertIn(option[0], err)
        self.assertEqual(self.terms(), (7, 2_000_000))

    def test_an_elastic_ceiling_is_told_and_kept_while_shares_are_there(self):
        self.machine.kill_agent()
        status, _, err = self.machine.call([harness.PRORATA, "agent", "--elastic-ceiling", "0"])
        self.assertEqual((status, err.count("\n")), (2, 1))
        status, _, err = self.machine.call([harness.PRORATA, "agent", "--elastic-ceiling", "9=0.5"])
        self.assertNotEqual(status, 0)
        self.assertIn("there is no GPU '9'", err)
        self.machine.start_agent("--elastic-ceiling", "0=0.9")
        self.start("--memory", "2GiB")
        self.assertEqual(self.machine.gpus()[0]["elastic_ceiling"], 0.9)
        self.machine.kill_agent()
        self.machine.start_agent()
        self.assertEqual(self.machine.gpus()[0]["elastic_ceiling"], 0.9)


class Compute(UpdateCase):
    def test_terms_are_shown_and_what_is_not_named_stays(self):
        self.start("--memory", "2GiB", "--compute", "0.2", "--weight", "50")
        self.update_well("--compute-limit", "0.5")
        device = self.device()
        self.assertEqual([device[key] for key in ("compute_request", "compute_limit", "weight",
                                                  "memory_limit_bytes")], [0.2, 0.5, 50, 2 * GIB])

    def test_a_limit_that_moves_under_load(self):
        self.machine.start(self.machine.command(
            ["--name", "x", "--compute-limit", "0.3", "--memory", "2GiB"],
            [harness.GPULOAD, "--seconds", "3600", "--kernel-us", "2000"]))

        # An agent that a busy machine holds up calls a lease back late; what was used too much is
        # made up for, so the mean since a limit was set comes down to it.
        def held_below(most):
            begin = self.machine.usage()

            def held():
                time.sleep(1)
                return self.machine.busy_since(begin) < most
            harness.wait_until(held, what=f"a mean below {most}")

        def a_second_above(least):
            begin = self.machine.usage()
            time.sleep(1)
            return self.machine.busy_since(begin) > least
        harness.wait_until(lambda: self.device()["device_time_ns"] > 3e8, what="the load")
        held_below(0.36)
        self.update_well("--compute-limit", "0.9")
        harness.wait_until(lambda: a_second_above(0.45), what="more than the old limit")
        self.update_well("--compute-limit", "0.1")
        held_below(0.2)


class Bad(UpdateCase):
    def refused(self, status, pattern, *options, name="x"):
        code, out, err = self.update(*options, name=name)
        self.assertEqual((code, out), (status, ""))
        self.assertRegex(err, pattern)
        self.assertEqual(err.count("\n"), 1)

    def test_what_cannot_be(self):
        self.start("--memory", "2GiB", "--compute", "0.4")
        before = self.device()
        self.refused(1, "no share named 'y'", "--memory", "1GiB", name="y")
        self.refused(1, "only 16 GiB in all", "--memory", "17GiB")
        self.refused(1, "compute limit on GPU 0 .*, 0.3, is below the request, 0.4", "--compute-limit", "0.3")
        self.refused(2, "nothing to change")
        self.refused(2, "--memory", "--memory", "0")
        self.refused(2, "no GPU time at all", "--compute-limit", "0")
        self.refused(2, "--weight", "--weight", "0")
        after = self.device()
        for key in ("memory_limit_bytes", "compute_request", "compute_limit", "weight"):
            self.assertEqual(after[key], before[key], key)

    def test_a_share_that_ended(self):
        program = self.start()
        program.kill()
        harness.wait_until(lambda: not self.machine.ps(), what="the end of the share")
        self.refused(1, "no share named 'x'", "--memory", "1GiB")

    def test_without_an_agent(self):
        self.machine.kill_agent()
        self.refused(1, re.escape("no agent runs at"), "--memory", "1GiB")


if __name__ == "__main__":
    unittest.main()
