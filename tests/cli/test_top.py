"""prorata top: on a terminal a screen, elsewhere tables and objects."""
import json
import os
import re
import signal
import unittest

import pytest

import harness
import terminal

pytestmark = [pytest.mark.asan_ubsan, pytest.mark.tsan]


class TopTestCase(harness.MachineTestCase):
    def start_kernels(self, name, *share_options):
        process = self.machine.start_load(
            ["--name", name, "--memory", "2GiB", *share_options],
            ["--seconds", "600", "--kernel-us", "1000", "--announce"])
        harness.read_event(process, "kernels")
        return process

    def start_idle(self, name, *share_options):
        process = self.machine.start(
            self.machine.command(["--name", name, "--memory", "1GiB", *share_options],
                                 ["sleep", "600"]))
        harness.wait_until(lambda: self.machine.share(name), what=f"share {name}")
        return process

    def top(self, *options, columns=120, rows=30, **environment):
        window = terminal.Terminal([harness.PRORATA, "top", *options],
                                   {**self.machine.environment, **environment}, columns, rows)
        self.addCleanup(window.__exit__)
        return window

    def assert_left_well(self, window):
        """As it was: the modes of the line, the normal screen, the cursor."""
        self.assertEqual(window.modes(), window.modes_before)
        self.assertNotIn(1049, window.private_modes())
        self.assertIn(25, window.private_modes())


