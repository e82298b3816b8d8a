"""A share with a request has its part of its own speed, whatever its neighbour runs. Speeds are measured: alone
without prorata, then beside the others."""
import pathlib
import sys
import unittest

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import promises  # pylint: disable=wrong-import-position
from promises import LONG, SPEED, Program, busy, request  # pylint: disable=wrong-import-position

pytestmark = pytest.mark.pairs

SECONDS = 3  # a slice more or less at its ends is a hundredth of a share of 0.3


def victim(fraction):
    """A program that any neighbour should be good for: many kernels to each synchronisation."""
    return busy("victim", request(fraction), kernel_us=1000, per_sync=32)


class Neighbours(promises.SpeedCase):
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

    def test_a_share_with_short_pauses_beside_a_busy_one(self):
        self.check([busy("pauses", request(0.6), kernel_us=300, per_sync=1, gap_us=670),
                    victim(0.4)], SECONDS,
                   pauses=SPEED * 0.6, victim=SPEED * 0.4)


if __name__ == "__main__":
    unittest.main()
