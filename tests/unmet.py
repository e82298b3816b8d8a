"""A promise that is not kept yet, as a test: it runs, its failure is expected and listed at the end
of the run (scripts/run_tests.py), and when it passes it fails, so that the mark goes.

    @unmet("a handover costs 3 % (issue 13)")
    def test_x(self):

An error other than a failed assertion stays a failure, and a skip a skip. `by_chance`: a quiet machine meets it in some
runs, so a run in which it is met shows nothing and passes.
"""
import pytest


def unmet(why, by_chance=False):
    return pytest.mark.xfail(reason=why, raises=AssertionError, strict=not by_chance)
