"""Scenarios in many real processes on the simulated GPU, on a clock that is slowed down as the noise
of this machine asks for. A run that noise disturbed is skipped, and says by what.
"""
import os
import pathlib
import signal
import subprocess
import sys
import unittest

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import processes  # pylint: disable=wrong-import-position
import scenario as scenarios  # pylint: disable=wrong-import-position

pytestmark = pytest.mark.alone

FOLDER = pathlib.Path(__file__).resolve().parent


def shortened_text(name, seconds):
    path = FOLDER / name
    return scenarios.shortened(path.read_text(encoding="utf-8"), 1000 * seconds)


def shortened(name, seconds):
    return scenarios.parse(shortened_text(name, seconds), name)


class ProcessesTestCase(unittest.TestCase):
    def check(self, name, seconds=2):
        """The scenario's expectations, in many processes, and what the virtual clock says of it."""
        text = shortened_text(name, seconds)
        outcome = processes.run_patiently(scenarios.parse(text, name))
        if outcome.gpu_time:
            processes.compare(outcome, processes.virtual_time(text))
        print(outcome.json())
        if outcome.skipped:
            self.skipTest(f"{name}: {outcome.skipped}")
        self.assertFalse(outcome.differs, outcome.json())


class WithoutProrata(ProcessesTestCase):
    """What the simulated device does with programs that nobody holds."""

    def test_two_busy_programs_get_half_each(self):
        self.check("two_busy_without.toml")

    def test_a_long_kernel_gets_its_time_slices_and_no_more(self):
        self.check("long_kernel_without.toml", 2.5)

    def test_a_pair_with_gaps_interleaves(self):
        self.check("gaps_without.toml")


class WithProrata(ProcessesTestCase):
    def test_three_busy_shares_get_what_they_are_entitled_to(self):
        self.check("shares_532.toml", 2.5)

    def test_programs_of_all_kinds(self):
        self.check("mixed.toml", 2.5)

    def test_a_program_of_many_functions(self):
        self.check("many_functions.toml")

    def test_a_pair_with_gaps_interleaves(self):
        self.check("gaps.toml")


class Noise(unittest.TestCase):
    """A machine loaded by other work."""

    def setUp(self):
        spin = "while :; do :; done"
        self.hogs = [subprocess.Popen(["sh", "-c", spin]) for _ in range(4 * os.cpu_count())]

    def tearDown(self):
        for hog in self.hogs:
            hog.send_signal(signal.SIGKILL)
            hog.wait()

    def test_is_seen_before_a_run(self):
        found = processes.probe(shortened("two_busy.toml", 2))
        self.assertRegex(found.get("refusal", ""), r"too noisy: .*wake-ups late by \d+ us")

    def test_is_seen_while_a_scenario_runs(self):
        outcome = processes.run(shortened("two_busy.toml", 1), dilation=3)
        self.assertRegex(outcome.skipped, r"the run was disturbed: .*wake-ups late by \d+ us")
        self.assertEqual(outcome.json()["verdict"], "skipped")


class Judgement(unittest.TestCase):
    """What each program got is told from two looks at the machine's account."""

    def judged(self, a_ns, b_ns, text=""):
        scenario = scenarios.parse("""
            name = "x"
            duration_ms = 1000
            [[programs]]
            name = "a"
            [[programs]]
            name = "b"
            count = 2
            share = "s"
            [[expect]]
            program = "a"
            gpu_time = 0.5
            tolerance_points = 1.0
            """ + text, "x")
        outcome = processes.Outcome(scenario)
        first = {"now_ns": 100, "busy_ns": 50, "processes": {"1": 10, "2": 20, "3": 30, "9": 7}}
        last = {"now_ns": 1100, "busy_ns": 950,
                "processes": {"1": 10 + a_ns, "2": 20 + b_ns, "3": 30 + b_ns, "9": 700}}
        processes.judge(outcome, first, last, {"a": 1, "b-0": 2, "b-1": 3})
        return outcome

    def test_parts_are_of_the_programs_device_time(self):
        outcome = self.judged(500, 250)
        self.assertEqual(outcome.gpu_time, {"a": 0.5, "b": 0.5})
        self.assertEqual(outcome.share_time, {"a": 0.5, "s": 0.5})
        self.assertEqual(outcome.device_use, 0.9)
        self.assertEqual(outcome.differs, [])

    def test_three_times_the_tolerance_and_no_more(self):
        self.assertEqual(self.judged(529, 235).differs, [])  # 52.95 %
        self.assertIn("a got 53.1 %, not 50.0 % within 3.0 points", self.judged(531, 234.5).differs)

    def test_a_program_that_did_nothing_got_nothing(self):
        self.assertEqual(self.judged(0, 250).gpu_time["a"], 0)
        self.assertEqual(len(self.judged(0, 0).differs), 1)

    def test_three_points_apart_from_the_virtual_clock_and_no_more(self):
        outcome = self.judged(500, 250)
        processes.compare(outcome, {"a": 0.529, "b": 0.471})
        self.assertEqual(outcome.differs, [])
        processes.compare(outcome, {"a": 0.531, "b": 0.471})
        self.assertEqual(outcome.differs, ["a got 50.0 %, on the virtual clock 53.1 %: "
                                           "more than 3 points apart"])

    def test_a_disturbed_run_is_skipped_whatever_it_gave(self):
        for a_ns in (500, 900):
            outcome = self.judged(a_ns, 250)
            outcome.skipped = "noisy"
            self.assertEqual(outcome.json()["verdict"], "skipped")

    def test_spreads_are_by_nearest_rank(self):
        self.assertIsNone(processes.spread([]))
        self.assertEqual(processes.spread(range(200000, 0, -1000)),
                         {"count": 200, "p50_ms": 100, "p99_ms": 198, "most_ms": 200})

    def test_device_use_is_of_the_time(self):
        expect = "[[expect]]\ndevice_use = true\ngpu_time = 0.99\ntolerance_points = 2.0\n"
        self.assertEqual(len(self.judged(500, 250, expect).differs), 1)


