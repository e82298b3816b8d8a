"""`prorata agent --resource-config`: Gemini's own configuration, and programs that follow it."""
import json
import os
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


class ResourceConfigCase(harness.MachineTestCase):
    def setUp(self):
        super().setUp()
        self.config_dir = self.machine.folder / "gemini"
        self.config_dir.mkdir()
        self.file = self.config_dir / "resource-config.txt"

    def write(self, *lines, file=None, count=None):
        """In place, as a shell's redirection does."""
        text = "\n".join([str(len(lines) if count is None else count), *lines]) + "\n"
        (file or self.file).write_text(text)

    def replace(self, *lines):
        """By rename, as most editors and all careful programs do."""
        building = self.config_dir / "building.tmp"
        self.write(*lines, file=building)
        building.rename(self.file)

    def start_agent(self, *options):
        self.machine.start_agent("--resource-config", f"0={self.file}", *options)

    def join(self, name, *program):
        command = self.machine.command(["--name", name], program or [sys.executable, PROGRAM])
        return self.machine.start(command, stdin=subprocess.PIPE)

    def join_well(self, name):
        program = self.join(name)
        self.assertEqual(json.loads(harness.read_line(program)), {"result": 0})
        return program

    def ask(self, program, line):
        program.stdin.write(line + "\n")
        program.stdin.flush()
        return json.loads(harness.read_line(program))

    def end(self, program):
        program.stdin.close()
        program.wait()

    def terms(self):
        """{name: (request, limit, memory)}"""
        return {name: (request, limit, memory)
                for name, (memory, request, limit, _) in self.machine.promises().items()}

    def becomes(self, terms):
        harness.wait_until(lambda: self.terms() == terms, what=f"{terms}")

    def events(self, kind):
        out = self.machine.call([harness.PRORATA, "events", "--all", "--no-follow", "--json"])[1]
        events = [json.loads(line) for line in out.splitlines()]
        return [event for event in events if event["event"] == kind]

    def is_refused(self, pattern):
        """The last thing said of the file; answers the terms in force."""
        harness.wait_until(lambda: any(re.search(pattern, event["detail"])
                                       for event in self.events("resource_config_refused")),
                           what=f"a refusal that says {pattern}")
        return self.terms()


class Following(ResourceConfigCase):
    def test_programs_of_one_id_share_its_line_and_follow_it(self):
        self.write(f"default/trainer 0.5 1.0 {2 * GIB}", f"b 0 0.5 {GIB}")
        self.start_agent()
        self.assertEqual(self.terms(), {"default/trainer": (0.5, 1, 2 * GIB), "b": (0, 0.5, GIB)})
        first, second = self.join_well("default/trainer"), self.join_well("default/trainer")
        self.assertEqual(self.ask(first, "total")["bytes"], 2 * GIB)
        self.assertEqual(self.ask(first, f"alloc {GIB}")["result"], 0)
        self.assertEqual(self.ask(second, f"alloc {GIB}")["result"], OUT_OF_MEMORY)
        share = self.machine.share("default/trainer")
        self.assertEqual({member["pid"] for member in share["members"]}, {first.pid, second.pid})
        self.assertEqual(share["kept_by"], {"kind": "file", "file": str(self.file)})

        self.write(f"default/trainer 0.25 0.75 {4 * GIB}", f"b 0 0.5 {GIB}")
        harness.wait_until(lambda: self.ask(second, "total")["bytes"] == 4 * GIB, what="4 GiB")
        self.assertEqual(self.terms()["default/trainer"], (0.25, 0.75, 4 * GIB))
        self.assertEqual(self.ask(second, f"alloc {GIB}")["result"], 0)
        # Below what is held: nothing is taken, and nothing more is given.
        self.replace(f"default/trainer 0.25 0.75 {GIB}", f"b 0 0.5 {GIB}")
        harness.wait_until(lambda: self.ask(first, "total")["bytes"] == GIB, what="1 GiB")
        self.assertEqual(self.ask(first, f"alloc {MIB}")["result"], OUT_OF_MEMORY)
        # As the user spells it, everywhere.
        self.assertIn("default/trainer", self.machine.call([harness.PRORATA, "ps"])[1])
        self.assertEqual([event["share"] for event in self.events("share_created")],
                         ["default/trainer", "b"])

    def test_a_limit_on_time_follows_under_load(self):
        self.write(f"x 0 0.25 {2 * GIB}")
        self.start_agent()
        self.machine.start(self.machine.command(["--name", "x"], [
            harness.GPULOAD, "--seconds", "3600", "--kernel-us", "2000"]))

        def second_above(least):
            before = self.machine.usage()
            time.sleep(1)
            return self.machine.busy_since(before) > least
        harness.wait_until(lambda: self.machine.usage()["busy_ns"] > 3e8, what="the load")
        self.replace(f"x 0 1 {2 * GIB}")
        self.becomes({"x": (0, 1, 2 * GIB)})
        harness.wait_until(lambda: self.machine.share("x")["entitled"] == 1, what="all of the GPU")
        harness.wait_until(lambda: second_above(0.5), what="twice the old limit")

    def test_a_swapped_link_as_a_config_map_has_it(self):
        def version(name, *lines):
            (self.config_dir / name).mkdir()
            self.write(*lines, file=self.config_dir / name / "resource-config.txt")
            (self.config_dir / "..data_tmp").symlink_to(name)
            (self.config_dir / "..data_tmp").rename(self.config_dir / "..data")
        version("..1", f"x 0 1 {GIB}")
        self.file.symlink_to("..data/resource-config.txt")
        self.start_agent()
        self.becomes({"x": (0, 1, GIB)})
        version("..2", f"x 0 1 {2 * GIB}")
        self.becomes({"x": (0, 1, 2 * GIB)})
        version("..3", f"x 0 1 {3 * GIB}")
        self.becomes({"x": (0, 1, 3 * GIB)})

    def test_a_folder_that_is_replaced(self):
        self.write(f"x 0 1 {GIB}")
        self.start_agent()
        self.config_dir.rename(self.machine.folder / "old")
        self.config_dir.mkdir()
        self.write(f"x 0 1 {2 * GIB}")
        self.becomes({"x": (0, 1, 2 * GIB)})
        self.write(f"x 0 1 {3 * GIB}")
        self.becomes({"x": (0, 1, 3 * GIB)})

    def test_a_file_that_is_gone_leaves_all_as_it_was_and_may_come_back(self):
        self.write(f"x 0 1 {GIB}")
        self.start_agent()
        self.file.unlink()
        self.assertEqual(self.is_refused("cannot read"), {"x": (0, 1, GIB)})
        self.write(f"x 0 1 {2 * GIB}")
        self.becomes({"x": (0, 1, 2 * GIB)})