class Screen(TopTestCase):
    def test_shows_shares_and_why_they_are_slow(self):
        self.machine.start_agent()
        self.start_kernels("greedy", "--compute", "0.6")
        self.start_kernels("held", "--compute-limit", "0.2")
        self.start_idle("lazy")
        window = self.top("--interval", "200ms", columns=180)
        shown = (r"GPU 0 +\[.*memory .*/ 16 GiB",
                 r"\n *greedy .* 2 GiB ",
                 r"\n *held .*20\.0%.*at its limit \d+%",
                 r"\n *lazy .*/ 1 GiB ")
        window.wait_until(lambda text: all(re.search(part, text) for part in shown), "every row")
        self.assertIn(1049, window.private_modes())
        self.assertNotIn(25, window.private_modes())
        window.press("q")
        self.assertEqual(window.wait(), 0)
        self.assert_left_well(window)

    def test_sorts_by_keys(self):
        self.machine.start_agent()
        for name, memory in (("first", "1GiB"), ("second", "3GiB"), ("third", "2GiB")):
            load = self.machine.start_load(
                ["--name", name, "--memory", "4GiB"],
                ["--allocate", memory, "--seconds", "600", "--announce"])
            harness.read_event(load, "allocated")
        window = self.top("--sort", "name", "--interval", "200ms")

        def order(text):
            return re.findall(r"^(first|second|third) ", text, re.MULTILINE)

        def shows(*names):
            window.wait_until(lambda text: order(text) == list(names), f"{names}")

        shows("first", "second", "third")
        window.press("m")
        shows("second", "third", "first")
        window.press("r")
        shows("first", "third", "second")
        window.press("n")
        shows("third", "second", "first")
        window.press("?")
        window.wait_for("any key goes back")
        window.press("xr")
        shows("first", "second", "third")
        window.press("\x03")  # Ctrl-C
        self.assertEqual(window.wait(), 0)
        self.assert_left_well(window)

    def test_follows_the_window(self):
        self.machine.start_agent()
        for i in range(8):
            self.start_idle(f"share{i}")
        window = self.top("--sort", "name", "--interval", "200ms")
        window.wait_for("share7")
        self.assertIn("MEMBERS", window.text())
        window.resize(50, 10)
        window.wait_until(lambda text: re.search(r"1-\d of 8$", text) and "share0" in text,
                          "a part of the rows")
        self.assertNotIn("MEMBERS", window.text())
        self.assertNotIn("share7", window.text())
        window.press("\x1bOF")  # End
        window.wait_until(lambda text: "share7" in text and "share0" not in text, "the last rows")
        window.resize(9, 2)
        window.wait_for("prorata ~")
        window.resize(200, 50)
        window.wait_until(lambda text: "share0" in text and "share7" in text and "MEMBERS" in text,
                          "everything")
        window.press("q")
        self.assertEqual(window.wait(), 0)
        self.assert_left_well(window)

    def test_without_utf8_all_is_ascii(self):
        self.machine.start_agent()
        self.start_idle("lazy")
        window = self.top(LC_ALL="C")
        text = window.wait_for("lazy")
        self.assertTrue(text.isascii(), text)
        utf8 = self.top(LC_ALL="C.UTF-8")
        self.start_kernels("busy")
        utf8.wait_until(lambda text: "█" in text, "a bar of blocks")

    def test_the_agent_goes_and_comes_back(self):
        window = self.top("--interval", "200ms")
        window.wait_for("no agent runs at")
        self.machine.start_agent()
        window.wait_until(lambda text: "0 shares, 1 GPU" in text and "no agent" not in text,
                          "an agent")
        self.start_idle("lazy")
        window.wait_for("lazy")
        self.machine.kill_agent()
        window.wait_until(lambda text: all(part in text for part in (
            "no agent runs at", "The figures are of", "lazy")), "its absence and the last figures")
        agent = self.machine.start_agent()
        window.wait_until(lambda text: "no agent" not in text and "lazy" in text, "its return")
        agent.send_signal(signal.SIGSTOP)
        window.wait_for("the agent does not answer")
        agent.send_signal(signal.SIGCONT)
        window.wait_until(lambda text: "does not answer" not in text and "lazy" in text,
                          "an answer")
        agent.send_signal(signal.SIGSTOP)
        window.wait_for("the agent does not answer")
        window.press("q")  # at once, whatever the agent does
        self.assertEqual(window.wait(), 0)
        agent.send_signal(signal.SIGCONT)
        self.assert_left_well(window)

    def test_ends_well_by_a_signal(self):
        self.machine.start_agent()
        for number in (signal.SIGTERM, signal.SIGHUP):
            window = self.top("--interval", "200ms")
            window.wait_for("q quit")
            os.kill(window.pid, number)
            self.assertEqual(window.wait(), 0)
            self.assert_left_well(window)

    def test_is_stopped_and_continued(self):
        """Under a shell with jobs, for only there Ctrl-Z stops a program."""
        self.machine.start_agent()
        window = terminal.Terminal(
            ["sh", "-mc", 'echo READY; "$0" top; echo STOPPED; read line; fg', harness.PRORATA],
            self.machine.environment, 120, 30)
        self.addCleanup(window.__exit__)
        window.wait_for("q quit")
        self.assertNotEqual(window.modes(), window.modes_before)
        window.press("\x1a")
        window.wait_for("STOPPED")
        self.assert_left_well(window)
        window.press("\n")
        window.wait_until(lambda text: 1049 in window.private_modes() and "q quit" in text,
                          "the screen again")
        window.press("q")
        self.assertEqual(window.wait(), 0)
        self.assert_left_well(window)

    def test_is_stopped_while_it_draws(self):
        """ncurses ignores the signal while it writes: one in five of those that came then was lost."""
        self.machine.start_agent()
        for _ in range(20):
            window = terminal.Terminal(
                ["sh", "-mc", '"$0" top; echo STOPPED; read line; fg', harness.PRORATA],
                self.machine.environment, 120, 30)
            self.addCleanup(window.__exit__)
            window.wait_for("GPU 0")  # the first lines of a screen that is being drawn
            window.press("\x1a")
            window.wait_for("STOPPED")
            window.press("\n")
            window.wait_for("q quit")
            window.press("q")
            self.assertEqual(window.wait(), 0)

    def test_a_terminal_without_a_screen_gets_tables(self):
        self.machine.start_agent()
        for name in ("dumb", "no-such-terminal"):
            window = self.top("--interval", "200ms", TERM=name)
            window.wait_for(f"TERM is '{name}', on which no screen can be drawn")
            window.wait_for("ENTITLED")
            window.press("\x03")
            self.assertEqual(window.wait(), 0)
            self.assertEqual(window.modes(), window.modes_before)


