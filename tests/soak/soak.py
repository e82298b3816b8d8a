#!/usr/bin/env python3
"""Kills at random for minutes: processes on the core (the kill storm), and whole programs on the
simulated driver, with and without prorata, whose agent is killed too.

    tests/soak/soak.py --minutes 10 [--seed 1234]      (make soak MINUTES=10 SEED=1234)

The same seed gives the same programs and the same choices of whom to kill when; how the processes
interleave is the kernel's.
"""
import argparse
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # pylint: disable=wrong-import-position

PROGRAMS = 8
HANG_S = 600  # a program that is to end by itself takes a second or two
# What a program may end with before its time: it met a full device or share, or an agent that was
# just killed.
EXPECTED = re.compile(r"OUT_OF_MEMORY|out of memory|the share asks for|no agent answered")
MACHINE = """
[[devices]]
memory = "8GiB"
context_memory = "64MiB"
"""


class Programs:
    """gpuloads that come and go, half of them on shares; the simulated NVML is the referee."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.machine = harness.Machine(MACHINE)
        self.nvml = harness.Nvml(self.machine)
        self.living = {}  # pid -> (Popen, command, when it must have ended, or None)
        self.dead = set()
        self.seen = None
        self.kills = self.agent_kills = self.ended = self.looks = 0

    def load(self):
        """(options of gpuload, whether it ends by itself)"""
        pick = self.random
        own = self.random.randrange(1 << 30)
        return pick.choice([
            (["--kernels", pick.randrange(1, 200), "--kernel-us", "100-2000", "--seed", own], True),
            (["--seconds", 1000, "--kernel-us", "100-3000", "--seed", own, "--streams", 2], False),
            (["--seconds", 1000, "--kernel-us", 300, "--gap-us", 2000], False),
            (["--seconds", 1000, "--graph", pick.randrange(1, 20), "--kernel-us", 200], False),
            (["--seconds", 1000, "--stress", "--threads", 2, "--stress-max", "32MiB",
              "--seed", own], False),
            (["--allocate", "16MiB", "--count", 4, "--again", "--verify", "--allocator",
              pick.choice(["plain", "async", "managed", "vmm", "pitch", "array"])], True),
        ])

    def start(self):
        options, ends = self.load()
        command, environment = [harness.GPULOAD, *options], self.machine.bare_environment()
        if self.random.random() < 0.5:
            share = ["--memory", f"{self.random.randrange(280, 480)}MiB",
                     "--compute", f"{self.random.choice([0, 0.05, 0.1])}"]
            command, environment = self.machine.command(share, command), {}
        process = self.machine.start(command, environment, stderr=subprocess.STDOUT)
        self.dead.discard(process.pid)  # pids come round
        self.living[process.pid] = (process, command, time.monotonic() + HANG_S if ends else None)

    def bury(self, pid):
        process, command, _ = self.living.pop(pid)
        status = process.wait()
        said = process.stdout.read()
        process.stdout.close()
        self.dead.add(pid)
        return status, command, said

    def kill(self, pid):
        os.kill(pid, signal.SIGKILL)
        self.bury(pid)
        self.kills += 1

    def kill_agent(self):
        pids = self.machine.agent_pids()
        if pids:
            os.kill(self.random.choice(pids), signal.SIGKILL)
            self.agent_kills += 1

    def look(self):
        """What the device says: nobody dead, and no memory that is nobody's."""
        dead = set(self.dead)

        def whole():
            processes, used = self.nvml.processes(), self.nvml.memory()[2]
            if dead & set(processes):
                raise AssertionError(f"the device still shows the dead: {dead & set(processes)}")
            self.seen = (used, processes)
            return used == sum(processes.values())

        # Two questions, between which programs allocate: what is lost stays lost, though.
        try:
            harness.wait_until(whole, step_s=0)
        except AssertionError as error:
            used, processes = self.seen
            raise AssertionError(f"{error}; {used} bytes used, by processes {processes}") from None
        self.looks += 1

    def ended_by_themselves(self):
        for pid, (process, command, deadline) in list(self.living.items()):
            if process.poll() is not None:
                status, command, said = self.bury(pid)
                if (deadline is None or status != 0) and not EXPECTED.search(said):
                    raise AssertionError(f"{command} ended with {status}: {said}")
                self.ended += 1
            elif deadline is not None and time.monotonic() > deadline:
                raise AssertionError(f"{command} (pid {pid}) hangs")

    def run(self, seconds, least_kills=0):
        end = time.monotonic() + seconds
        while time.monotonic() < end or self.kills < least_kills:
            while len(self.living) < PROGRAMS:
                self.start()
            time.sleep(self.random.uniform(0, 0.2))
            for _ in range(self.random.choice([1, 1, 1, 3])):
                if self.living:
                    self.kill(self.random.choice(sorted(self.living)))
            if self.random.random() < 0.1:
                self.kill_agent()
            self.ended_by_themselves()
            self.look()
        self.finish()

    def finish(self):
        for pid in list(self.living):
            self.kill(pid)
        self.look()
        used = self.nvml.memory()[2]
        if used:
            raise AssertionError(f"{used} bytes are used, and nobody is left")
        # And all of it still works.
        for report in (self.machine.bare_json(["--kernels", 20, "--kernel-us", 200]),
                       self.machine.run_json(["--memory", "256MiB"],
                                             ["--kernels", 20, "--kernel-us", 200])):
            if report["kernels"] != 20:
                raise AssertionError(f"afterwards: {report}")
        print(f"soak: {self.kills} programs and {self.agent_kills} agents killed, {self.ended} ended "
              f"by themselves; looked {self.looks} times", flush=True)

    def close(self):
        self.nvml.close()
        self.machine.close()


def storm(seed, seconds):
    """The kill storms of the core's own tests."""
    environment = {**os.environ, "PRORATA_STORM_SEED": str(seed),
                   "PRORATA_STORM_SECONDS": str(max(1, int(seconds)))}
    program = harness.BUILD / "tests" / "simgpu_kill_test"
    subprocess.run([program, "--gtest_filter=KillStorm.*", "--gtest_brief=1"], env=environment,
                   check=True, timeout=seconds + 600)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 30) if arguments.seed is None else arguments.seed
    print(f"soak: seed {seed}, {arguments.minutes:g} minutes; repeat with: make soak "
          f"MINUTES={arguments.minutes:g} SEED={seed}", flush=True)
    seconds = arguments.minutes * 60
    storm(seed, seconds / 3)
    programs = Programs(seed)
    try:
        programs.run(seconds * 2 / 3)
    finally:
        programs.close()


if __name__ == "__main__":
    main()
