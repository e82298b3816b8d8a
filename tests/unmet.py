"""A promise that is not kept yet, as a test: it runs, its failure is expected and listed at the end
of the run (scripts/run_tests.py), and when it passes it fails, so that the mark goes.

    @unmet("a handover costs 3 % (issue 13)")
    def test_x(self):
"""
import functools
import unittest

MARK = "EXPECTED FAILURE"


def unmet(why):
    def mark(method):
        @functools.wraps(method)
        def run(self):
            try:
                method(self)
            except AssertionError as failure:
                said = (str(failure).splitlines() or [""])[0]
                print(f"{MARK} {type(self).__name__}.{method.__name__}: {why}: {said}", flush=True)
                return
            self.fail(f"what was not met is met ({why}): remove @unmet")
        return run
    return mark


class _Sample(unittest.TestCase):
    """What the tests of the decorator run; its name keeps it out of the lists of tests."""

    @unmet("why")
    def fails(self):
        self.assertEqual(1, 2)

    @unmet("why")
    def passes(self):
        pass

    @unmet("why")
    def errs(self):
        raise OSError("an error is no expected failure")

    @unmet("why")
    def skips(self):
        self.skipTest("noise")


def sample(name):
    """The result of a test that is marked."""
    result = unittest.TestResult()
    _Sample(name).run(result)
    return result
