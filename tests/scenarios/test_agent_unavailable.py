"""The agent is stopped or killed under contention, in real processes: programs go on, limits hold, and
it serves again. Polled at by the device's own account; a run that noise disturbed is skipped.
"""
import ctypes
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import unittest

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import processes  # pylint: disable=wrong-import-position
import scenario as scenarios  # pylint: disable=wrong-import-position
from processes import harness  # pylint: disable=wrong-import-position

pytestmark = pytest.mark.alone

TEXT = """
name = "a unavailable agent under contention"
duration_ms = 2600
warmup_ms = 100
[[programs]]
name = "two"
count = 2
compute = "0.1"
compute_limit = "0.3"
memory = "3GiB"
kernel_us = 1000
[[programs]]
name = "elastic"
kernel_us = 1000
[[expect]]
program = "elastic"
gpu_time = 0.7
tolerance_points = 30
"""
# Alone and with a limit, its lease is open for as much of the time.
ALONE = """
name = "a unavailable agent, and one with a limit"
duration_ms = 2600
warmup_ms = 100
[[programs]]
name = "limited"
compute = "0.1"
compute_limit = "0.8"
memory = "3GiB"
kernel_us = 1000
[[expect]]
device_use = true
gpu_time = 0.8
tolerance_points = 10
"""
SILENT_MS, BACK_MS, END_MS = 600, 1600, 2500
LOOK_MS = 20
# Of <sys/ptrace.h> and <sys/wait.h>.
PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH, WALL = 0x4206, 0x4207, 17, 0x40000000
# Layer M: three times the tolerance, five times the latencies.
TOLERANCE = 3 * 0.03
GAP_MS = 5 * 100


class UnavailableRun(processes.Run):
    def watch(self, silence, end):
        """(what the device says at every look, the watch's report)."""
        usage = self.machine.start([processes.SIM_USAGE], stdin=subprocess.PIPE)
        harness.read_line(usage)
        watch = self.machine.start(
            [processes.NOISE_PROBE, "--watch", "--dilation", self.dilation,
             *processes.noise_options(self.scenario)], stdin=subprocess.PIPE)
        own = [p.pid for p in (*self.processes.values(), usage, self.agent)] + [os.getpid()]
        before_s = processes.cpu_s(own)
        self.barrier.touch()
        begin_ns = time.monotonic_ns() / self.dilation
        looks = range(0, END_MS, LOOK_MS)
        usage.stdin.write("".join(f"{int(begin_ns + ms * 1e6)}\n" for ms in looks))
        usage.stdin.flush()
        for ms, act in ((SILENT_MS, silence), (BACK_MS, end)):
            time.sleep(max(0, (begin_ns + ms * 1e6) * self.dilation - time.monotonic_ns()) / 1e9)
            act(self)
        deadline_s = END_MS * self.dilation / 1000 + harness.DEADLINE_S
        seen = [json.loads(harness.read_line(usage, deadline_s)) for _ in looks]
        used_s = processes.cpu_s(own) - before_s
        watch.send_signal(signal.SIGTERM)
        out, err = watch.communicate(f"{used_s}\n", timeout=harness.DEADLINE_S)
        if watch.returncode != 0:
            raise AssertionError(f"noise_probe ended with {watch.returncode}: {err}")
        return seen, json.loads(out)


class HeartbeatWatch(unittest.TestCase):
    def check(self, silence, end, text=TEXT, limited="two", limit=0.3):
        scenario = scenarios.parse(text, "silence")
        found = processes.probe(scenario)
        if "refusal" in found:
            self.skipTest(found["refusal"])
        run = UnavailableRun(scenario, found["dilation"])
        try:
            run.start()
            seen, watched = run.watch(silence, end)
            run.check_alive()
        finally:
            run.close()
        pids = {name: str(process.pid) for name, process in run.processes.items()}
        if "refusal" in watched:
            self.skipTest(watched["refusal"])
        gaps = {name: self.longest_gap_ms(seen, pid) for name, pid in pids.items()}
        parts = {when: self.part_of(limited, seen, pids, *span) for when, span in {
            "before": (200, SILENT_MS), "during": (SILENT_MS, BACK_MS),
            "after": (BACK_MS + 100, END_MS)}.items()}
        print(run.dilation, gaps, parts)
        for name, gap_ms in gaps.items():
            self.assertLessEqual(gap_ms, GAP_MS, f"{name} was stopped: {gaps}")
        for when, part in parts.items():
            self.assertLessEqual(part, limit + TOLERANCE, f"{when}: {parts}")
            self.assertGreater(part, 0.03, f"{when}: {parts}")

    @staticmethod
    def longest_gap_ms(seen, pid):
        longest, last, since = 0, None, None
        for look in seen:
            if look["now_ns"] - seen[0]["now_ns"] < 200e6:
                continue  # contexts are being made
            busy = look["processes"].get(pid, 0)
            if busy != last:
                last, since = busy, look["now_ns"]
            longest = max(longest, look["now_ns"] - since)
        return longest / 1e6

    @staticmethod
    def part_of(program, seen, pids, begin_ms, end_ms):
        span = [look for look in seen
                if begin_ms <= (look["now_ns"] - seen[0]["now_ns"]) / 1e6 <= end_ms]
        used = sum(span[-1]["processes"].get(pid, 0) - span[0]["processes"].get(pid, 0)
                   for name, pid in pids.items() if name.startswith(program))
        return used / (span[-1]["now_ns"] - span[0]["now_ns"])

    def test_a_stopped_agent_stops_nobody(self):
        self.check(lambda run: run.agent.send_signal(signal.SIGSTOP),
                   lambda run: run.agent.send_signal(signal.SIGCONT))

    @staticmethod
    def restart(run):
        run.agent = run.machine.start_agent("--dilation", str(run.dilation))

    def test_a_killed_agent_stops_nobody(self):
        self.check(lambda run: run.machine.kill_agent(), self.restart)

    def test_an_agent_whose_loop_is_stuck(self):
        """Its other threads go on, as those of a process that waits in a call of the kernel do."""
        libc = ctypes.CDLL(None, use_errno=True)

        def ptrace(request, run):
            no = ctypes.c_void_p(0)
            if libc.ptrace(ctypes.c_long(request), ctypes.c_int(run.agent.pid), no, no) != 0:
                self.skipTest("may not stop a thread of the agent: " +
                              os.strerror(ctypes.get_errno()))

        def stick(run):
            # The loop is the main thread, and ptrace stops that one thread alone.
            ptrace(PTRACE_SEIZE, run)
            ptrace(PTRACE_INTERRUPT, run)
            os.waitpid(run.agent.pid, WALL)

        self.check(stick, lambda run: ptrace(PTRACE_DETACH, run))

    def test_an_agent_that_takes_connections_and_does_not_answer(self):
        """As one does that is stopped when it has just begun. The lease is open when it falls silent,
        as a rule: what keeps the limit then is the helper, which also tries to join again."""
        listening = []

        def silence(run):
            run.machine.kill_agent()
            for path in run.machine.runtime_dir.glob("shares/*/socket"):
                path.unlink()
                listening.append(socket.socket(socket.AF_UNIX))
                listening[-1].bind(str(path))
                listening[-1].listen(100)

        def end(run):
            self.assertEqual(len(listening), 1)
            for server in listening:
                server.close()
            self.restart(run)
        self.check(silence, end, ALONE, "limited", 0.8)


if __name__ == "__main__":
    unittest.main()
