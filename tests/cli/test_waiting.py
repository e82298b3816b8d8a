"""More promised than there is: who fails, who waits, and how a wait ends."""
import json
import pathlib
import select
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
# Two halves of a limit of 4 GiB, less what a context takes of it.
FIRST, MORE = 2 * GIB, 2 * GIB - 256 * MIB

FIVE_GIB = """
[[devices]]
memory = "5GiB"
context_memory = "16MiB"
"""


class WaitingCase(harness.MachineTestCase):
    MACHINE_TOML = FIVE_GIB
    AGENT = ("--overcommit", "2")

    def setUp(self):
        super().setUp()
        self.machine.start_agent(*self.AGENT)

    def start(self, name, *options, memory="4GiB"):
        program = self.machine.start(
            self.machine.command(["--name", name, "--memory", memory, *options],
                                 [sys.executable, PROGRAM]), stdin=subprocess.PIPE)
        self.assertEqual(json.loads(harness.read_line(program)), {"result": 0})
        return program

    def say(self, program, line):
        program.stdin.write(line + "\n")
        program.stdin.flush()

    def hear(self, program):
        return json.loads(harness.read_line(program))

    def ask(self, program, line):
        self.say(program, line)
        return self.hear(program)

    def take(self, program, size, result=0):
        answer = self.ask(program, f"alloc {size}")
        self.assertEqual(answer["result"], result)
        return answer["address"]

    def end(self, program):
        program.stdin.close()
        self.assertEqual(program.wait(harness.DEADLINE_S), 0)

    def update(self, *arguments, result=0):
        self.assertEqual(self.machine.call([harness.PRORATA, "update", *arguments])[0], result)

    def waits(self, name):
        share = self.machine.share(name)
        return share["memory_waits"] if share else 0

    def await_wait(self, *names):
        harness.wait_until(lambda: all(self.waits(name) == 1 for name in names),
                           what=f"the wait of {names}")


class TheDeadlockOfTheLiterature(WaitingCase):
    """A device of 5 GiB; each takes 2 GiB and then 2 GiB more."""

    def test_without_prorata_both_starve(self):
        programs = [self.machine.start([sys.executable, PROGRAM], self.machine.bare_environment(),
                                       stdin=subprocess.PIPE) for _ in range(2)]
        for program in programs:
            self.assertEqual(self.hear(program), {"result": 0})
            self.take(program, FIRST)
        for _ in range(20):  # each keeps what it has, and tries again
            for program in programs:
                self.take(program, MORE, OUT_OF_MEMORY)

    def test_with_fail_one_is_refused(self):
        one, two = self.start("one"), self.start("two")
        for program in (one, two):
            self.take(program, FIRST)
        self.take(two, MORE, OUT_OF_MEMORY)
        self.end(two)
        harness.wait_until(lambda: self.ask(one, f"alloc {MORE}")["result"] == 0,
                           what="the memory of the one that gave up")

    def test_with_wait_both_finish_one_after_the_other(self):
        one, two = (self.start(name, "--on-full", "wait") for name in ("one", "two"))
        self.take(one, FIRST)
        self.say(two, f"alloc {FIRST}")  # 3 GiB are free, and not safe to give
        self.await_wait("two")
        self.assertIn("waits", self.machine.call([harness.PRORATA, "ps"])[1])
        self.take(one, MORE)
        self.end(one)
        self.assertEqual(self.hear(two)["result"], 0)
        self.take(two, MORE)
        self.end(two)


class WhatOtherProgramsHeld(WaitingCase):
    """A program outside of prorata held memory a moment ago: nobody is refused for it now."""

    def bare(self):
        program = self.machine.start([sys.executable, PROGRAM], self.machine.bare_environment(),
                                     stdin=subprocess.PIPE)
        self.assertEqual(self.hear(program), {"result": 0})
        return program

    def hold_a_while(self):
        """Until the agent has seen the other program's memory in each of many looks."""
        other = self.bare()
        self.take(other, 4 * GIB)
        # A time, for the agent's looks (ten a second) can be seen by nobody. With less of it the
        # test finds less; it does not fail.
        time.sleep(1.5)
        self.assertGreaterEqual(self.machine.gpus()[0]["foreign_bytes"], 4 * GIB)
        return other

    def test_it_is_free_at_once(self):
        one = self.start("one", "--on-full", "fail")
        other = self.hold_a_while()
        self.take(one, FIRST, OUT_OF_MEMORY)
        self.end(other)
        self.take(one, FIRST)

    def test_a_share_that_comes_after_it_has_its_place(self):
        self.end(self.hold_a_while())
        self.take(self.start("one", "--on-full", "fail"), FIRST)


