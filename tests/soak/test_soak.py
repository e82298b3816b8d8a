"""A little of what `make soak` does for as long as one likes: programs killed at random."""
import random
import unittest

import soak

SECONDS = 20


class Soak(unittest.TestCase):
    def test_programs_and_agents_killed_at_random_lose_nothing(self):
        if soak.harness.REAL_GPU:
            self.skipTest("kills programs on the simulated GPU")
        seed = random.SystemRandom().randrange(1 << 30)
        print(f"seed: {seed}")
        programs = soak.Programs(seed)
        self.addCleanup(programs.close)
        programs.run(SECONDS, least_kills=20)
