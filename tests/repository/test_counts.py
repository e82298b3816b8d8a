"""What a run of tests says at its end: scripts/run_tests.py, of the reports of ctest and of pytest."""
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest

import pytest

import run_tests

pytestmark = pytest.mark.unit

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Noise(unittest.TestCase):
    def results(self, noisy, others, passed):
        skipped = ([("a", "SKIPPED: the machine was too noisy (9 us)")] * noisy
                   + [("b", "SKIPPED: no GPU")] * others)
        return run_tests.Results(passed=passed, skipped=skipped)

    def test_says_that_noise_left_much_untested(self):
        said = run_tests.noise_warning(self.results(noisy=4, others=0, passed=96))
        self.assertIn("4 of 100", said)

    def test_says_nothing_of_little_noise_or_other_reasons(self):
        self.assertEqual(run_tests.noise_warning(self.results(noisy=3, others=9, passed=97)), "")
        self.assertEqual(run_tests.noise_warning(self.results(noisy=0, others=0, passed=0)), "")


class Reports(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def pytest_results(self, *methods):
        """Of one TestCase with these methods, run by pytest with this repository's settings."""
        file = self.folder / "test_made.py"
        file.write_text("import unittest\nfrom unmet import unmet\n\nclass T(unittest.TestCase):\n"
                        + "".join(textwrap.indent(method, "    ") + "\n" for method in methods))
        junit = self.folder / "report.xml"
        subprocess.run([sys.executable, "-m", "pytest", "-q", "-c", ROOT / "pytest.ini", "--rootdir",
                        ROOT, "-p", "conftest", "-p", "no:cacheprovider", f"--junitxml={junit}", file],
                       check=False, capture_output=True, cwd=ROOT, timeout=300)
        return run_tests.pytest_results(junit)

    def test_ctest(self):
        junit = self.folder / "ctest.xml"
        junit.write_text(
            '<testsuite><testcase name="a" status="run"><system-out>x\n'
            f'{run_tests.UNMET} T.a: why: 1 is not 2\ny</system-out></testcase>'
            '<testcase name="b" status="run"/>'
            '<testcase name="c" status="notrun"><system-out>x\nSkipped: no GPU\n</system-out></testcase>'
            '<testcase name="d" status="fail" time="3"><system-out>said</system-out></testcase>'
            '</testsuite>')
        results = run_tests.ctest_results(junit)
        self.assertEqual(results.passed, 2)
        self.assertEqual(results.unmet, [("a", f"{run_tests.UNMET} T.a: why: 1 is not 2")])
        self.assertEqual(results.skipped, [("c", "Skipped: no GPU")])
        self.assertEqual(results.failed, [("d", "said\n(it took 3 s)")])

    def test_pytest_passed_failed_and_skipped(self):
        results = self.pytest_results(
            "def test_good(self):\n    pass",
            "def test_bad(self):\n    print('seen')\n    self.assertEqual(1, 2)",
            "def test_noisy(self):\n    self.skipTest('the machine was too noisy')",
            "def test_left_over(self):\n    self.addCleanup(lambda: 1 / 0)")
        self.assertEqual(results.passed, 1)
        (bad, said), (left_over, _) = sorted(results.failed)
        self.assertTrue(bad.endswith("test_made.py::T::test_bad"), bad)
        self.assertTrue(left_over.endswith("::test_left_over"), left_over)
        self.assertIn("1 != 2", said)
        self.assertIn("seen", said)
        self.assertEqual([reason for _, reason in results.skipped], ["the machine was too noisy"])

    def test_a_failure_is_expected_and_says_what_was_seen(self):
        results = self.pytest_results(
            "@unmet('why')\ndef test_x(self):\n    self.assertEqual(1, 2, 'seen')")
        self.assertEqual((results.passed, results.failed, results.skipped), (1, [], []))
        self.assertEqual([line for _, line in results.unmet],
                         [f"{run_tests.UNMET} why: 1 != 2 : seen"])

    def test_an_expected_failure_that_passes_fails(self):
        results = self.pytest_results("@unmet('why')\ndef test_x(self):\n    pass")
        self.assertEqual((results.passed, len(results.failed)), (0, 1))
        self.assertIn("XPASS(strict)", results.failed[0][1])

    def test_an_expected_failure_by_chance_may_pass(self):
        results = self.pytest_results("@unmet('why', by_chance=True)\ndef test_x(self):\n    pass",
                                      "@unmet('why', by_chance=True)\ndef test_y(self):\n    self.assertEqual(1, 2)")
        self.assertEqual((results.passed, results.failed, len(results.unmet)), (2, [], 1))

    def test_an_expected_failure_keeps_errors_and_skips(self):
        results = self.pytest_results(
            "@unmet('why')\ndef test_error(self):\n    raise OSError('no expected failure')",
            "@unmet('why')\ndef test_skip(self):\n    self.skipTest('noise')")
        self.assertEqual((results.passed, len(results.failed)), (0, 1))
        self.assertIn("no expected failure", results.failed[0][1])
        self.assertEqual([reason for _, reason in results.skipped], ["noise"])

    def test_a_file_that_cannot_be_read_fails(self):
        results = self.pytest_results("this is no Python")
        self.assertEqual((results.passed, len(results.failed)), (0, 1))
