"""Memory has a request, which is set aside, and a limit: two shares of 4 to 12 GiB on a GPU of 16.

PRORATA_TEST_SEED=7 repeats a run of the random test.
"""
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

import harness

pytestmark = pytest.mark.asan_ubsan

PROGRAM = pathlib.Path(__file__).resolve().parents[1] / "interactive.py"
MIB, GIB = harness.MIB, harness.GIB
OUT_OF_MEMORY = 2
DEVICE, REQUEST, LIMIT = 16 * GIB, 4 * GIB, 12 * GIB
# More than a program takes beside what it asks for. Its context takes what the agent guesses of a
# device of this size, so that it is the same whether or not the agent was alive to measure it.
CONTEXT = 288 * MIB

SIXTEEN_GIB = """
[[devices]]
memory = "16GiB"
context_memory = "256MiB"
"""


class Program:
    """A program on a share, and what it holds."""

    def __init__(self, test, share):
        self.process = test.machine.start(
            test.machine.command(["--name", share], [sys.executable, PROGRAM]),
            stdin=subprocess.PIPE)
        self.share = share
        self.held = {}  # size by address
        self.asked = 0  # the size of an allocation without an answer so far
        test.assertEqual(json.loads(harness.read_line(self.process)), {"result": 0})

    def say(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self):
        return json.loads(harness.read_line(self.process))

    def ask(self, size):
        self.asked = size
        self.say(f"alloc {size}")

    def answer(self):
        answer = self.hear()
        if answer["result"] == 0:
            self.held[answer["address"]] = self.asked
        self.asked = 0
        return answer["result"]

    def take(self, size):
        self.ask(size)
        return self.answer()

    def free(self, address):
        self.say(f"free {address}")
        del self.held[address]
        return self.hear()["result"]

    def free_all(self):
        for address in list(self.held):
            self.free(address)

    def bytes(self):
        return sum(self.held.values()) + CONTEXT

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class RequestCase(harness.MachineTestCase):
    MACHINE_TOML = SIXTEEN_GIB
    ON_FULL = "fail"

    def setUp(self):
        super().setUp()
        self.start_agent()
        for name in ("a", "b"):
            self.good("create", name, "--memory-request", "4GiB", "--memory", "12GiB",
                      "--on-full", self.ON_FULL)

    def start_agent(self, *options):
        return self.machine.start_agent("--cdi-dir", self.machine.folder / "cdi", *options)

    def prorata(self, *arguments):
        return self.machine.call([harness.PRORATA, *arguments])

    def good(self, *arguments):
        status, out, err = self.prorata(*arguments)
        self.assertEqual(status, 0, err)
        return out

    def refused(self, *arguments, status=1):
        """The one line that says why."""
        code, out, err = self.prorata(*arguments)
        self.assertEqual((code, out), (status, ""), err)
        self.assertEqual(err.count("\n"), 1, err)
        return err

    def terms(self, name):
        share = self.machine.share(name)
        return share["memory_request_bytes"] / GIB, share["memory_limit_bytes"] / GIB

    def restart_agent(self):
        self.machine.kill_agent()
        self.start_agent()

    def await_wait(self, name):
        harness.wait_until(lambda: self.machine.share(name)["memory_waits"] == 1,
                           what=f"the wait of {name}")


