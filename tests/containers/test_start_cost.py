"""What a share adds to the start of a container: the same container with its device and without, in turns."""
import os
import pathlib
import statistics
import time
import unittest

import pytest

import podman
import quiet

pytestmark = pytest.mark.alone

PAIRS = int(os.environ.get("PRORATA_START_PAIRS", "12"))
MOST_MS = 50


class StartCost(podman.PodmanTestCase):
    # The hook has something to do: this machine's own cache.
    PROGRAMS = [(pathlib.Path("/etc/ld.so.cache"), "etc/ld.so.cache", 0o644)]

    def start_ms(self, *options):
        began = time.monotonic()
        self.podman.call("run", "--rm", *options, podman.IMAGE, "true")
        return 1e3 * (time.monotonic() - began)

    def test_a_share_adds_little(self):
        device = f"prorata.dev/share={self.create('cost', '--memory', '1GiB')}"
        self.start_ms()
        self.start_ms("--device", device)
        added = []
        with quiet.Watch() as watch:
            for pair in range(PAIRS):
                if pair % 2:
                    without = self.start_ms()
                    added.append(self.start_ms("--device", device) - without)
                else:
                    with_device = self.start_ms("--device", device)
                    added.append(with_device - self.start_ms())
        median = statistics.median(added)
        message = f"{median:.1f} ms in the median of {PAIRS} pairs, bar {MOST_MS} ms"
        print(message)
        watch.judge(self, median <= MOST_MS, message)


if __name__ == "__main__":
    unittest.main()