class Lines(ResourceConfigCase):
    def test_a_line_that_is_gone_and_one_that_comes_back(self):
        self.write(f"a 0.5 1 {4 * GIB}", f"b 0 1 {GIB}")
        self.start_agent()
        program = self.join_well("a")
        self.write(f"c 0 1 {GIB}")
        harness.wait_until(lambda: self.machine.share("a")["ended"], what="the end of a")
        # Without members it is gone at once; with one it goes on, and nobody joins.
        self.assertEqual(set(self.terms()), {"a", "c"})
        self.assertEqual(self.ask(program, f"alloc {MIB}")["result"], 0)
        late = self.join("a")
        self.assertIn("nobody joins", late.communicate()[1])
        self.assertEqual(late.returncode, 1)
        # What is there again may be joined again.
        self.write(f"c 0 1 {GIB}", f"a 0.25 1 {4 * GIB}")
        harness.wait_until(lambda: not self.machine.share("a")["ended"], what="its line")
        self.end(self.join_well("a"))
        self.write(f"c 0 1 {GIB}")
        self.end(program)
        self.becomes({"c": (0, 1, GIB)})

    def test_what_has_no_room_yet_gets_it_when_there_is(self):
        self.write(f"a 0.8 1 {4 * GIB}")
        self.start_agent()
        program = self.join_well("a")
        self.write(f"b 0.8 1 {GIB}")
        in_force = self.is_refused(f"{re.escape(str(self.file))}:2: 'b': the share requests 0.8 ")
        self.assertEqual(in_force, {"a": (0.8, 1, 4 * GIB)})
        self.end(self.join_well("a"))  # the former settings are in force, all of them
        self.end(program)
        self.becomes({"b": (0.8, 1, GIB)})

    def test_two_lines_that_change_places(self):
        self.write(f"a 0.9 1 {12 * GIB}", f"b 0.1 1 {2 * GIB}")
        self.start_agent()
        self.join_well("a")
        self.join_well("b")
        self.write(f"b 0.9 1 {12 * GIB}", f"a 0.1 1 {2 * GIB}")
        self.becomes({"a": (0.1, 1, 2 * GIB), "b": (0.9, 1, 12 * GIB)})

    def test_a_killed_agent_goes_on_with_it_and_sees_what_changed(self):
        self.write(f"a 0.5 1 {GIB}", f"b 0 1 {GIB}")
        self.start_agent()
        program = self.join_well("a")
        self.assertEqual(
            self.machine.call([harness.PRORATA, "update", "a", "--weight", "7"])[0], 0)
        self.machine.kill_agent()
        self.write(f"a 0.5 1 {2 * GIB}")
        self.start_agent()
        self.becomes({"a": (0.5, 1, 2 * GIB)})
        self.assertEqual(self.machine.share("a")["weight"], 7)
        self.assertEqual(self.ask(program, "total")["bytes"], 2 * GIB)
        # A bad file is no reason to leave programs without an agent.
        self.machine.kill_agent()
        self.write(f"a 0.5 0.4 {2 * GIB}")
        self.start_agent()
        self.assertEqual(self.is_refused("is below its REQUEST"), {"a": (0.5, 1, 2 * GIB)})
        # An agent without the option has no such shares: they end.
        self.machine.kill_agent()
        self.machine.start_agent()
        harness.wait_until(lambda: self.machine.share("a")["ended"], what="the end of a")
        self.end(program)
        self.becomes({})


