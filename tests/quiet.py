"""Whether the machine was quiet while a test judged real times. A verdict that noise can explain is no
failure: the test is then skipped by name, with the figures. What needs no quiet is judged without.

    with quiet.Watch() as watch:
        measured = ...
    watch.judge(self, measured < bound, f"measured {measured}")
"""
import json
import os
import pathlib
import resource
import signal
import subprocess

import harness

NOISE_PROBE = harness.BUILD / "tests" / "noise_probe"
# A machine beyond any of these is noisy. A quiet one with two CPUs: 0.1 ms, 1 ms, 10 ms, 5 %.
MOST_LATE_MEAN_US = 500
MOST_LATE_P99_US = 5_000
MOST_LATE_US = 100_000
MOST_OTHERS = 0.25  # of the CPUs' time, used by programs that are no children of the test


def _cpu_s(pids):
    """Of all children that ended, and of these processes, which run."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    running = 0
    for pid in pids:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        running += int(fields[11]) + int(fields[12])
    return used.ru_utime + used.ru_stime + running / os.sysconf("SC_CLK_TCK")


class Watch:
    """Measures beside the test. Children that ended (and were waited for) inside are its own, and so
    are the processes `pids`, which run all the while."""

    def __init__(self, pids=()):
        self.noisy = None  # why, with figures; empty: it was quiet
        self.wake_us = None  # what one wake-up that does nothing took of a CPU, the while
        self._pids = tuple(pids)

    def __enter__(self):
        self._own_s = _cpu_s(self._pids)
        self._probe = subprocess.Popen([NOISE_PROBE, "--watch", "--dilation", "1"], text=True,
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self

    def __exit__(self, failed, *_):
        if failed is not None:  # that is to be told, not what the probe has to say
            self._probe.kill()
            self._probe.communicate()
            return
        own_s = _cpu_s(self._pids) - self._own_s
        self._probe.send_signal(signal.SIGTERM)
        out, _ = self._probe.communicate(f"{own_s}\n", timeout=harness.DEADLINE_S)
        report = json.loads(out)
        self.noise = noise = report["noise"]
        others = report["others"]
        self.wake_us = report["wake_us"]
        self.figures = (f"{noise['text']}, each {self.wake_us:.1f} us of a CPU; "
                        f"others used {100 * others:.0f} % of the CPUs")
        noisy = (noise["wakes"] == 0 or noise["late_mean_us"] > MOST_LATE_MEAN_US
                 or noise["late_p99_us"] > MOST_LATE_P99_US or noise["late_max_us"] > MOST_LATE_US
                 or others > MOST_OTHERS)
        self.noisy = self.figures if noisy else ""

    def judge(self, test, well, message):
        """Fails the test, or skips it where the machine was noisy."""
        if well:
            return
        if self.noisy:
            test.skipTest(f"the machine was too noisy ({self.noisy}) to judge: {message}")
        test.fail(f"{message} (on a quiet machine: {self.figures})")
