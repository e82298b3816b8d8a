#!/usr/bin/env python3
"""Kills at random for minutes: processes on the core (the chaos test), and whole programs of every
shape on the simulated driver, with and without prorata, whose agent is killed too; NVML hangs now
and then, and liars write whatever they like into their own usage memory. At the end nothing is
lost, nobody was stuck, and all accounts are at zero.

    tests/soak/soak.py --minutes 10 [--seed 1234]      (make soak MINUTES=10 SEED=1234)

The same seed gives the same programs and the same choices of whom to kill when; how the processes
interleave is the kernel's.
"""
import argparse
import contextlib
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # pylint: disable=wrong-import-position

SHAPES = harness.BUILD / "tests" / "shapes"
SHAPES_KERNELS = harness.BUILD / "tests" / "conformance_kernels.so"
STREAMS = harness.BUILD / "tests" / "stream_programs"
STREAMS_KERNELS = harness.BUILD / "tests" / "stream_fuzz_kernels.so"
PROGRAMS = 8
DEVICES = 2
SETTLE_S = 60  # so often nobody is killed until everybody has got on
HANG_S = 600  # a program that is to end by itself takes a second or two
# What a program may end with before its time: it met a full device or share, or an agent that was
# just killed.
EXPECTED = re.compile(r"OUT_OF_MEMORY|out of memory|the share asks for|no agent answered")
MACHINE = """
[[devices]]
memory = "8GiB"
context_memory = "64MiB"
""" * DEVICES


class Program:
    def __init__(self, process, command, ends, progress):
        self.process, self.command, self.progress = process, command, progress
        self.deadline = time.monotonic() + HANG_S if ends else None

    def done_ns(self):
        """What its kernels did so far; None: it does not say."""
        if self.progress is None:
            return None
        try:
            word = self.progress.read_bytes()[:8]
        except OSError:
            return 0
        return int.from_bytes(word, "little")


