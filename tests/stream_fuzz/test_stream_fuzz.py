#!/usr/bin/env python3
"""Random programs of streams (program.h) observe the same on a share as on the bare driver: the
same results, the same order along every dependency, the same answers, and no hang.

    tests/stream_fuzz/test_stream_fuzz.py --programs 1000 [--seed N]

PRORATA_TEST_SEED repeats the programs of one run of the tests.
"""
import argparse
import os
import pathlib
import random
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # pylint: disable=wrong-import-position

PROGRAM = harness.BUILD / "tests" / "stream_programs"
KERNELS = harness.BUILD / "tests" / "stream_fuzz_kernels.so"
PROGRAMS = 20
BATCH = 5      # programs of one process, one after the other
HANG_S = 60    # a batch takes the bare driver half a second, and half of the device three
BUSY = [harness.GPULOAD, "--seconds", 3600, "--kernel-us", 700, "--per-sync", 8]
MACHINE = "[[devices]]\ncontext_memory = \"64MiB\"\n"
# Of the share on which they run, and of what runs beside it.
SHARES = {"beside a busy share": (["--compute", "0.5"], ["--compute", "0.5"]),
          "without requests": ([], []),
          "within a limit": (["--compute-limit", "0.3"], None)}


class Difference(AssertionError):
    pass


class Place:
    """Where programs run: bare, or on shares of one kind."""

    def __init__(self, kind=None):
        self.machine = harness.Machine(MACHINE)
        self.kind = kind
        if kind is None:
            return
        self.machine.start_agent()
        self.options, beside = SHARES[kind]
        if beside is not None:
            busy = self.machine.start_load(["--name", "busy", "--memory", "1GiB", *beside],
                                           BUSY[1:])
            harness.wait_until(
                lambda: (share := self.machine.share("busy")) and share["device_time_ns"] > 0,
                what="work beside the programs")
            self.busy = busy

    def run(self, seed, count):
        """What `count` programs from `seed` on observed: {seed: lines}."""
        command = [PROGRAM, "--kernels", KERNELS, "--seed", seed, "--count", count]
        environment = None
        if self.kind is None:
            environment = self.machine.bare_environment()
        else:
            command = self.machine.command(["--memory", "4GiB", *self.options], command)
        process = self.machine.start(command, environment)
        try:
            out, err = process.communicate(timeout=HANG_S)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            last = [line for line in out.splitlines() if line.startswith("seed")][-1:]
            raise Difference(f"{self.kind or 'bare'}: hangs in {last}; {err}") from None
        if process.returncode != 0 or not out.endswith("end\n"):
            raise Difference(f"{self.kind or 'bare'}: seeds {seed} to {seed + count - 1} ended "
                             f"with {process.returncode}: {out[-200:]} {err[-2000:]}")
        found = {}
        for line in out.splitlines():
            if line.startswith("seed "):
                lines = found.setdefault(int(line.split()[1]), [])
            else:
                lines.append(line)
        return found

    def close(self):
        self.machine.close()


def compare(bare, shared, kind):
    for seed, lines in bare.items():
        if lines == shared[seed]:
            continue
        for ours, theirs in zip(lines, shared[seed]):
            if ours != theirs:
                raise Difference(
                    f"{kind}: seed {seed}: '{theirs}', and on the bare driver '{ours}'")
        raise Difference(f"{kind}: seed {seed}: {len(shared[seed])} lines, bare {len(lines)}")


def fuzz(places, first_seed, programs):
    """Runs them in each of the places in turn, and bare."""
    bare = Place()
    try:
        for index, seed in enumerate(range(first_seed, first_seed + programs, BATCH)):
            count = min(BATCH, first_seed + programs - seed)
            place = places[index % len(places)]
            compare(bare.run(seed, count), place.run(seed, count), place.kind)
    finally:
        bare.close()


def first_seed():
    given = os.environ.get("PRORATA_TEST_SEED")
    return int(given) if given else random.SystemRandom().randrange(1 << 40)


class StreamFuzz(unittest.TestCase):
    def check(self, kind):
        if harness.REAL_GPU:
            self.skipTest("its kernels are the simulated GPU's")
        seed = first_seed()
        print(f"{kind}: repeat with PRORATA_TEST_SEED={seed}", flush=True)
        place = Place(kind)
        self.addCleanup(place.close)
        fuzz([place], seed, PROGRAMS)

    def test_control_the_bare_driver_agrees_with_itself(self):
        seed = first_seed()
        print(f"repeat with PRORATA_TEST_SEED={seed}", flush=True)
        place = Place()
        self.addCleanup(place.close)
        compare(place.run(seed, PROGRAMS), place.run(seed, PROGRAMS), "bare, once more")

    def test_beside_a_busy_share(self):
        self.check("beside a busy share")

    def test_without_requests(self):
        self.check("without requests")

    def test_within_a_limit(self):
        self.check("within a limit")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, required=True)
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    seed = first_seed() if arguments.seed is None else arguments.seed
    print(f"{arguments.programs} programs, --seed {seed}", flush=True)
    begin = time.monotonic()
    places = []
    failures = []
    try:
        places = [Place(kind) for kind in SHARES]
        for at in range(seed, seed + arguments.programs, BATCH):
            place = places[(at - seed) // BATCH % len(places)]
            try:
                fuzz([place], at, min(BATCH, seed + arguments.programs - at))
            except Difference as difference:
                print(difference, flush=True)
                failures.append(at)
    finally:
        for place in places:
            place.close()
    print(f"{len(failures)} of {-(-arguments.programs // BATCH)} batches differ, in "
          f"{time.monotonic() - begin:.0f} s", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main() if "--programs" in sys.argv else unittest.main())
