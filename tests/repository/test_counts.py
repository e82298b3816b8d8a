"""What a run of tests says at its end of those that were skipped."""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import run_tests  # pylint: disable=wrong-import-position


class Counts(unittest.TestCase):
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


if __name__ == "__main__":
    unittest.main()
