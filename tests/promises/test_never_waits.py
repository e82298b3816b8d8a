"""prorata never makes a program wait for what the program has yet to do: launches behind a wait in
a stream that the same thread ends later."""
import pathlib
import sys
import time
import unittest

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import promises  # pylint: disable=wrong-import-position
from promises import Program, Run  # pylint: disable=wrong-import-position

pytestmark = pytest.mark.pairs

SEEDS = 8
ROUNDS = 30
# For these rounds of at most 60 kernels of a few milliseconds the bare driver takes two seconds.
DEADLINE_S = 40


class NeverWaits(promises.PromiseCase):
    def run_one(self, seed, share, beside=(), **options):
        """Seconds that it took; fails when it does not end."""
        options = {"seed": seed, "rounds": ROUNDS, **options}
        program = Program("self", "self-release", options, share)
        run = Run([program, *beside], 1)
        self.addCleanup(run.close)
        run.start()
        run.begin()
        since = time.monotonic()
        process = run.processes["self"]
        try:
            out, err = process.communicate(timeout=DEADLINE_S)
        except promises.subprocess.TimeoutExpired:
            done = run.work_ns()["self"] / 1e6
            self.fail(f"seed {seed}: hangs, after {done:.0f} ms of kernels were done")
        self.assertEqual(process.returncode, 0, out + err)
        run.close()
        return time.monotonic() - since

    def test_control_the_bare_driver(self):
        for seed in range(SEEDS):
            self.run_one(seed, None, before=4, kernel_us=500, kernel_max_us=4000)

    def test_alone_without_a_limit(self):
        for seed in range(SEEDS):
            self.run_one(seed, (), before=4, kernel_us=500, kernel_max_us=4000)

    def test_beside_a_busy_share(self):
        beside = [promises.busy("busy", ("--compute", "0.5"), kernel_us=1000)]
        for seed in range(SEEDS):
            self.run_one(seed, ("--compute", "0.5"), beside, kernel_us=100, kernel_max_us=2000)

    def test_within_a_limit(self):
        # What waits for the wait's end is not charged to the limit: else the thread that ends it
        # stands at the gate until the agent helps it out, after ten seconds.
        for seed in range(SEEDS):
            took_s = self.run_one(seed, ("--compute-limit", "0.3"), rounds=300, before=1,
                                  pause_us=400, kernel_us=5, kernel_max_us=50)
            self.assertLess(took_s, 9, f"seed {seed}")


if __name__ == "__main__":
    unittest.main()