class TheExample(harness.unittest.TestCase):
    @pytest.mark.unsanitized
    def test_it_shows_what_its_readme_says(self):
        example = harness.ROOT / "examples" / "deadlock"
        done = subprocess.run([sys.executable, example / "run.py", "--build", harness.BUILD],
                              capture_output=True, text=True, timeout=4 * harness.DEADLINE_S,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        endings = [line.strip() for line in done.stdout.splitlines() if "->" in line]
        self.assertEqual(endings, [f"-> {count} of 2 finished" for count in (0, 1, 2)])
        told = [line.strip() for line in (example / "README.md").read_text().splitlines()
                if "->" in line]
        self.assertEqual(told, endings)


class HowAWaitEnds(WaitingCase):
    def test_when_another_may_ask_for_less(self):
        one = self.start("one", "--on-full", "wait")
        self.take(one, FIRST)
        two = self.start("two", "--on-full", "wait")
        self.say(two, f"alloc {FIRST}")
        self.await_wait("two")
        # It could have asked for 2 GiB more, and now for half of one: both can be served.
        self.update("one", "--memory", "2560MiB")
        self.assertEqual(self.hear(two)["result"], 0)

    def test_in_time_as_out_of_memory(self):
        holder = self.start("holder")
        self.take(holder, 3 * GIB)
        waiter = self.start("waiter", "--on-full", "wait=300ms")
        self.take(waiter, MIB)
        self.take(waiter, 3 * GIB, OUT_OF_MEMORY)
        # What it asked for, without what it had.
        def asked():
            out = self.machine.call([harness.PRORATA, "events", "--no-follow", "--json", "--share", "waiter"])[1]
            events = map(json.loads, out.splitlines())
            return {one["event"]: one["asked_bytes"] for one in events if "asked_bytes" in one}
        kinds = ("wait_begun", "wait_ended", "refusal")
        harness.wait_until(lambda: asked() == dict.fromkeys(kinds, 3 * GIB), what="3 GiB in all events")
        harness.wait_until(lambda: self.waits("waiter") == 0, what="the end of the wait")

    def test_beyond_its_own_limit_nobody_waits(self):
        program = self.start("x", "--on-full", "wait")
        self.take(program, 4 * GIB + 1, OUT_OF_MEMORY)
        self.take(program, 3 * GIB)
        self.take(program, GIB, OUT_OF_MEMORY)

    def test_with_its_process(self):
        holder = self.start("holder")
        self.take(holder, 3 * GIB)
        waiter = self.start("waiter", "--on-full", "wait")
        self.say(waiter, f"alloc {3 * GIB}")
        self.await_wait("waiter")
        waiter.send_signal(signal.SIGTERM)
        self.assertEqual(waiter.wait(harness.DEADLINE_S), -signal.SIGTERM)
        harness.wait_until(lambda: self.machine.share("waiter") is None, what="the share's end")
        self.take(holder, GIB - 256 * MIB)

    def test_when_memory_is_freed_and_when_a_limit_moves(self):
        holder = self.start("holder")
        held = self.take(holder, 3 * GIB)
        waiter = self.start("waiter", "--on-full", "wait")
        self.say(waiter, f"alloc {3 * GIB}")
        self.await_wait("waiter")
        self.assertEqual(self.ask(holder, f"free {held}")["result"], 0)
        big = self.hear(waiter)
        self.assertEqual(big["result"], 0)
        self.take(holder, 3 * GIB, OUT_OF_MEMORY)  # it does not wait
        self.update("holder", "--on-full", "wait")
        self.say(holder, f"alloc {3 * GIB}")
        self.await_wait("holder")
        # To fail after all: at once.
        self.update("holder", "--on-full", "fail")
        self.assertEqual(self.hear(holder)["result"], OUT_OF_MEMORY)

    def test_a_limit_lowered_below_what_waits_refuses_it(self):
        holder = self.start("holder")
        self.take(holder, 3 * GIB)
        waiter = self.start("waiter", "--on-full", "wait")
        self.say(waiter, f"alloc {3 * GIB}")
        self.await_wait("waiter")
        self.update("waiter", "--memory", "1GiB")
        self.assertEqual(self.hear(waiter)["result"], OUT_OF_MEMORY)

    def test_sooner_when_its_share_is_told_to_wait_for_less(self):
        holder = self.start("holder")
        self.take(holder, 3 * GIB)
        waiter = self.start("waiter", "--on-full", "wait")
        self.say(waiter, f"alloc {3 * GIB}")
        self.await_wait("waiter")
        self.update("waiter", "--on-full", "wait=1ms")  # which are over
        self.assertEqual(self.hear(waiter)["result"], OUT_OF_MEMORY)

    def test_later_when_its_share_is_told_to_wait_for_more(self):
        """And then for less again. The client library, which gives up ten seconds after the span that it knows, leaves
        both to the agent."""
        holder = self.start("holder")
        self.take(holder, 3 * GIB)
        waiter = self.start("waiter", "--on-full", "wait=1s")
        self.say(waiter, f"alloc {3 * GIB}")
        self.await_wait("waiter")
        self.update("waiter", "--on-full", "wait")
        # Longer than a second and the ten of the client library.
        self.assertEqual(select.select([waiter.stdout], [], [], 12)[0], [], "it was answered")
        self.update("waiter", "--on-full", "wait=1ms")
        self.assertEqual(self.hear(waiter)["result"], OUT_OF_MEMORY)
        waiter.stdin.close()
        waiter.wait(harness.DEADLINE_S)
        self.assertNotIn("no agent answers", waiter.stderr.read())

    def test_not_by_an_update_that_is_refused(self):
        """It has its place before whoever came later."""
        holder = self.start("holder", memory="3584MiB")
        held = self.take(holder, 3 * GIB)
        first = self.start("first", "--on-full", "wait", memory="3584MiB")
        self.say(first, f"alloc {2304 * MIB}")
        self.await_wait("first")
        second = self.start("second", "--on-full", "wait", memory="3GiB")
        self.say(second, f"alloc {2816 * MIB}")
        self.await_wait("second")
        # So much is not there to be set aside.
        self.update("first", "--memory", "3GiB", "--memory-request", "3GiB", result=1)
        self.assertEqual(self.ask(holder, f"free {held}")["result"], 0)
        self.assertEqual(self.hear(first)["result"], 0)
        self.assertEqual(self.waits("second"), 1)

    def test_after_the_agent_was_killed_and_is_back(self):
        holder = self.start("holder")
        self.take(holder, 3 * GIB)
        waiter = self.start("waiter", "--on-full", "wait")
        self.say(waiter, f"alloc {3 * GIB}")
        self.await_wait("waiter")
        self.machine.kill_agent()
        self.machine.start_agent()  # it keeps the overcommit of the shares that it takes over
        self.assertEqual(self.machine.gpus()[0]["overcommit"], 2)
        self.await_wait("waiter")
        self.end(holder)
        self.assertEqual(self.hear(waiter)["result"], 0)

    def test_without_an_agent_it_fails_and_that_is_said(self):
        holder = self.start("holder")
        self.take(holder, 3 * GIB)
        waiter = self.start("waiter", "--on-full", "wait")
        self.say(waiter, f"alloc {3 * GIB}")
        self.await_wait("waiter")
        self.machine.kill_agent()
        self.assertEqual(self.hear(waiter)["result"], OUT_OF_MEMORY)
        waiter.stdin.close()
        waiter.wait(harness.DEADLINE_S)
        self.assertEqual(waiter.stderr.read().count("no agent answers"), 1)


class WhoNeverWaits(WaitingCase):
    def test_a_capture_and_a_host_function(self):
        holder = self.start("holder")
        self.take(holder, 3 * GIB)
        program = self.start("x", "--on-full", "wait")
        self.assertEqual(self.ask(program, "capture")["result"], 0)
        self.take(program, 3 * GIB, OUT_OF_MEMORY)
        self.assertEqual(self.ask(program, "end")["result"], 0)
        self.assertNotEqual(self.ask(program, f"callback {3 * GIB}")["result"], 0)
        self.say(program, f"alloc {3 * GIB}")
        self.await_wait("x")
        self.end(holder)
        self.assertEqual(self.hear(program)["result"], 0)


class Order(WaitingCase):
    def test_two_wait_and_a_guaranteed_one_is_untouched(self):
        sure = self.start("sure", "--guaranteed", memory="1GiB")
        holder = self.start("holder", "--on-full", "wait", memory="3GiB")
        self.take(holder, 2 * GIB)
        waiters = [self.start(name, "--on-full", "wait", memory="3GiB") for name in ("a", "b")]
        for name, program in zip("ab", waiters):
            self.say(program, f"alloc {2 * GIB + 512 * MIB}")
            self.await_wait(name)
        self.take(sure, GIB - 256 * MIB)
        self.end(holder)
        self.assertEqual(self.hear(waiters[0])["result"], 0)  # who came first
        self.await_wait("b")
        self.end(waiters[0])
        self.assertEqual(self.hear(waiters[1])["result"], 0)

    def test_what_cannot_be_promised(self):
        self.start("sure", "--guaranteed", memory="3GiB")
        for options in (("--memory", "3GiB"), ("--memory", "3GiB", "--guaranteed"),
                        ("--memory", "6GiB")):
            status, _, err = self.machine.call(self.machine.command([*options], ["true"]))
            self.assertEqual(status, 1, options)
            self.assertIn("promised", err)


class WithoutOvercommit(WaitingCase):
    AGENT = ()

    def test_no_more_than_there_is_is_promised(self):
        self.start("one", "--on-full", "wait")
        status, _, err = self.machine.call(self.machine.command(["--memory", "4GiB"], ["true"]))
        self.assertEqual(status, 1)
        self.assertIn("left", err)

    def test_bad_ratios(self):
        self.machine.kill_agent()
        for ratio, status in (("0.5", 2), ("x", 2), ("7=1.5", 1)):
            code, _, err = self.machine.call([harness.PRORATA, "agent", "--overcommit", ratio])
            self.assertEqual(code, status, err)
            self.assertIn("--overcommit", err)


if __name__ == "__main__":
    harness.unittest.main()
