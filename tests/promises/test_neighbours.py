"""A share with a request has its part of its own speed, whatever its neighbour runs; and programs
without requests lose nothing. Speeds are measured: alone without prorata, then beside the others.
"""
import pathlib
import sys
import unittest

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import promises  # pylint: disable=wrong-import-position
from promises import LONG, Program, at_least, at_most, busy  # pylint: disable=wrong-import-position

pytestmark = pytest.mark.pairs

DILATION = 4
# DESIGN §8: a share with a request r runs at 0.97 r of its speed alone; where many processes measure
# it the tolerance is three times as large. The three programs that were reported as starved or
# starving are held to the figures that were asked for.
SPEED = 1 - 3 * 0.03
SECONDS = 3  # a slice more or less at its ends is a hundredth of a share of 0.3


def request(fraction):
    return ("--compute", str(fraction))


def victim(fraction):
    """A program that any neighbour should be good for: many kernels to each synchronisation."""
    return busy("victim", request(fraction), kernel_us=1000, per_sync=32)


class Neighbours(promises.PromiseCase):

    def speeds(self, outcome, dilation, **bars):
        """{text: kept}: `bars` are parts of the speed alone, by the name of a program."""
        promised = {}
        for program in self.programs:
            if program.name in bars:
                part = outcome.speed(program.name) / self.alone(program, dilation, seconds=1)
                promised |= at_least(f"{program.name}: of its speed alone", part,
                                     bars[program.name])
        return promised

    def check(self, programs, seconds, dilation=DILATION, warmup_s=0.3, device_time=None, **bars):
        """`device_time`: {name: at most this part of the device}."""
        self.programs = programs

        def attempt():
            outcome = promises.measure(programs, seconds, dilation, warmup_s)
            promised = self.speeds(outcome, dilation, **bars)
            for name, bar in (device_time or {}).items():
                promised |= at_most(f"{name}: device time", outcome.device_time(name), bar)
            return outcome, promised
        self.judge(attempt)

    def test_control_two_busy_programs(self):
        self.check([busy("small", request(0.3), kernel_us=500, per_sync=32),
                    busy("large", request(0.7), kernel_us=750, per_sync=32)], SECONDS,
                   small=SPEED * 0.3, large=SPEED * 0.7)

    def test_a_synchronisation_every_few_kernels(self):
        self.check([busy("small", request(0.3), kernel_us=500, per_sync=4),
                    busy("large", request(0.7), kernel_us=750, per_sync=4)], SECONDS,
                   small=SPEED * 0.3, large=SPEED * 0.7)

    def long_kernels(self, kernel_ms, seconds):
        # Real time: what is late by a wake-up is nothing beside kernels of such a length.
        self.check([busy("long", request(0.1), kernel_us=1000 * kernel_ms, per_sync=1),
                    victim(0.9)],
                   seconds, dilation=1, warmup_s=0, victim=0.95 * 0.9)

    def test_kernels_of_300_ms_beside_a_busy_share(self):
        self.long_kernels(300, 60 if LONG else 12)

    def test_kernels_of_1_s_beside_a_busy_share(self):
        self.long_kernels(1000, 60 if LONG else 20)

    def test_kernels_of_3_s_beside_a_busy_share(self):
        if not LONG:
            self.skipTest("takes a minute: PRORATA_TEST_LONG=1")
        self.long_kernels(3000, 60)

    def test_a_host_function_before_200_ms_of_kernels(self):
        self.check([Program("host", "host-function",
                            {"host_us": 20_000, "work_us": 200_000, "kernel_us": 2000},
                            request(0.1)),
                    victim(0.9)],
                   24 if LONG else 8, dilation=2, warmup_s=0,
                   victim=0.97 * 0.9, device_time={"host": 0.12})

    def test_tiny_kernels_beside_large_ones(self):
        # What the tiny one does alone is as fast as its processor, which alone and beside the other
        # differs by some hundredths here: it is held to 0.97 in the simulation.
        self.check([busy("tiny", request(0.3), kernel_us=5, per_sync=1),
                    busy("large", request(0.7), kernel_us=750)], SECONDS, dilation=8,
                   tiny=SPEED * 0.3, large=0.97 * 0.7)

    def test_data_dependent_kernels_beside_a_busy_share(self):
        self.check([busy("data", request(0.3), streams=4, per_sync=16, kernel_us=20,
                         kernel_max_us=5000),
                    victim(0.7)], SECONDS, victim=SPEED * 0.7)

    def test_a_stream_for_each_request_beside_a_busy_share(self):
        self.check([Program("requests", "requests", {"kernel_us": 400}, request(0.3)),
                    victim(0.7)], SECONDS,
                   requests=SPEED * 0.3, victim=SPEED * 0.7)

    def test_a_share_that_sleeps_beside_a_busy_one(self):
        self.check([busy("sleeper", request(0.5), kernel_us=500, per_sync=8, gap_us=8000),
                    victim(0.5)], SECONDS,
                   sleeper=SPEED * 0.5, victim=SPEED * 0.5)


class WithoutRequests(promises.PromiseCase):
    """Nobody is promised anything: together they run as they do without prorata."""
    # DESIGN §8: any mix without requests at 99 % of what it does without prorata; three times the
    # tolerance in many processes.
    BAR = 1 - 3 * 0.01

    def test_tiny_kernels_beside_large_ones(self):
        programs = [busy("tiny", (), kernel_us=5, per_sync=1),
                    busy("large", (), kernel_us=750)]

        def attempt():
            bare = promises.measure([program.bare() for program in programs], SECONDS / 2, 8)
            shared = promises.measure(programs, SECONDS / 2, 8)

            def together(outcome):
                return sum(got.device_time[0] for got in outcome.got.values())
            return shared, at_least(
                "device time of both together, of that without prorata",
                together(shared) / together(bare), self.BAR)
        self.judge(attempt)


if __name__ == "__main__":
    unittest.main()