class TwoShares(RequestCase):
    def test_each_has_its_own_and_what_is_free(self):
        gpu = self.machine.gpus()[0]
        self.assertEqual((gpu["promised_bytes"], gpu["limit_bytes"]), (2 * REQUEST, 2 * LIMIT))
        a, b = Program(self, "a"), Program(self, "b")
        self.assertEqual(a.take(LIMIT - CONTEXT), 0)
        self.assertEqual(a.take(CONTEXT), OUT_OF_MEMORY)  # beyond its own limit
        self.assertEqual(b.take(REQUEST + CONTEXT), OUT_OF_MEMORY)
        self.assertEqual(b.take(REQUEST - CONTEXT), 0)
        self.assertGreaterEqual(self.machine.gpus()[0]["borrowed_bytes"], LIMIT - REQUEST - CONTEXT)
        self.assertIn("request 4 GiB", self.good("ps"))
        self.assertIn("8 GiB (limits 24 GiB)", self.good("gpus"))
        self.assertIn("memory request   4 GiB", self.good("inspect", "a"))
        # What one frees the other can take, and its own is there again.
        a.free_all()
        self.assertEqual(b.take(LIMIT - REQUEST), 0)
        self.assertEqual(a.take(REQUEST + CONTEXT), OUT_OF_MEMORY)
        self.assertEqual(a.take(REQUEST - CONTEXT), 0)
        # What a killed program held, too, at once.
        b.kill()
        self.assertEqual(a.take(LIMIT - REQUEST), 0)
        self.assertLessEqual(self.machine.usage()["peak_bytes"], DEVICE)

    def test_an_agent_that_was_killed_changes_nothing(self):
        a, b = Program(self, "a"), Program(self, "b")
        self.assertEqual(a.take(10 * GIB), 0)
        self.restart_agent()
        self.assertEqual((self.terms("a"), self.terms("b")), ((4, 12), (4, 12)))
        self.assertEqual(b.take(REQUEST - CONTEXT), 0)
        self.assertEqual(b.take(3 * GIB), OUT_OF_MEMORY)
        self.machine.kill_agent()
        # Nobody tells the next agent of it before it is asked for memory.
        a.kill()
        self.start_agent()
        self.assertEqual(b.take(LIMIT - REQUEST), 0)

    def test_nobody_is_told_more_than_it_holds_of_others(self):
        """A third share comes while the two hold all: it has its request, or is refused."""
        a = Program(self, "a")
        self.assertEqual(a.take(LIMIT - CONTEXT), 0)
        self.assertIn("left now: 8 GiB of its 16 GiB", self.refused("create", "c", "--memory", "1GiB"))
        a.free_all()
        self.good("create", "c", "--memory", "4GiB")
        self.assertEqual(a.take(LIMIT - CONTEXT), OUT_OF_MEMORY)
        self.assertEqual(a.take(2 * REQUEST - CONTEXT), 0)
        self.assertEqual(Program(self, "b").take(REQUEST - CONTEXT), 0)
        self.assertEqual(Program(self, "c").take(REQUEST - CONTEXT), 0)

    def test_terms_move_while_programs_run(self):
        a, b = Program(self, "a"), Program(self, "b")
        self.assertEqual(a.take(10 * GIB), 0)
        # 2 of b's 8 could not be set aside now.
        message = self.refused("update", "b", "--memory-request", "8GiB")
        for part in ("requests 8 GiB", "of GPU 0 can be guaranteed", "beyond their requests"):
            self.assertIn(part, message)
        self.good("update", "b", "--memory-request", "5GiB")
        self.assertEqual(b.take(5 * GIB - CONTEXT), 0)
        # Lower than what it holds: nothing is taken, the rest is borrowed, and goes when it is freed.
        self.good("update", "b", "--memory-request", "1GiB", "--memory", "25%")
        self.assertEqual(self.terms("b"), (1, 4))
        self.assertEqual(b.take(2 * MIB), OUT_OF_MEMORY)
        self.assertEqual(a.take(LIMIT - 10 * GIB - CONTEXT), OUT_OF_MEMORY)
        b.free_all()
        self.assertEqual(a.take(LIMIT - 10 * GIB - CONTEXT), 0)
        self.good("update", "a", "--memory", "6GiB", "--memory-request", "0")
        self.assertEqual(self.terms("a"), (0, 6))
        self.restart_agent()
        self.assertEqual((self.terms("a"), self.terms("b")), ((0, 6), (1, 4)))
        events = self.good("events", "--all", "--no-follow")
        self.assertNotIn("is lost", events)

    def test_a_damaged_state_costs_no_request(self):
        a = Program(self, "a")
        self.assertEqual(a.take(10 * GIB), 0)
        self.machine.kill_agent()
        (self.machine.runtime_dir / "state.json").write_text("{")
        self.start_agent()
        self.assertEqual((self.terms("a"), self.terms("b")), ((4, 12), (4, 12)))
        self.assertEqual(Program(self, "b").take(REQUEST - CONTEXT), 0)

    def test_the_state_of_the_build_before(self):
        """A guaranteed share has all of its limit set aside, another where it was overcommitted none."""
        self.machine.kill_agent()
        path = self.machine.runtime_dir / "state.json"
        state = json.loads(path.read_text())
        for share in state["shares"]:
            share["guaranteed"] = share["name"] == "a"
            for device in share["devices"]:
                del device["memory_request_bytes"]
        uuid = state["shares"][0]["devices"][0]["uuid"]
        for overcommit, terms in (({uuid: 2.0}, ((12, 12), (0, 12))), ({}, ((12, 12), (12, 12)))):
            state["overcommit"] = overcommit
            path.write_text(json.dumps(state))
            self.start_agent()
            self.assertEqual((self.terms("a"), self.terms("b")), terms)
            self.machine.kill_agent()