class Programs:
    """Programs that come and go, most of them on shares; the simulated NVML is the referee."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.machine = harness.Machine(MACHINE)
        self.nvmls = [harness.Nvml(self.machine, device) for device in range(DEVICES)]
        self.hang_file = self.machine.folder / "sim" / "nvml-hangs"
        self.hangs_until = 0
        self.living = {}  # by pid
        self.dead = set()
        self.seen = None
        self.timers = []
        self.started = self.settled = self.hangs = self.stops = 0
        self.kills = self.agent_kills = self.ended = self.looks = 0

    def gpuload(self):
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

    def shape(self):
        """(mode and options of shapes, whether it ends by itself)"""
        own = self.random.randrange(1 << 30)
        return self.random.choice([
            (["requests", "--kernel-us", 400], False),
            (["idle-streams", "--idle", 1100, "--used", 1100, "--kernel-us", 300], False),
            (["blocked", "--batches", 300, "--blocked-us", 600, "--streams", 4, "--per-sync", 50,
              "--kernel-us", 500], False),
            (["busy", "--streams", 6, "--per-sync", 24, "--kernel-us", 20, "--kernel-max-us", 8000,
              "--seed", own], False),
            (["busy", "--per-sync", 1, "--kernel-us", 300_000], False),
            (["busy", "--per-sync", 1, "--kernel-us", 5], False),
            (["host-function", "--kernel-us", 2000], False),
            (["graph-two-devices", "--kernel-us", 700, "--devices", DEVICES], False),
            (["self-release", "--rounds", 8, "--before", 4, "--kernel-us", 200, "--kernel-max-us",
              3000, "--seed", own], True),
            (["liar", "--kernel-us", 500, "--seed", own], False),
        ])

    def program(self):
        """(command, whether it ends by itself, its file of progress, whether it needs both
        devices)"""
        kind = self.random.random()
        if kind < 0.4:
            options, ends = self.gpuload()
            return [harness.GPULOAD, *options], ends, None, False
        if kind < 0.5:
            return ([STREAMS, "--kernels", STREAMS_KERNELS, "--count", 3, "--seed",
                     self.random.randrange(1 << 30)], True, None, False)
        (mode, *options), ends = self.shape()
        progress = self.machine.folder / f"progress-{self.started}"
        return ([SHAPES, mode, "--kernels", SHAPES_KERNELS, "--progress", progress, *options], ends,
                None if mode == "liar" else progress, mode == "graph-two-devices")

    def start(self):
        command, ends, progress, both = self.program()
        self.started += 1
        environment = self.machine.bare_environment()
        if self.random.random() < 0.7:
            share = ["--memory", f"{self.random.randrange(280, 480)}MiB",
                     "--compute", f"{self.random.choice([0, 0.05, 0.1])}"]
            if self.random.random() < 0.3:
                share += ["--compute-limit", "0.2"]
            share += ["--gpu", "0,1"] if both else []
            command, environment = self.machine.command(share, command), {}
        process = self.machine.start(command, environment, stderr=subprocess.STDOUT)
        self.dead.discard(process.pid)  # pids come round
        self.living[process.pid] = Program(process, command, ends, progress)

    def bury(self, pid):
        program = self.living.pop(pid)
        status = program.process.wait()
        said = program.process.stdout.read()
        program.process.stdout.close()
        if program.progress is not None:
            program.progress.unlink(missing_ok=True)
        self.dead.add(pid)
        return status, program.command, said

    def kill(self, pid):
        if self.living[pid].process.poll() is not None:
            return  # it has ended: ended_by_themselves() judges that
        os.kill(pid, signal.SIGKILL)
        self.bury(pid)
        self.kills += 1

    def stop(self, pid):
        """As Ctrl-Z does, for up to three seconds. It may hold a lock of the simulated driver, for
        which this process waits too: so a timer lets it go on."""
        process = self.living[pid].process
        if process.poll() is None:
            process.send_signal(signal.SIGSTOP)
            timer = threading.Timer(self.random.uniform(0.1, 3), process.send_signal,
                                    [signal.SIGCONT])
            timer.start()
            self.timers = [*(one for one in self.timers if one.is_alive()), timer]
            self.stops += 1

    def go_on(self):
        for timer in self.timers:
            timer.join()

    def kill_agent(self):
        pids = self.machine.agent_pids()
        if pids:
            with contextlib.suppress(ProcessLookupError):  # it ends by itself when nobody is left
                os.kill(self.random.choice(pids), signal.SIGKILL)
                self.agent_kills += 1

    def hang_nvml(self):
        """Begins or ends that no call of NVML comes back to the agent."""
        if self.hangs_until:
            self.end_hang()
        elif self.random.random() < 0.02:
            self.hang_file.write_text("prorata")
            self.hangs_until = time.monotonic() + self.random.uniform(0.2, 6)
            self.hangs += 1

    def end_hang(self):
        if self.hangs_until and time.monotonic() > self.hangs_until:
            self.hang_file.unlink()
            self.hangs_until = 0

    def settle(self):
        """Nobody is killed until everybody who says how far he is has got on."""
        self.go_on()
        before = {pid: program.done_ns() for pid, program in self.living.items()
                  if program.progress is not None and program.deadline is None}
        for pid, done_ns in before.items():
            program = self.living[pid]

            def got_on(one=program, was=done_ns):
                self.end_hang()  # no agent begins until NVML answers
                return one.done_ns() > was or one.process.poll() is not None
            harness.wait_until(got_on, deadline_s=HANG_S, step_s=0.1,
                               what=f"progress of {program.command}")
        self.settled += 1

    def look(self):
        """What the devices say: nobody dead, and no memory that is nobody's."""
        for nvml in self.nvmls:
            self.look_at(nvml)
        self.looks += 1

    def look_at(self, nvml):
        dead = set(self.dead)

        def whole():
            processes, used = nvml.processes(), nvml.memory()[2]
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

    def ended_by_themselves(self):
        for pid, program in list(self.living.items()):
            if program.process.poll() is not None:
                status, command, said = self.bury(pid)
                # A liar harms himself.
                expected = EXPECTED.search(said) or "liar" in command
                if (program.deadline is None or status != 0) and not expected:
                    raise AssertionError(f"{command} ended with {status}: {said}")
                self.ended += 1
            elif program.deadline is not None and time.monotonic() > program.deadline:
                raise AssertionError(f"{program.command} (pid {pid}) hangs")

    def run(self, seconds, least_kills=0):
        end = time.monotonic() + seconds
        settle = time.monotonic() + SETTLE_S
        while time.monotonic() < end or self.kills < least_kills:
            self.hang_nvml()
            if time.monotonic() > settle:
                self.settle()
                settle = time.monotonic() + SETTLE_S
            while len(self.living) < PROGRAMS:
                self.start()
            time.sleep(self.random.uniform(0, 0.2))
            for _ in range(self.random.choice([1, 1, 1, 3])):
                if self.living:
                    self.kill(self.random.choice(sorted(self.living)))
            if self.living and self.random.random() < 0.2:
                self.stop(self.random.choice(sorted(self.living)))
            if self.random.random() < 0.1:
                self.kill_agent()
            self.ended_by_themselves()
            self.look()
        self.finish()

    def accounts_are_zero(self):
        """The agent that is there, or one that begins now, promises nothing."""
        if not self.machine.agent_pids():
            self.machine.start_agent()

        def nothing():
            return not self.machine.ps() and all(
                gpu["promised_bytes"] == 0 and gpu["promised_request"] == 0
                for gpu in self.machine.gpus())
        harness.wait_until(nothing, what="an agent without shares and promises")

    def finish(self):
        self.hang_file.unlink(missing_ok=True)
        self.hangs_until = 0
        self.go_on()
        self.ended_by_themselves()
        while len(self.living) < PROGRAMS:
            self.start()
        self.settle()
        for pid in list(self.living):
            self.kill(pid)
        self.look()
        for nvml in self.nvmls:
            if used := nvml.memory()[2]:
                raise AssertionError(f"{used} bytes are used, and nobody is left")
        self.accounts_are_zero()
        # And all of it still works.
        for report in (self.machine.bare_json(["--kernels", 20, "--kernel-us", 200]),
                       self.machine.run_json(["--memory", "256MiB"],
                                             ["--kernels", 20, "--kernel-us", 200])):
            if report["kernels"] != 20:
                raise AssertionError(f"afterwards: {report}")
        print(f"soak: {self.kills} programs and {self.agent_kills} agents killed, {self.ended} "
              f"ended by themselves; looked {self.looks} times, everybody got on {self.settled} "
              f"times, {self.stops} were stopped for a while, NVML hung {self.hangs} times",
              flush=True)

    def close(self):
        for nvml in self.nvmls:
            nvml.close()
        self.machine.close()


def chaos(seed, seconds):
    """The kill storms of the core's own tests."""
    environment = {**os.environ, "PRORATA_STORM_SEED": str(seed),
                   "PRORATA_STORM_SECONDS": str(max(1, int(seconds)))}
    program = harness.BUILD / "tests" / "simgpu_chaos_test"
    subprocess.run([program, "--gtest_filter=ChaosTest.*", "--gtest_brief=1"], env=environment,
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
    chaos(seed, seconds / 3)
    programs = Programs(seed)
    try:
        programs.run(seconds * 2 / 3)
    except AssertionError:
        print("--- agent log\n" + programs.machine.agent_log()[-8000:], flush=True)
        raise
    finally:
        programs.close()


if __name__ == "__main__":
    main()
