"""What the device lost to a share is what the share is charged for, whoever asked for it."""
import json
import pathlib
import subprocess
import sys
import unittest

import pytest

import harness

pytestmark = pytest.mark.asan_ubsan

PROGRAM = pathlib.Path(__file__).resolve().parent / "bypass.py"
MIB, GIB = harness.MIB, harness.GIB
OUT_OF_MEMORY = 2


class Audit(harness.MachineTestCase):
    def setUp(self):
        super().setUp()
        self.machine.start_agent()
        self.program = self.machine.start(
            self.machine.command(["--name", "x", "--memory", "2GiB"],
                                 [sys.executable, PROGRAM, harness.SIM_DIR / "libcuda.so.1"]),
            stdin=subprocess.PIPE)
        self.assertEqual(json.loads(harness.read_line(self.program)), {"result": 0})
        self.context = self.on_device()

    def ask(self, line):
        self.program.stdin.write(line + "\n")
        self.program.stdin.flush()
        return json.loads(harness.read_line(self.program))

    def on_device(self):
        nvml = harness.Nvml(self.machine)
        try:
            return nvml.processes()[self.program.pid]
        finally:
            nvml.close()

    def await_used(self, used):
        harness.wait_until(lambda: self.machine.share("x")["used_bytes"] == used,
                           what=f"{used} bytes in use")

    def events(self, kind):
        status, out, err = self.machine.call([harness.PRORATA, "events", "--json", "--no-follow"])
        self.assertEqual(status, 0, err)
        return [e for e in map(json.loads, out.splitlines()) if e["event"] == kind]

    def test_what_was_taken_past_prorata_is_charged(self):
        self.assertEqual(self.ask(f"alloc {256 * MIB}")["result"], 0)
        taken = self.ask(f"take {512 * MIB}")
        self.assertEqual(taken["result"], 0)
        self.await_used(self.context + 768 * MIB)
        self.assertEqual(self.on_device(), self.context + 768 * MIB)
        info = self.ask("info")
        self.assertEqual((info["total"], info["free"]), (2 * GIB, 2 * GIB - self.on_device()))
        # Within its limit that is only overhead; what is left is the rest, to the last slab.
        left = info["free"] // (2 * MIB) * 2 * MIB
        self.assertEqual(self.ask(f"alloc {left + 2 * MIB}")["result"], OUT_OF_MEMORY)
        self.assertEqual(self.ask(f"alloc {left}")["result"], 0)
        self.assertEqual(self.events("bypass_suspected"), [])

    def test_far_above_the_limit_it_is_reported_and_given_nothing_more(self):
        taken = self.ask(f"take {4 * GIB}")
        self.assertEqual(taken["result"], 0)
        harness.wait_until(lambda: self.events("bypass_suspected"), what="the suspicion")
        share = self.machine.share("x")
        self.assertTrue(share["bypass_suspected"])
        self.assertEqual(share["used_bytes"], self.on_device())
        table = self.machine.call([harness.PRORATA, "ps"])[1]
        self.assertIn("BYPASS?", table.splitlines()[1])
        self.assertIn("far above its limit of 2 GiB", table)
        self.assertEqual(self.ask(f"alloc {2 * MIB}")["result"], OUT_OF_MEMORY)
        self.assertEqual(self.ask("info")["free"], 0)
        # Its own again, once the memory is given back.
        self.assertEqual(self.ask(f"give {taken['address']}")["result"], 0)
        harness.wait_until(lambda: self.events("bypass_over"), what="the end of the suspicion")
        self.assertEqual(self.ask(f"alloc {GIB}")["result"], 0)
        suspected = self.events("bypass_suspected")
        self.assertEqual(len(suspected), 1, "once an episode")
        self.assertEqual((suspected[0]["pid"], suspected[0]["share"]), (self.program.pid, "x"))
        self.assertIn("holds memory that prorata did not give", self.machine.agent_log())


if __name__ == "__main__":
    unittest.main()
