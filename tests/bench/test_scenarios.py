"""The scenario benchmarks: every scenario can be read by both readers, figures are computed as said, and
pictures are whole."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.dom.minidom

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PRORATA_BUILD_DIR", ROOT / "build")).resolve()
sys.path[:0] = [str(ROOT / "bench" / "scenarios"), str(ROOT / "bench"), str(ROOT / "tests" / "scenarios")]
import compare   # pylint: disable=wrong-import-position
import families  # pylint: disable=wrong-import-position
import gpu       # pylint: disable=wrong-import-position
import scenario  # pylint: disable=wrong-import-position
import charts    # pylint: disable=wrong-import-position
import virtual   # pylint: disable=wrong-import-position

pytestmark = pytest.mark.alone

SIMULATION = BUILD / "bin" / "simulation"


def report(**busy_ms):
    device = [sum(parts) for parts in zip(*busy_ms.values())]
    return {"step_ms": 100, "device_ms": device,
            "programs": [{"name": name, "busy_ms": line} for name, line in busy_ms.items()]}


class Figures(unittest.TestCase):
    def test_the_share_error_is_that_of_the_worst_window(self):
        one = report(a=[0, 50, 100, 200, 200], b=[0, 50, 100, 100, 200])
        half = {"a": 0.5, "b": 0.5}
        self.assertAlmostEqual(virtual.share_error(one, half, 100, 0), 50)
        self.assertAlmostEqual(virtual.share_error(one, half, 200, 0), 25)
        self.assertAlmostEqual(virtual.share_error(one, half, 400, 0), 0)
        self.assertAlmostEqual(virtual.share_error(one, half, 200, 200), 0)

    def test_rates_are_of_the_time(self):
        (first_s, first), (second_s, second) = virtual.rates(report(a=[0, 50, 150]), "a")
        self.assertEqual((first, second), (0.5, 1.0))
        self.assertAlmostEqual(first_s, 0.05)
        self.assertAlmostEqual(second_s, 0.15)

    def test_the_worst_of_the_open_loops_counts(self):
        one = {"programs": [{"name": "x", "latency": {"p99_ms": 3}}, {"name": "y", "latency": {"p99_ms": 5}},
                            {"name": "z"}]}
        self.assertEqual(virtual.p99_ms(one), 5)
        self.assertEqual(virtual.p99_ms(one, "x"), 3)
        self.assertIsNone(virtual.p99_ms(one, "z"))


class Scenarios(unittest.TestCase):
    def test_both_readers_take_every_one(self):
        everything = list(families.everything())
        names = [benchmark.name for benchmark in everything]
        self.assertEqual(len(set(names)), len(names))
        with tempfile.TemporaryDirectory() as folder:
            for benchmark in everything:
                self.assertEqual(scenario.parse(benchmark.text, benchmark.name).prorata, True)
                # A moment of it: what cannot be read ends with 2.
                path = pathlib.Path(folder, benchmark.name + ".toml")
                last = max([100] + [p.start_ms + 10 for p in scenario.parse(benchmark.text, "x").programs])
                text = benchmark.text.replace("stop_ms", "# stop_ms").replace("warmup_ms", "# warmup_ms")
                path.write_text(scenario.shortened(text, last), encoding="utf-8")
                done = subprocess.run([SIMULATION, path, "--json"], capture_output=True, text=True,
                                      check=False, timeout=60)
                self.assertIn(done.returncode, (0, 1), f"{benchmark.name}: {done.stderr}")

    def test_traces_of_the_comparison_name_the_programs_they_judge(self):
        for title, programs, expected in compare.TRACES:
            self.assertLessEqual(set(expected), {program["name"] for program in programs}, title)
            self.assertLessEqual(len(title), 100)

    def test_the_same_seed_gives_the_same_report(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "x.toml")
            path.write_text(families.text_of("x", 500, 0, [{"name": "a"}, {"name": "b"}]), encoding="utf-8")
            for policy in ("default", "gemini", "round-robin", "none"):
                first, again = (virtual.run(SIMULATION, path, policy)[0] for _ in range(2))
                self.assertEqual(first.pop("policy"), policy)
                again.pop("policy")
                for one in (first, again):
                    one.pop("cpu_s")
                self.assertEqual(first, again)


class Stamps(unittest.TestCase):
    """Layer G's referee."""

    def test_overlaps_are_divided_between_programs(self):
        kernels = {"a": [(0, 10), (20, 40)], "b": [(5, 15), (30, 60), (35, 40)]}
        busy, any_ns = gpu.divided(kernels, 0, 50)
        self.assertEqual(busy, {"a": 5 + 2.5 + 10 + 5, "b": 2.5 + 5 + 5 + 10})
        self.assertEqual(any_ns, 15 + 30)

    def test_kernels_of_one_program_at_once_count_once(self):
        self.assertEqual(gpu.divided({"a": [(0, 10), (2, 12)]}, 0, 100), ({"a": 12.0}, 12))

    def test_the_window_begins_with_the_first_kernel(self):
        one = scenario.parse('name = "x"\nduration_ms = 3\nwarmup_ms = 1\n[[programs]]\nname = "a"\n'
                             '[[programs]]\nname = "b"\nstart_ms = 2\n', "x")
        found = gpu.judge(one, {"a": [(10_000_000, 12_000_000)], "b": [(12_000_000, 20_000_000)]})
        self.assertEqual(found, {"gpu_time": {"a": 0.5, "b": 0.5}, "device_use": 1.0})

    def test_it_runs_on_the_simulated_gpu(self):
        """Only that it runs: noise decides what programs get on a machine that is not looked at."""
        benchmark = next(b for b in families.everything() if b.name == "critical-beside")
        found = gpu.run(benchmark, BUILD, simulated_dilation=2, seconds=1)
        for policy in ("default", "none"):
            self.assertAlmostEqual(sum(found[policy]["gpu_time"].values()), 1)
            self.assertGreater(min(found[policy]["gpu_time"].values()), 0)
            self.assertGreater(found[policy]["latency"]["critical"]["count"], 0)


class Pictures(unittest.TestCase):
    @unittest.skipUnless(charts.installed(), "no matplotlib: scripts/setup.sh plots")
    def test_every_series_has_a_line_and_a_name(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "picture.svg")
            charts.draw(path, [
                {"title": "a < b", "x_title": "x", "y_max": 1,
                 "series": {"one": [(0, 0), (1, 1)], "two": [(0, 1), (1, 0)]}},
                {"title": "c", "x_title": "n", "log_x": True, "series": {"one": [(1, 3), (64, 5)]}}])
            document = xml.dom.minidom.parse(str(path))
        lines = [node.getAttribute("id") for node in document.getElementsByTagName("g")
                 if node.getAttribute("id").startswith("line-")]
        self.assertEqual(sorted(lines), ["line-one", "line-one", "line-two"])
        texts = [node.firstChild.data for node in document.getElementsByTagName("text")]
        for name in ("one", "two", "a < b", "64"):
            self.assertIn(name, texts)


if __name__ == "__main__":
    unittest.main()