class BadInput(RequestCase):
    def test_one_line_that_says_what_to_do(self):
        for arguments, status, parts in (
                (("--memory-request", "8GiB", "--memory", "4GiB"), 2, ("8 GiB", "4 GiB", "lower")),
                (("--memory-request", "50%", "--memory", "25%"), 2, ("50%", "25%", "lower")),
                (("--memory-request", "50%", "--memory", "4GiB"), 1,
                 ("8 GiB", "4 GiB", "GPU 0", "lower --memory-request")),
                (("--memory", "0%"), 2, ("'0%'", "above 0%", "25%")),
                (("--memory", "101%"), 2, ("'101%'", "at most 100%", "25%")),
                (("--memory-request", "101%"), 2, ("'101%'", "or 0 to guarantee nothing")),
                (("--memory-request", "1GiB", "--guaranteed"), 2, ("--guaranteed", "give one")),
                (("--gpu", "7", "--memory", "25%"), 1, ("'7'", "the GPUs are: 0 (GPU-")),
                (("--gpu", "0", "--memory", "25%,7=50%"), 1, ("'7'", "none of the share's")),
                (("--memory-request", "9GiB", "--memory", "12GiB"), 1,
                 ("requests 9 GiB", "only 8 GiB left", "8 GiB of its 16 GiB", "2 other shares")),
                (("--memory", "9GiB"), 1, ("asks for 9 GiB", "only 8 GiB left", "--memory-request")),
                (("--memory", "12GiB", "--memory-request", "1GiB"), 1,
                 ("up to 12 GiB", "never give it more than 8 GiB", "lower limit"))):
            message = self.refused("create", "c", *arguments, status=status)
            for part in parts:
                self.assertIn(part, message, arguments)
        self.assertIn("only 12 GiB left", self.refused("update", "a", "--memory-request", "12.5GiB",
                                                       "--memory", "13GiB"))
        self.assertIn("below the memory request, 4 GiB", self.refused("update", "a", "--memory",
                                                                      "3GiB"))

    def test_parts_of_the_gpu(self):
        self.good("create", "c", "--memory", "25%", "--memory-request", "12.5%")
        self.assertEqual(self.terms("c"), (2, 4))
        self.good("create", "d", "--memory", "6.25%")
        self.assertEqual(self.terms("d"), (1, 1))


class Waiting(RequestCase):
    ON_FULL = "wait"

    def test_within_its_request_nobody_waits(self):
        a, b, other = Program(self, "a"), Program(self, "b"), Program(self, "b")
        self.assertEqual(a.take(LIMIT - CONTEXT), 0)
        b.ask(6 * GIB)
        self.await_wait("b")
        # Another program of the share that waits.
        self.assertEqual(other.take(REQUEST - 2 * CONTEXT), 0)
        self.restart_agent()
        self.await_wait("b")
        other.free_all()
        self.assertEqual(other.take(REQUEST - 2 * CONTEXT), 0)
        a.free_all()
        self.assertEqual(b.answer(), 0)

    def test_both_want_all_and_one_after_the_other_has_it(self):
        a, b = Program(self, "a"), Program(self, "b")
        self.assertEqual(a.take(7 * GIB), 0)
        b.ask(9 * GIB)  # 5 GiB are free beside its 4, and not safe to give
        self.await_wait("b")
        self.assertEqual(a.take(LIMIT - 7 * GIB - CONTEXT), 0)
        a.kill()
        self.assertEqual(b.answer(), 0)
        self.assertEqual(b.take(LIMIT - 9 * GIB - CONTEXT), 0)

    def test_who_may_wait_stays_sure_of_its_limit(self):
        message = self.refused("update", "b", "--memory-request", "5GiB")
        self.assertIn("--on-full wait", message)
        self.assertIn("could never be given all", self.refused("create", "c", "--memory", "1GiB"))
        self.good("update", "a", "--memory", "11GiB")
        self.good("update", "b", "--memory-request", "5GiB")
        a = Program(self, "a")
        self.assertEqual(a.take(11 * GIB - CONTEXT), 0)
        self.assertEqual(Program(self, "b").take(5 * GIB - CONTEXT), 0)


