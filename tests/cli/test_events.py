"""`prorata events`: what happens on a node, told as it happens."""
import json
import re
import signal
import unittest

import pytest

import harness

pytestmark = [pytest.mark.asan_ubsan, pytest.mark.tsan]

GIB = harness.GIB
HOLD = ["--allocate", "64MiB", "--hold", "600", "--announce"]
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}  (\S+)  (.+)")


class EventsCase(harness.MachineTestCase):
    def setUp(self):
        super().setUp()
        self.machine.start_agent()

    def events(self, *options):
        """What there is, as objects."""
        status, out, err = self.machine.call(
            [harness.PRORATA, "events", "--json", "--no-follow", *options])
        self.assertEqual((status, err), (0, ""))
        return [json.loads(line) for line in out.splitlines()]

    def await_event(self, kind, count=1, **fields):
        """Waits until so many of a kind with these fields are there (as their counts add up)."""
        def found():
            events = [e for e in self.events() if e["event"] == kind
                      and all(e.get(key) == value for key, value in fields.items())]
            return events if sum(e.get("count", 1) for e in events) >= count else None
        return harness.wait_until(found, what=f"{count} of {kind}")

    def follow(self, *options):
        """A follower that has its place: what happens from now on comes out of it."""
        follower = self.machine.start([harness.PRORATA, "events", "--all", *options])
        self.assertIn("agent", harness.read_line(follower))
        return follower


class Told(EventsCase):
    def test_a_program_from_beginning_to_end(self):
        self.machine.run_json(["--name", "x", "--memory", "1GiB"], ["--allocate", "64MiB"])
        gone = self.await_event("share_ended", share="x") and self.events("--share", "x")
        kinds = [event["event"] for event in gone]
        self.assertEqual(kinds, ["share_created", "member_joined", "member_gone", "share_ended"])
        made, joined = gone[0], gone[1]
        self.assertEqual((made["limit_bytes"], made["gpu"]), (GIB, 0))
        self.assertTrue(made["uuid"].startswith("GPU-"))
        self.assertEqual(joined["command"], "gpuload")
        sequences = [event["sequence"] for event in gone]
        self.assertEqual(sequences, sorted(sequences))
        self.assertEqual(self.events("--since", str(sequences[-2]), "--share", "x"), gone[-1:])

    def test_in_words(self):
        self.machine.run_json(["--name", "x", "--memory", "1GiB"], ["--allocate", "64MiB"])
        self.await_event("share_ended", share="x")
        status, out, err = self.machine.call([harness.PRORATA, "events", "--no-follow"])
        self.assertEqual((status, err), (0, ""))
        told = [LINE.fullmatch(line).groups() for line in out.splitlines()]
        self.assertEqual(told[0][0], "-")
        self.assertIn(("x", "the share ended"), told)
        self.assertTrue(any(re.fullmatch(r"process \d+ \(gpuload\) joined", words)
                            for share, words in told if share == "x"), out)

    def test_a_change(self):
        load = self.machine.start_load(["--name", "x", "--memory", "1GiB"],
                                       HOLD)
        harness.read_event(load, "allocated")
        status, _, err = self.machine.call([harness.PRORATA, "update", "x", "--memory", "2GiB"])
        self.assertEqual(status, 0, err)
        changed = self.await_event("share_changed", share="x")[0]
        self.assertEqual(changed["detail"], "memory 1 GiB to 2 GiB")

    def test_what_an_agent_told_is_not_told_by_the_next(self):
        load = self.machine.start_load(["--name", "x", "--memory", "1GiB"],
                                       HOLD)
        harness.read_event(load, "allocated")
        self.machine.kill_agent()
        self.machine.start_agent()
        adopted = self.await_event("share_adopted", share="x")[0]
        self.assertEqual(adopted["sequence"], 2, "sequences begin anew")
        self.assertFalse([e for e in self.events() if e["event"] == "member_joined"])
        load.send_signal(signal.SIGKILL)
        load.wait()
        gone = self.await_event("member_gone", share="x")[0]
        self.assertEqual((gone["pid"], gone["command"]), (load.pid, "gpuload"))


class Followed(EventsCase):
    def test_as_it_happens_until_interrupted(self):
        follower = self.follow("--json")
        self.machine.run_json(["--name", "x", "--memory", "1GiB"], ["--allocate", "64MiB"])
        kinds = []
        while "share_ended" not in kinds:
            kinds.append(json.loads(harness.read_line(follower))["event"])
        self.assertEqual(kinds, ["share_created", "member_joined", "member_gone", "share_ended"])
        follower.send_signal(signal.SIGINT)
        out, err = follower.communicate(timeout=harness.DEADLINE_S)
        self.assertEqual((follower.returncode, out, err), (0, "", ""))

    def test_it_says_that_the_agent_is_gone(self):
        follower = self.follow()
        self.machine.kill_agent()
        out, err = follower.communicate(timeout=harness.DEADLINE_S)
        self.assertEqual((follower.returncode, out), (3, ""))
        self.assertEqual(err, "prorata: the agent ended, and its events with it\n")

    def test_it_ends_when_nobody_reads(self):
        follower = self.follow()
        follower.stdout.close()
        follower.stdout = None
        _, err = follower.communicate(timeout=harness.DEADLINE_S)
        self.assertEqual((follower.returncode, err), (0, ""))

    def test_a_follower_that_is_stopped_holds_up_nobody(self):
        follower = self.follow()
        follower.send_signal(signal.SIGSTOP)
        for _ in range(3):
            self.machine.run_json(["--name", "x", "--memory", "1GiB"], ["--allocate", "64MiB"])
        follower.send_signal(signal.SIGCONT)
        ended = 0
        while ended < 3:
            ended += "the share ended" in harness.read_line(follower)

    def test_without_an_agent(self):
        self.machine.kill_agent()
        for options in ([], ["--no-follow"]):
            status, out, err = self.machine.call([harness.PRORATA, "events", *options])
            self.assertEqual((status, out), (1, ""))
            self.assertIn("no agent runs", err)


class Refused(EventsCase):
    def test_a_program_that_asks_for_too_much(self):
        self.machine.call(self.machine.command(
            ["--name", "x", "--memory", "1GiB"], [harness.GPULOAD, "--allocate", "2GiB"]))
        refusal = self.await_event("refusal", share="x")[0]
        self.assertEqual((refusal["asked_bytes"], refusal["limit_bytes"], refusal["why"]),
                         (2 * GIB, GIB, "own_limit"))
        self.assertEqual((refusal["command"], refusal["gpu"]), ("gpuload", 0))


if __name__ == "__main__":
    unittest.main()