class Reading(unittest.TestCase):
    def assert_refused(self, text, said):
        with self.assertRaisesRegex(scenarios.ScenarioError, said):
            scenarios.parse(text, "file")

    def test_every_file_of_this_folder(self):
        files = sorted(FOLDER.glob("*.toml"))
        self.assertTrue(files)
        for path in files:
            scenario = scenarios.read(path)
            self.assertTrue(scenario.expect, path)
            self.assertGreater(scenario.span()[0], 0)

    def test_what_is_unknown_or_contradicts(self):
        good = 'name = "x"\nduration_ms = 10\n[[programs]]\nname = "a"\n'
        scenarios.parse(good, "file")
        self.assert_refused(good + "kernel_ms = 3\n", r"programs\[0\].kernel_ms: unknown setting")
        self.assert_refused("seconds = 3\n" + good, "file: seconds: unknown setting")
        self.assert_refused(good + "stop_ms = 11\n", "start_ms <= stop_ms <= duration_ms")
        self.assert_refused(good + "per_sync = 0\ngap_us = 1\n", "a gap comes after")
        self.assert_refused(good + '[[expect]]\nprogram = "b"\ngpu_time = 1\n', "there is no b")
        self.assert_refused(good + '[[expect]]\nprogram = "a"\n', "gpu_time")
        self.assert_refused(good + 'compute = "0.5"\n[[programs]]\nname = "b"\nshare = "a"\n'
                            'compute = "0.4"\n', "different terms of compute")

    def test_open_loops(self):
        good = 'name = "x"\nduration_ms = 10\n[[programs]]\nname = "a"\nper_sync = 2\n'
        program = scenarios.parse(good + "every_us = 2e4\npoisson = true\npriority = 3\n"
                                  "yield_within_ms = 0.5\n", "file").programs[0]
        options = list(map(str, program.load_options(1)))
        self.assertEqual(options[options.index("--every-us") + 1], "20000")
        self.assertIn("--poisson", options)
        options = program.share_options()
        self.assertEqual(options[options.index("--priority") + 1], "3")
        self.assertEqual(options[options.index("--yield-within") + 1], "0.5ms")
        self.assert_refused(good + "every_us = 5\ngap_us = 5\n", "every_us goes with")

    def test_a_ceiling_and_updates(self):
        good = ('name = "x"\nduration_ms = 10\nelastic_ceiling = "0.9"\n[[programs]]\nname = "a"\n'
                '[[updates]]\nat_ms = 7\nshare = "a"\npriority = 3\n'
                '[[updates]]\nat_ms = 5\nshare = "a"\ncompute_limit = "0.6"\n')
        scenario = scenarios.parse(good, "file")
        self.assertEqual(scenario.elastic_ceiling, "0.9")
        self.assertEqual([update.term_options() for update in scenario.updates],
                         [["--compute-limit", "0.6"], ["--priority", "3"]])
        self.assert_refused(good.replace("at_ms = 5", "at_ms = 11"), "at_ms up to duration_ms")
        self.assert_refused(good.replace('at_ms = 5\nshare = "a"', 'at_ms = 5\nshare = "b"'),
                            "the name of a share")
        self.assert_refused(good.replace("priority = 3\n", ""), "nothing to change of a")

    def test_a_shorter_file_differs_in_its_length_alone(self):
        text = (FOLDER / "two_busy.toml").read_text(encoding="utf-8")
        short = scenarios.shortened(text, 2000)
        self.assertEqual(scenarios.parse(short, "x").duration_ms, 2000)
        self.assertEqual(short.count("\n"), text.count("\n"))
        self.assertEqual(scenarios.shortened(text, 1e6), text.replace("= 5500", "= 5500"))

    def test_machine(self):
        machine = {"devices": [{"name": "a \"b\"", "time_slice_us": 500}]}
        text = scenarios.machine_toml(machine, 8)
        self.assertEqual(scenarios.tomllib.loads(text), {**machine, "dilation": 8})


if __name__ == "__main__":
    unittest.main()