class Tables(TopTestCase):
    def call(self, *options):
        return self.machine.call([harness.PRORATA, "top", *options])

    def test_once(self):
        self.machine.start_agent()
        self.start_idle("lazy", "--compute", "0.25")
        status, out, err = self.call("--once")
        self.assertEqual((status, err), (0, ""))
        header, device, share = out.splitlines()
        self.assertEqual(re.split("  +", header), [
            "TIME", "NAME", "GPU", "GPU TIME", "ENTITLED", "LIMIT", "WAITED", "AT LIMIT", "MEMORY",
            "WHY"])
        self.assertRegex(device, r"^\d\d:\d\d:\d\d  -     0 .* / 16 GiB +-$")
        self.assertRegex(share, r"  lazy  0 .* 0 B / 1 GiB +(no program runs|idle 100%)$")

    def test_a_table_each_time_until_the_reader_is_gone(self):
        self.machine.start_agent()
        self.start_idle("lazy")
        process = self.machine.start([harness.PRORATA, "top", "--interval", "100ms"])
        lines = [harness.read_line(process) for _ in range(11)]
        self.assertEqual([line.split()[0] if line.strip() else "" for line in lines[::4]],
                         ["TIME", "TIME", "TIME"])
        self.assertEqual(lines[3].strip(), "")
        process.stdout.close()
        self.assertEqual(process.wait(timeout=harness.DEADLINE_S), 0)
        self.assertEqual(process.stderr.read(), "")

    def test_objects(self):
        self.machine.start_agent()
        self.start_kernels("busy", "--compute-limit", "0.3")
        process = self.machine.start([harness.PRORATA, "top", "--json", "--interval", "100ms"])
        last = 0

        def look():
            nonlocal last
            seen = json.loads(harness.read_line(process))
            self.assertGreaterEqual(seen["time_unix_ms"], last)
            last = seen["time_unix_ms"]
            self.assertEqual(seen["devices"][0]["index"], 0)
            return seen["shares"][0]["devices"][0]

        on = harness.wait_until(lambda: (on := look())["throttle_reasons"][:1] == ["at_limit"] and on,
                                what="a share at its limit")
        self.assertGreater(on["at_limit_part"], 0.05)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=harness.DEADLINE_S), 0)

    def test_who_holds_more_than_it_may_is_told(self):
        self.machine.start_agent()
        load = self.machine.start_load(["--name", "big", "--memory", "4GiB"],
                                       ["--allocate", "2GiB", "--seconds", "600", "--announce"])
        harness.read_event(load, "allocated")
        self.machine.call([harness.PRORATA, "update", "big", "--memory", "1GiB"])
        status, out, _ = self.call("--once", "--json")
        self.assertEqual(status, 0)
        on = json.loads(out)["shares"][0]["devices"][0]
        self.assertIn("over_memory_limit", on["throttle_reasons"])
        self.assertIn("over its memory limit", self.call("--once")[1])

    def test_without_an_agent(self):
        status, out, err = self.call("--once")
        self.assertEqual(status, 0)
        self.assertTrue(out.startswith("TIME  NAME"), out)
        self.assertEqual(len(out.splitlines()), 1)
        self.assertIn("no agent runs at", err)
        status, out, _ = self.call("--once", "--json")
        self.assertEqual((status, json.loads(out)["shares"]), (0, []))

    def test_an_agent_that_comes_late_and_goes(self):
        process = self.machine.start([harness.PRORATA, "top", "--interval", "100ms"])
        self.assertIn("no agent runs at", process.stderr.readline())
        self.machine.start_agent()
        self.assertIn("the agent answers again", process.stderr.readline())
        self.assertIn("ENTITLED", harness.read_line(process))
        self.machine.kill_agent()
        self.assertIn("no agent runs at", process.stderr.readline())
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=harness.DEADLINE_S), 0)

    def test_an_agent_of_somebody_else_is_refused(self):
        self.machine.runtime_dir.rmdir()
        self.machine.runtime_dir.write_text("")  # a file where the folder should be
        status, out, err = self.call()
        self.assertEqual((status, out), (1, ""))
        self.assertEqual(len(err.splitlines()), 1, err)

    def test_bad_options(self):
        for options, complaint in ((["--interval", "1ms"], "100ms"), (["--interval", "2h"], "1h"),
                                   (["--interval", "fast"], "fast"), (["--sort", "size"], "size"),
                                   (["x"], "x")):
            status, out, err = self.call(*options)
            self.assertEqual((status, out), (2, ""), options)
            self.assertIn(complaint, err)
            self.assertEqual(len(err.splitlines()), 1, err)


if __name__ == "__main__":
    unittest.main()
