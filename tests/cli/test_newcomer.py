"""The command line as a newcomer reads it: sizes, names, ends of shares, and what cannot be printed."""
import os
import pathlib
import re
import shlex
import unittest

import pytest

import harness
from harness import GIB

REFUSED, USAGE = 1, 2

TWO_GPUS = """
[[devices]]
memory = "16GiB"
[[devices]]
memory = "8GiB"
"""

README = pathlib.Path(__file__).resolve().parents[2] / "README.md"

pytestmark = pytest.mark.asan_ubsan


class NewcomerCase(harness.MachineTestCase):
    def setUp(self):
        super().setUp()
        self.machine.start_agent("--cdi-dir", self.machine.folder / "cdi")

    def prorata(self, *arguments, **options):
        return self.machine.call([harness.PRORATA, *arguments], **options)

    def good(self, *arguments):
        status, out, err = self.prorata(*arguments)
        self.assertEqual((status, err), (0, ""))
        return out

    def refused(self, *arguments, status=REFUSED):
        """The one line that says why."""
        got, out, err = self.prorata(*arguments)
        self.assertEqual((got, out, err.count("\n")), (status, "", 1), err)
        return err

    def hold(self, name):
        """A program that stays on the share, found or made."""
        load = self.machine.start_load(["--name", name],
                                       ["--allocate", "64MiB", "--announce", "--hold", "600"])
        harness.read_event(load, "allocated")
        return load

    def rows(self, *command):
        """A table as a list of {column: text}."""
        header, *lines = self.good(*command).splitlines()
        starts = [match.start() for match in re.finditer(r"(?<!\S)\S+(?: \S+)*", header)]
        ends = [*starts[1:], None]
        return [{header[a:b].strip(): line[a:b].strip() for a, b in zip(starts, ends)}
                for line in lines]


class Sizes(NewcomerCase):
    def test_a_person_means_the_same(self):
        for number, size in enumerate(("4G", "4GB", "4g", "4gb", "4Gi", "4GiB", "4 GiB", "4096M",
                                       "4194304k")):
            self.good("create", f"s{number}", "-m", size)
            self.assertEqual(self.machine.share(f"s{number}")["memory_limit_bytes"], 4 * GIB, size)
            self.good("rm", f"s{number}")

    def test_four_bytes_are_a_slip_of_the_pen(self):
        for command in (("create", "x", "--memory", "4"), ("run", "-m", "4", "--", "true")):
            self.assertRegex(self.refused(*command, status=USAGE),
                             r"'4' is 4 B, .*less than 64 MiB.*for example 4GiB")
        # A part of the GPU is known to the agent alone.
        self.assertIn("less than 64 MiB", self.refused("create", "x", "-m", "0.1%"))
        self.assertEqual(self.machine.ps(), [])


class Lists(NewcomerCase):
    def test_ps_of_some(self):
        for name in ("a", "b", "c"):
            self.good("create", name, "-m", "1G")
        self.assertEqual(self.good("ps", "-q"), "a\nb\nc\n")
        self.assertEqual(self.good("ps", "-q", "b", "a"), "a\nb\n")
        self.assertEqual([row["NAME"] for row in self.rows("ps", "c")], ["c"])
        self.assertNotIn('"a"', self.good("ps", "c", "--json"))
        self.assertIn("no share named 'nosuch'", self.refused("ps", "a", "nosuch"))
        waiter = self.machine.start([harness.PRORATA, "create", "late", "-m", "15G", "--wait"])
        harness.wait_until(lambda: self.good("ps", "-q", "--waiting") == "late\n", what="the wait")
        self.assertIn("late", self.good("ps", "late"))
        waiter.kill()

    def test_idle_shares_add_nothing_to_what_is_entitled(self):
        self.good("create", "idle", "-m", "1G", "--compute", "0.45")
        self.good("create", "idle2", "-m", "1G", "--compute", "0.3")
        load = self.machine.start_load(["--name", "busy", "-m", "2G"],
                                       ["--seconds", "600", "--kernel-us", "1000", "--announce"])
        harness.read_event(load, "kernels")

        def entitled():
            return {row["NAME"]: row["ENTITLED"] for row in self.rows("ps")}
        harness.wait_until(lambda: entitled() == {"busy": "100.0%", "idle": "-", "idle2": "-"},
                           what="all of it for the busy one")
        self.assertIn("entitled -", self.good("inspect", "idle"))
        figures = self.machine.share("idle")
        self.assertEqual((figures["entitled"], figures["active"]), (0, False))
        tops = {row["NAME"]: row["ENTITLED"] for row in self.rows("top", "--once")}
        self.assertEqual((tops["idle"], tops["busy"]), ("-", "100.0%"))

    def test_gpus_show_memory_in_use_and_percents(self):
        self.good("create", "x", "-m", "1G", "--compute", "0.25")
        self.hold("x")
        row, = self.rows("gpus")
        self.assertRegex(row["MEMORY"], r"^\S+ [KMG]?i?B / 16 GiB$")
        harness.wait_until(lambda: not self.rows("gpus")[0]["MEMORY"].startswith("0 B"),
                           what="memory in use")
        self.assertEqual(row["COMPUTE PROMISED"], "25%")
        self.assertEqual(self.rows("ps")[0]["COMPUTE"], "25%-100%")

    def test_events_of_no_share(self):
        self.assertIn("no share named 'nosuch'", self.refused("events", "--share", "nosuch"))
        self.assertIn("no share named 'nosuch'",
                      self.refused("events", "--share", "nosuch", "--no-follow"))
        self.good("create", "gone", "-m", "1G")
        self.good("rm", "gone")
        self.assertIn("the share ended", self.good("events", "--share", "gone", "--no-follow"))


