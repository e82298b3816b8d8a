"""The mark of a promise that is not kept yet (tests/unmet.py), and how the run's end lists it."""
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "scripts")]
import run_tests  # pylint: disable=wrong-import-position
import unmet  # pylint: disable=wrong-import-position


class Unmet(unittest.TestCase):
    def test_a_failure_is_expected(self):
        self.assertTrue(unmet.sample("fails").wasSuccessful())

    def test_a_pass_fails(self):
        result = unmet.sample("passes")
        self.assertEqual(len(result.failures), 1)
        self.assertIn("remove @unmet", result.failures[0][1])

    def test_an_error_stays_one(self):
        self.assertEqual(len(unmet.sample("errs").errors), 1)

    def test_a_skip_stays_one(self):
        self.assertEqual(unmet.sample("skips").skipped[0][1], "noise")

    def test_the_run_lists_what_was_expected_to_fail(self):
        with tempfile.NamedTemporaryFile("w", suffix=".xml") as file:
            file.write('<testsuite><testcase name="a" status="run"><system-out>x\n'
                       f'{unmet.MARK} T.a: why: 1 is not 2\ny</system-out></testcase>'
                       '<testcase name="b" status="run"/></testsuite>')
            file.flush()
            results = run_tests.counts(file.name)
        self.assertEqual(results.passed, 2)
        self.assertEqual(results.unmet, [("a", f"{unmet.MARK} T.a: why: 1 is not 2")])


if __name__ == "__main__":
    unittest.main()
