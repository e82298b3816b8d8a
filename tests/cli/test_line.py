"""Shares that wait in line until they fit: `prorata create --wait`, `prorata run --wait`."""
import json
import os
import random
import signal
import time
import unittest

import harness
import terminal
from harness import GIB

CONTEXT = 512 << 20
ROUNDS = 16


class LineCase(harness.MachineTestCase):
    """The device has 16 GiB."""

    def setUp(self):
        super().setUp()
        self.start_agent()

    def start_agent(self):
        return self.machine.start_agent("--cdi-dir", self.machine.folder / "cdi")

    def prorata(self, *arguments):
        return self.machine.call([harness.PRORATA, *arguments])

    def good(self, *arguments):
        status, out, err = self.prorata(*arguments)
        self.assertEqual(status, 0, err)
        return out

    def waiter(self, name, memory, wait="--wait"):
        """A `create` that stands in line, once it does."""
        process = self.machine.start(
            [harness.PRORATA, "create", name, "--memory", memory, wait])
        harness.wait_until(lambda: name in self.line() or process.poll() is not None,
                           what=f"the wait of {name}")
        self.assertIsNone(process.poll(), process.stderr and process.poll() and process.stderr.read())
        return process

    def line(self):
        return [w.get("name") for w in json.loads(self.good("ps", "--waiting", "--json"))]

    def names(self):
        return sorted(share["name"] for share in self.machine.ps())

    def left(self):
        """What there is of shares on the disk."""
        folders = (self.machine.runtime_dir / "shares", self.machine.folder / "cdi")
        return sorted(path.name for folder in folders if folder.exists() for path in folder.iterdir())

    def made(self, process):
        out, err = process.communicate(timeout=harness.DEADLINE_S)
        self.assertEqual(process.returncode, 0, err)
        return out, err

    def outcomes(self):
        events = map(json.loads, self.good("events", "--json", "--no-follow").splitlines())
        return [(e["share"], e.get("outcome", "waits")) for e in events
                if e["event"] in ("share_waits", "share_wait_ended")]