class Words(NewcomerCase):
    """The help's examples and README's commands as they stand, and one word for each thing."""

    def typed(self, text):
        """The lines of `text` that call prorata, less their comments, as lists of words."""
        calls = [shlex.split(line, comments=True) for line in text.splitlines()
                 if re.match(r" +prorata ", line)]
        return [words for words in calls if words[1:] != ["COMMAND", "[OPTIONS]"]]

    def run_each(self, calls):
        """Each does what it says, where `python` is a program that ends."""
        python = self.machine.folder / "bin" / "python"
        python.parent.mkdir(exist_ok=True)
        python.write_text("#!/bin/sh\ntrue\n")
        python.chmod(0o755)
        path = f"{python.parent}:{os.environ['PATH']}"
        for words in calls:
            once = ["--once"] if words[1:] == ["top"] else []
            status, _, err = self.machine.call([harness.PRORATA, *words[1:], *once],
                                                environment={"PATH": path})
            self.assertEqual((status, err), (0, ""), words)

    def test_examples_of_the_help(self):
        calls = self.typed(self.good("--help").partition("Examples:")[2].partition("Words:")[0])
        self.assertEqual([words[1] for words in calls], ["run", "create", "ps", "update", "rm"])
        self.run_each(calls)
        self.assertEqual(self.machine.ps(), [])

    def test_commands_of_the_readme(self):
        calls = self.typed(README.read_text(encoding="utf-8"))
        self.assertEqual([words[1] for words in calls],
                         ["run", "create", "ps", "top", "update", "rm"])
        self.run_each(calls)
        self.assertEqual(self.machine.ps(), [])

    def test_one_word_each(self):
        self.good("create", "x", "-m", "1G", "--compute", "0.25")
        overview = self.good("--help")
        texts = {"--help": overview}
        for command in re.findall(r"^  ([a-z]+)  +[A-Z]", overview, re.M):
            texts[command] = self.good("help", command)
        self.assertGreater(len(texts), 14)
        for command in ("ps", "gpus", "inspect x", "top --once", "events --no-follow"):
            texts[command] = self.good(*command.split())
        for word in ("request", "limit", "promised", "entitled"):
            self.assertRegex(overview, rf"\n  {word} +\w", "the overview explains it")
        for name, text in texts.items():
            self.assertNotRegex(text, r"(?i)\b(quota|reserv\w+|set aside|allotted|entitlement|cap)\b", name)


class TwoGpus(NewcomerCase):
    MACHINE_TOML = TWO_GPUS

    def test_all_gpus(self):
        self.good("create", "both", "--gpus", "all", "-m", "1G,1=2G")
        on = self.machine.ps()[0]["devices"]
        self.assertEqual([(d["index"], d["memory_limit_bytes"]) for d in on],
                         [(0, GIB), (1, 2 * GIB)])
        status, out, err = self.prorata("run", "--gpus", "all", "-m", "1G", "--", "true")
        self.assertEqual((status, out, err), (0, "", ""))