class AtRandom(RequestCase):
    STEPS = int(os.environ.get("PRORATA_TEST_STEPS", 80))

    def setUp(self):
        super().setUp()
        self.seed = int(os.environ.get("PRORATA_TEST_SEED", time.time()))
        print(f"seed: PRORATA_TEST_SEED={self.seed}")
        self.random = random.Random(self.seed)
        self.programs = []
        self.within = self.refusals = self.deaths = 0

    def of(self, share):
        return sum(program.bytes() for program in self.programs if program.share == share)

    def judge(self, program, before, result):
        """`before`: what the programs of its share held, and asked for, without this."""
        program_asked, others = before
        self.assertIn(result, (0, OUT_OF_MEMORY))
        if program_asked + others <= REQUEST:
            self.assertEqual(result, 0, f"{program_asked} beside {others} are within the request")
            self.within += 1
        if program_asked + others > LIMIT + 4 * CONTEXT:
            self.assertEqual(result, OUT_OF_MEMORY)
        self.refusals += result != 0

    def take(self, awkward):
        """Programs ask, of both shares at once; the agent dies meanwhile, or one of them does."""
        asking = []
        for share in ("a", "b"):
            mine = [program for program in self.programs if program.share == share]
            if not mine:
                continue
            program = self.random.choice(mine)
            room = REQUEST - self.of(share)
            within = room > 2 * MIB and self.random.random() < 0.5
            size = self.random.randrange(1, room) if within else self.random.randrange(1, 9 * GIB)
            asking.append((program, (size, self.of(share))))
            program.ask(size)
        if awkward == "agent":
            time.sleep(self.random.random() * 0.02)
            self.restart_agent()
        for program, before in asking:
            if awkward == "program" and self.random.random() < 0.5:
                time.sleep(self.random.random() * 0.01)
                self.kill(program)
            else:
                self.judge(program, before, program.answer())

    def kill(self, program):
        program.kill()
        self.programs.remove(program)
        self.deaths += 1

    def step(self):
        for share in ("a", "b"):
            if sum(program.share == share for program in self.programs) < self.random.choice((1, 2)):
                if self.of(share) + CONTEXT <= REQUEST:
                    self.programs.append(Program(self, share))
        what = self.random.random()
        if what < 0.25:
            program = self.random.choice(self.programs) if self.programs else None
            if program and program.held:
                self.assertEqual(program.free(self.random.choice(list(program.held))), 0)
        elif what < 0.35 and self.programs:
            self.kill(self.random.choice(self.programs))
        else:
            self.take("agent" if what < 0.45 else "program" if what < 0.55 else "")

    def look(self):
        """Nobody may hold, by the agent's account, what another has set aside."""
        shares = {share["name"]: share["devices"][0] for share in self.machine.ps()}
        self.assertEqual(sorted(shares), ["a", "b"])
        sums = [max(share["memory_request_bytes"], share["granted_bytes"], share["admitted_bytes"])
                for share in shares.values()]
        self.assertLessEqual(sum(sums), DEVICE, shares)
        for share in shares.values():
            self.assertEqual(share["memory_request_bytes"], REQUEST)
            self.assertLessEqual(share["granted_bytes"], LIMIT)

    def test_kills_and_restarts(self):
        for _ in range(self.STEPS):
            self.step()
            self.look()
        # What the dead and the living leave, either can have all of it.
        for share, other in (("a", "b"), ("b", "a")):
            for program in [program for program in self.programs if program.share == share]:
                self.kill(program)
            for program in self.programs:
                program.free_all()
            taker = Program(self, share)
            self.programs.append(taker)
            self.assertEqual(taker.take(LIMIT - CONTEXT), 0)
            taker.free_all()
            harness.wait_until(lambda: self.machine.share(other)["memory_waits"] == 0)
        self.assertLessEqual(self.machine.usage()["peak_bytes"], DEVICE)
        print(f"{self.within} within a request, {self.refusals} refused, {self.deaths} killed")
        self.assertGreater(self.within, self.STEPS // 8)


if __name__ == "__main__":
    harness.unittest.main()
