"""Kernels of 5 us with a synchronisation each, beside large ones."""

import pathlib
import sys
import unittest

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import promises  # pylint: disable=wrong-import-position
from promises import SPEED, at_least, busy, request  # pylint: disable=wrong-import-position

DILATION = 10


def programs(of_tiny=(), of_large=()):
    return [busy("tiny", of_tiny, kernel_us=5, per_sync=1), busy("large", of_large, kernel_us=750)]


# Such a program is as fast as its processor, so nothing else runs while its speed is measured, and it is measured
# alone before and after: where these two differ by as much as is promised, the processor was another.
@pytest.mark.alone
class WithRequests(promises.PromiseCase):
    # At 10 it had 0.273 to 0.293 of its speed in seven runs, at 20 0.268 to 0.299 in four: so the processor is asked, too.
    DILATION = 20
    ALONE_MAX = 1.03

    def tiny_alone(self):
        return promises.measure([programs()[0].bare()], 0.5, self.DILATION, warmup_s=0.05).speed("tiny")

    def test_each_has_its_part_of_its_speed(self):
        tiny, large = programs(request(0.3), request(0.7))
        large_alone = self.alone(large, DILATION)

        def attempt():
            before = self.tiny_alone()
            outcome = promises.measure([tiny, large], 1.5, self.DILATION)
            after = self.tiny_alone()
            if max(before, after) > self.ALONE_MAX * min(before, after):
                outcome.noisy = f"the tiny one ran at {before:.3f} alone before, and at {after:.3f} after"
            of_tiny = 2 * outcome.speed("tiny") / (before + after)
            # Alone and beside the other its processor differs by some hundredths: in the simulation it is held to 0.97.
            promised = at_least("tiny: of its speed alone", of_tiny, SPEED * 0.3)
            promised |= at_least("large: of its speed alone", outcome.speed("large") / large_alone, 0.97 * 0.7)
            return outcome, promised

        self.judge(attempt)


@pytest.mark.pairs
class WithoutRequests(promises.PromiseCase):
    """Nobody is promised anything: together they run as they do without prorata."""

    # DESIGN §8: any mix without requests at 99 % of what it does without prorata; three times the
    # tolerance in many processes.
    BAR = 1 - 3 * 0.01

    def test_together_they_lose_nothing(self):
        def attempt():
            bare = promises.measure([program.bare() for program in programs()], 1, DILATION)
            shared = promises.measure(programs(), 1, DILATION)

            def together(outcome):
                return sum(got.device_time[0] for got in outcome.got.values())

            return shared, at_least(
                "device time of both together, of that without prorata", together(shared) / together(bare), self.BAR
            )

        self.judge(attempt)


if __name__ == "__main__":
    unittest.main()