class Ends(NewcomerCase):
    def test_rm_refuses_a_share_in_use_and_f_ends_it(self):
        self.good("create", "train", "-m", "2G")
        load = self.hold("train")
        why = self.refused("rm", "train")
        for part in ("share 'train' is in use by 1 process", f"gpuload, {load.pid}",
                     "prorata rm -f train"):
            self.assertIn(part, why)
        self.assertFalse(self.machine.share("train")["ended"])
        self.assertIsNone(load.poll())
        other = self.hold("train")
        self.good("rm", "-f", "train")
        self.assertEqual(self.machine.ps(), [])
        for program in (load, other):
            self.assertEqual(program.wait(harness.DEADLINE_S), -9)

    def test_rm_ends_each_that_it_can(self):
        for name in ("a", "b", "c"):
            self.good("create", name, "-m", "1G")
        self.hold("b")
        self.assertIn("'b' is in use", self.refused("rm", "a", "b", "c"))
        self.assertEqual(self.good("ps", "-q"), "b\n")

    def test_rm_f_ends_a_share_of_run(self):
        load = self.machine.start_load(["--name", "x", "-m", "1G"],
                                       ["--allocate", "64MiB", "--announce", "--hold", "600"])
        harness.read_event(load, "allocated")
        self.assertIn("is in use", self.refused("rm", "x"))
        self.good("rm", "-f", "x")
        self.assertEqual(load.wait(harness.DEADLINE_S), -9)


class Output(NewcomerCase):
    def test_what_cannot_be_written_is_said(self):
        self.good("create", "x", "-m", "1G")
        for command in (["--help"], ["help", "run"], ["version"], ["ps"], ["ps", "-q"],
                        ["ps", "--json"], ["gpus"], ["gpus", "--json"], ["inspect", "x"],
                        ["inspect", "x", "--json"], ["cdi", "x"], ["cdi", "--volumes", "x"],
                        ["events", "--no-follow"], ["events", "--all", "--json"], ["top", "--once"],
                        ["top", "--json"], ["top"], ["debug", "trace"],
                        ["simulate", "--gpus", "8", "--no-progress"]):
            with self.subTest(command=command), open("/dev/full", "w") as full:
                status, _, err = self.prorata(*command, stdout=full)
                self.assertEqual(status, REFUSED, err)
                self.assertIn("cannot write", err)
                self.assertIn("No space left on device", err)

    def test_a_closed_standard_output_is_no_file_of_the_commands_own(self):
        self.good("create", "x", "-m", "1G")
        for command in (["version"], ["ps"], ["gpus", "--json"], ["inspect", "x"], ["top", "--once"],
                        ["events", "--no-follow"], ["debug", "trace"]):
            with self.subTest(command=command):
                status, out, err = self.machine.call(
                    ["bash", "-c", 'exec "$@" >&-', "bash", harness.PRORATA, *command])
                self.assertEqual((status, out), (REFUSED, ""), err)
                self.assertIn("Bad file descriptor", err)
        # A program still finds closed what was closed.
        command = ["bash", "-c", 'exec "$@" <&- >&-', "bash", harness.PRORATA, "run", "-m", "1G", "--", "bash", "-c",
                   "ls -l /proc/$$/fd >&2"]
        status, _, err = self.machine.call(command)
        self.assertEqual(status, 0, err)
        self.assertNotIn("/dev/null", err)

    def test_an_agent_without_standard_descriptors_writes_to_no_file_of_its_own(self):
        self.machine.kill_agent()
        agent = self.machine.start(
            ["bash", "-c", 'exec "$@" <&- >&- 2>&-', "bash", harness.PRORATA, "agent"])
        harness.wait_until(self.machine.agent_answers, what="an answer of the agent")
        for number in range(3):
            self.assertEqual(os.readlink(f"/proc/{agent.pid}/fd/{number}"), "/dev/null")

    def test_a_share_whose_name_cannot_be_printed_is_named(self):
        with open("/dev/full", "w") as full:
            status, _, err = self.prorata("create", "y", "-m", "1G", stdout=full)
        self.assertEqual(status, REFUSED)
        self.assertIn("share 'y' was made", err)
        self.good("rm", "y")

    def drawn(self, **environment):
        """The bytes that `top` writes to a terminal, up to the first whole screen and its end."""
        ours, its = os.openpty()
        process = self.machine.start([harness.PRORATA, "top"],
                                     {"TERM": "xterm-256color", **environment},
                                     stdin=its, stdout=its)
        os.close(its)
        drawn = b""
        try:
            while b"/ 1 GiB" not in drawn:  # the first screen may be before the agent's first answer
                drawn += os.read(ours, 65536)
            os.write(ours, b"q")
            while chunk := os.read(ours, 65536):
                drawn += chunk
        except OSError:
            pass  # it has ended
        finally:
            os.close(ours)
        self.assertEqual(process.wait(harness.DEADLINE_S), 0)
        return drawn

    def test_no_color(self):
        self.good("create", "x", "-m", "1G")
        self.hold("x")  # more than half of its memory: the bar has a color
        for environment, colored in (({}, True), ({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False)):
            found = re.search(rb"\x1b\[(?:\d+;)*[34][0-7](?:;\d+)*m", self.drawn(**environment))
            self.assertEqual(found is not None, colored, environment)


if __name__ == "__main__":
    unittest.main()