class Bad(ResourceConfigCase):
    def test_a_bad_file_changes_nothing(self):
        good = (f"a 0.5 1 {GIB}", f"n/b 0.25 0.5 {2 * GIB}")
        self.write(*good)
        self.start_agent()
        before = self.terms()
        name = re.escape(str(self.file))
        for lines, count, pattern in (
                ((f"a 0.5 1 {2 * GIB}", "b 0.1 1"), None, ":3: it has 3 fields, not 4"),
                ((f"a 0.6 1 {GIB}", f"n/b 0.5 0.5 {GIB}"), None, ":3: .*add up to 1.1, above 1"),
                ((f"a 0.6 1 {GIB}", f"a 0.1 0.5 {GIB}"), None, ":3: the ID 'a' is that of line 2"),
                ((f"a 0.6 0.5 {GIB}",), None, ":2: the LIMIT of 'a', 0.5, is below its REQUEST"),
                ((f"a 0.6 1 {GIB}",), 2, ":1: it says 2 clients, but 1 follow"),
                ((f"a 0.6 2 {GIB}",), None, ":2: the LIMIT '2' is no fraction"),
                (("a 0.6 1 0",), None, ":2: the GPU_MEM '0' is no number of bytes"),
                ((f"a 0.6 1 {GIB}", f"n/../b 0 1 {GIB}"), None, ":3: the ID 'n/../b' is none"),
                ((f"a 0.6 1 {GIB}", f"c 0 1 {99 * GIB}"), None, ":3: 'c': the share asks for 99 GiB"),
        ):
            self.write(*lines, count=count)
            self.assertEqual(self.is_refused("^" + name + pattern), before)
        for event in self.events("resource_config_refused"):
            self.assertNotIn("\n", event["detail"])
            self.assertEqual(event["gpu"], 0)
        self.assertIn("it says 2 clients, but 1 follow", self.machine.agent_log())
        self.write(f"a 0.75 1 {GIB}", good[1])
        self.becomes({**before, "a": (0.75, 1, GIB)})

    def test_names_of_others(self):
        self.write(f"a 0 1 {GIB}")
        self.start_agent()
        self.machine.start_load(["--name", "mine", "--memory", "1GiB"], ["--seconds", "3600"])
        harness.wait_until(lambda: self.machine.share("mine"), what="the share")
        self.write(f"a 0 1 {2 * GIB}", f"mine 0 1 {GIB}")
        self.assertEqual(self.is_refused("'mine': a share named 'mine' exists already")["a"], (0, 1, GIB))

    def test_what_its_line_says_is_said_nowhere_else(self):
        self.write(f"a 0.5 1 {GIB}")
        self.start_agent()
        status, _, err = self.machine.call(
            self.machine.command(["--name", "a", "--memory", "2GiB"], ["true"]))
        self.assertEqual((status, err.count("\n")), (1, 1))
        self.assertIn("has its terms from", err)
        for option in (["--memory", "2GiB"], ["--compute", "0.1"], ["--compute-limit", "0=0.5"],
                       ["--allow-users", "all"]):
            status, _, err = self.machine.call([harness.PRORATA, "update", "a", *option])
            self.assertEqual((status, err.count("\n")), (1, 1))
            self.assertIn(f"are those of its line in '{self.file}'", err)
        self.assertEqual(self.terms(), {"a": (0.5, 1, GIB)})

    def test_an_agent_does_not_start_with_what_it_cannot_do(self):
        def start(*options):
            status, _, err = self.machine.call([harness.PRORATA, "agent", *options])
            self.assertNotEqual(status, 0)
            self.assertEqual(err.count("\n"), 1)
            return err
        self.assertIn("cannot read", start("--resource-config", f"0={self.file}"))
        self.write("a 0 1")
        self.assertIn(f"{self.file}:2: it has 3 fields", start("--resource-config", f"0={self.file}"))
        self.write(f"a 0 1 {GIB}")
        self.assertIn("there is no GPU '7'", start("--resource-config", f"7={self.file}"))
        self.assertIn("both for one GPU", start("--resource-config", f"0={self.file}",
                                                "--resource-config", f"0={self.file}"))
        self.assertIn("is not a GPU and its file", start("--resource-config", str(self.file)))
        os.mkfifo(self.config_dir / "pipe")
        self.assertIn("is not a file", start("--resource-config", f"0={self.config_dir}/pipe"))


if __name__ == "__main__":
    unittest.main()