class Waiting(LineCase):
    def test_in_line_until_it_fits(self):
        self.good("create", "holder", "--memory", "12GiB")
        first = self.waiter("first", "10GiB")
        second = self.waiter("second", "9GiB", "--wait=10m")
        table = self.good("ps")
        self.assertRegex(table, r"(?m)^1 +first +any +10 GiB .*only 4 GiB left")
        self.assertRegex(table, r"(?m)^2 +second +any +9 GiB ")
        self.good("rm", "holder")
        out, err = self.made(first)
        self.assertEqual(out, "prorata.dev/share=first\n")
        self.assertRegex(err, r"\Aprorata: share 'first' waits, first in line: .*only 4 GiB left.*\n\Z")
        harness.wait_until(lambda: self.line() == ["second"], what="the second's turn")
        self.assertEqual(self.names(), ["first"])
        self.good("rm", "first")
        _, err = self.made(second)
        lines = err.splitlines()
        self.assertEqual(len(lines), 2, err)
        self.assertIn("2nd in line", lines[0])
        self.assertIn("first in line", lines[1])
        self.assertEqual(self.outcomes(), [("first", "waits"), ("second", "waits"),
                                           ("first", "made"), ("second", "made")])

    def test_signals_end_it_at_once(self):
        self.good("create", "holder", "--memory", "12GiB")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):
            process = self.waiter("x", "8GiB")
            process.send_signal(number)
            process.communicate(timeout=harness.DEADLINE_S)
            self.assertEqual(process.returncode, -number)
            harness.wait_until(lambda: not self.line(), what="an empty line")
        self.good("rm", "holder")
        self.assertEqual(self.names(), [])
        self.assertEqual(self.left(), [])
        self.assertEqual(self.outcomes(), 4 * [("x", "waits"), ("x", "given_up")])

    def test_after_its_time_one_clear_error(self):
        self.good("create", "holder", "--memory", "12GiB")
        self.waiter("first", "10GiB")
        begin_s = time.monotonic()
        status, out, err = self.prorata("create", "x", "--memory", "8GiB", "--wait=1s")
        self.assertLess(1, time.monotonic() - begin_s)
        self.assertEqual((status, out), (1, ""))
        last = err.splitlines()[-1]
        self.assertRegex(last, r"share 'x' was not made: it waited 1s and is 2nd in line: .*8 GiB of memory")
        self.assertEqual(self.line(), ["first"])

    def test_what_can_never_fit_does_not_wait(self):
        for arguments, words in (
                (["--memory", "17GiB"], "can never fit"),
                (["--gpus", "3", "--memory", "1GiB"], "has only"),
                ([], "--memory")):
            status, _, err = self.prorata("create", "x", *arguments, "--wait")
            self.assertEqual((status, err.count("\n")), (1, 1), err)
            self.assertIn(words, err)

    def test_on_a_terminal_the_place_is_drawn_in_place(self):
        self.good("create", "holder", "--memory", "12GiB")
        first = self.waiter("first", "10GiB")
        command = [harness.PRORATA, "create", "x", "--memory", "9GiB", "--wait"]
        with terminal.Terminal(command, self.machine.environment) as screen:
            screen.wait_for("prorata: share 'x' waits, 2nd in line")
            first.kill()
            text = screen.wait_for("share 'x' waits, first in line")
            self.assertEqual(text.strip().count("\n"), 0, text)
            self.assertLess(len(text.strip()), 80)
            self.good("rm", "holder")
            self.assertEqual(screen.wait(), 0)
            self.assertEqual(screen.text().strip(), "prorata.dev/share=x")
        self.good("rm", "x")

    def test_ctrl_c_on_a_terminal(self):
        self.good("create", "holder", "--memory", "12GiB")
        command = [harness.PRORATA, "create", "x", "--memory", "9GiB", "--wait"]
        with terminal.Terminal(command, self.machine.environment) as screen:
            screen.wait_for("first in line")
            screen.press("\x03")
            self.assertEqual(screen.wait(), -signal.SIGINT)
        harness.wait_until(lambda: not self.line(), what="an empty line")

    def test_run_waits_and_becomes_the_program(self):
        self.good("create", "holder", "--memory", "12GiB")
        program = self.machine.start(
            self.machine.command(["--name", "job", "--memory", "8GiB", "--wait"],
                                 ["grep", "SigBlk", "/proc/self/status"]))
        harness.wait_until(lambda: self.line() == ["job"], what="the wait of the job")
        self.good("rm", "holder")
        out, _ = self.made(program)
        self.assertEqual(int(out.split()[1], 16), 0, "a signal is blocked in the program")
        harness.wait_until(lambda: not self.machine.ps(), what="the share's end")

    def test_the_memory_of_the_dead_is_waited_for(self):
        load = self.machine.start_load(["--name", "a", "--memory", "12GiB"],
                                       ["--allocate", "8GiB", "--announce", "--hold", "600"])
        harness.read_event(load, "allocated")
        waiter = self.waiter("x", "12GiB")
        load.kill()
        load.communicate()
        self.made(waiter)
        report = self.machine.run_json(["--name", "x"], ["--allocate", "1GiB", "--until-refused"])
        self.assertEqual(report["allocated_bytes"], 11 * GIB)


class TheAgentThatAWaiterStarts(harness.MachineTestCase):
    def test_signals_end_it(self):
        """The waiter blocks them for itself while it starts the agent."""
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(number):
                program = self.machine.start(self.machine.command(
                    ["--memory", "1GiB", "--wait"], ["sh", "-c", "echo begun; exec sleep 600"]))
                harness.read_line(program)  # before, it would start another agent
                agents = self.machine.agent_pids()
                self.assertEqual(len(agents), 1)
                os.kill(agents[0], number)
                harness.wait_until(lambda: not self.machine.agent_pids(), 20, "the agent's end")
                program.kill()
                program.wait()


