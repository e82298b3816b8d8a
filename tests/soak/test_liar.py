"""A member that writes anything into its usage memory, at any moment, beside two honest ones: those keep
their memory to the byte and their time, by the device's own account.

PRORATA_LIAR_SECONDS (20) is how long it lies. Over minutes the honest ones' time is held to a point.
"""
import json
import mmap
import os
import pathlib
import random
import struct
import sys
import threading
import time
import unittest

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "promises"))
import promises  # pylint: disable=wrong-import-position
from promises import at_least, busy, harness  # pylint: disable=wrong-import-position

pytestmark = pytest.mark.pairs

DILATION = 4
LIES_S = float(os.environ.get("PRORATA_LIAR_SECONDS", 20))
SECONDS = LIES_S / DILATION  # of the machine
REQUEST = 0.35      # of each honest one; the liar's is 0.3
POINTS = 0.05 if LIES_S < 300 else 0.01
TOLD_S = 3
WORDS = (128 + 256) // 8  # the header, and what is said of the only device
MOST = (1 << 64) - 1


class Liar(threading.Thread):
    """Writes the words of a process's usage memory by way of its descriptor."""

    def __init__(self, pid, seed):
        super().__init__(daemon=True)
        self._random, self._over, self.lies = random.Random(seed), threading.Event(), 0
        fds = pathlib.Path(f"/proc/{pid}/fd")
        (path,) = [fd for fd in fds.iterdir() if "prorata-usage" in os.readlink(fd)]
        with open(path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), WORDS * 8)

    def run(self):
        while not self._over.wait(self._random.random() * 0.002):
            value = self._random.choice((0, MOST, self._random.getrandbits(64),
                                         self._random.getrandbits(30), 1))
            self._memory[(at := 8 * self._random.randrange(WORDS)):at + 8] = struct.pack("Q", value)
            self.lies += 1

    def stop(self):
        self._over.set()
        self.join()


class BesideALiar(promises.PromiseCase):
    def follow(self, machine):
        """Has all events written down as they come: the agent keeps a thousand, and a liar makes more."""
        path = machine.folder / "events.jsonl"
        with open(path, "w", encoding="utf-8") as file:
            machine.start([harness.PRORATA, "events", "--all", "--json"], stdout=file)
        return path

    def events(self, path, share):
        told = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines(True)
                if line.endswith("\n")]
        return [event for event in told if event.get("share") == share and "time_unix_ms" in event]

    def check_memory(self, run, outcome):
        """What is shown of an honest share is what the device has of its process."""
        held = harness.Nvml(run.machine)
        on_device = held.processes()
        held.close()
        for name in ("one", "two"):
            device = outcome.shares[name]["devices"][0]
            self.assertEqual(device["used_bytes"], on_device[run.processes[name].pid], name)
            self.assertLessEqual(device["granted_bytes"], device["memory_limit_bytes"], name)
            self.assertFalse(device["bypass_suspected"], name)
        lied = outcome.shares["liar"]["devices"][0]
        self.assertLessEqual(lied["granted_bytes"], lied["memory_limit_bytes"])

    def attempt(self):
        seed = random.SystemRandom().randrange(1 << 30)
        print(f"seed: {seed}")
        run = promises.Run([busy(name, ("--compute", request), kernel_us=500, per_sync=32)
                            for name, request in (("one", REQUEST), ("two", REQUEST),
                                                  ("liar", 0.3))], DILATION)
        try:
            run.start()
            liar = Liar(run.processes["liar"].pid, seed)
            path = self.follow(run.machine)
            run.begin()
            run.sleep_until(time.monotonic(), 0.3)
            print(f"the machine's load before: {os.getloadavg()}")
            begun_ms = time.time() * 1000
            liar.start()
            outcome = run.window(SECONDS)
            # Also of what the device ran: a machine that stalls takes from all, a liar from the others.
            print("device time: " + ", ".join(
                f"{name} {outcome.device_time(name):.4f} "
                f"({outcome.device_time(name) / outcome.busy[0]:.4f} of what ran)"
                for name in ("one", "two", "liar")))
            self.check_memory(run, outcome)
            print("the honest ones' memory is exact")
            liar.stop()
            told = {}
            for event in self.events(path, "liar"):
                told.setdefault(event["event"], round((event["time_unix_ms"] - begun_ms) / 1000, 1))
            print(f"{liar.lies} lies; the liar ran {outcome.device_time('liar'):.3f}; told first, in "
                  f"seconds after the first lie: {told}")
            self.assertLessEqual(told.get("false_usage", LIES_S), TOLD_S, told)
            for name in ("one", "two"):
                self.assertEqual([e["event"] for e in self.events(path, name)],
                                 ["share_created", "member_joined"], name)
        finally:
            run.close()
        promised = {}
        for name in ("one", "two"):
            promised |= at_least(f"{name}: device time", outcome.device_time(name),
                                 REQUEST - POINTS)
        return outcome, promised

    def test_two_honest_members_keep_memory_and_time(self):
        self.judge(self.attempt)


if __name__ == "__main__":
    unittest.main()