class TheAgentsDeath(LineCase):
    def restart(self, by=signal.SIGKILL):
        self.machine._agent.send_signal(by)
        self.machine._agent.wait()
        return self.start_agent()

    def test_those_in_line_come_back_in_their_order(self):
        self.good("create", "holder", "--memory", "12GiB")
        waiters = {name: self.waiter(name, "10GiB") for name in ("a", "b", "c")}
        state = self.machine.runtime_dir / "state.json"
        for by in (signal.SIGKILL, signal.SIGTERM):
            harness.wait_until(lambda: json.loads(state.read_text()).get("waiting") == 3,
                               what="the line on the disk")
            self.restart(by)
            harness.wait_until(lambda: len(self.line()) == 3, what="their return")
            self.assertEqual(self.line(), ["a", "b", "c"])
        self.good("rm", "holder")
        for name in ("a", "b", "c"):
            self.made(waiters[name])
            self.assertEqual(self.names(), [name])
            self.good("rm", name)
        self.assertEqual(self.left(), [])

    def test_a_time_goes_on_while_there_is_no_agent(self):
        self.good("create", "holder", "--memory", "12GiB")
        waiter = self.waiter("x", "10GiB", "--wait=3s")
        self.machine.kill_agent()
        out, err = waiter.communicate(timeout=harness.DEADLINE_S)
        self.assertEqual((waiter.returncode, out), (1, ""))
        self.assertIn("no agent runs", err)
        self.assertIn("first in line", err.splitlines()[-1])
        self.assertEqual(self.machine.agent_pids(), [], "a waiter has started an agent of its own")

    def test_what_a_kill_left_of_a_share_goes_with_the_next_agent(self):
        """Each step of its making may be the last: the folder, the limits under the name that they have
        until they are whole, the limits, the mark, the socket."""
        shares = self.machine.runtime_dir / "shares"
        self.machine.kill_agent()
        written = ("limits.new", "limits", "held", "socket")
        for steps in range(len(written) + 1):
            folder = shares / f"half-made-{steps}"
            folder.mkdir()
            for name in written[:steps]:
                (folder / name).write_text("")
        self.start_agent()
        self.assertEqual(self.left(), [])

    def test_kills_at_any_moment(self):
        """Waiters and agents are killed while shares are made: nobody's share is lost or half made,
        and no more is ever promised than there is."""
        seed = random.randrange(1 << 30)
        chance = random.Random(seed)
        expected = set()
        with self.subTest(seed=seed):
            for number in range(ROUNDS):
                self.good("create", "holder", "--memory", "14GiB")
                waiters = {f"w{number}-{i}": self.waiter(f"w{number}-{i}", f"{chance.choice((3, 4))}GiB")
                           for i in range(3)}
                victim = chance.choice(list(waiters))
                self.prorata("rm", "holder")
                time.sleep(chance.random() * 0.03)
                waiters[victim].kill()
                time.sleep(chance.random() * 0.03)
                self.restart(chance.choice((signal.SIGKILL, signal.SIGTERM)))
                for name, process in waiters.items():
                    if name != victim:
                        out, _ = self.made(process)
                        self.assertEqual(out, f"prorata.dev/share={name}\n")
                        expected.add(name)
                # The victim's may have been made before it was killed: then it is whole.
                there = set(self.names())
                self.assertLessEqual(expected, there)
                self.assertLessEqual(there - expected, {victim})
                self.assertLessEqual(self.machine.gpus()[0]["promised_bytes"], 16 * GIB)
                harness.wait_until(lambda: not self.line(), what="an empty line")
                for name in there:
                    self.assertTrue(json.loads(self.good("inspect", name, "--json"))["cdi"], name)
                    self.good("rm", name)
                expected.clear()
                self.assertEqual(self.left(), [])


if __name__ == "__main__":
    unittest.main()
