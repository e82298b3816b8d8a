"""Runs a scenario in many real processes on the simulated GPU, whose clock is slowed down as much as
the noise of this machine asks for, and judges what each program got.

A run ends in one of three ways: it agrees, it differs, or it is skipped: the machine was too noisy
before it, or while it ran. A run that was disturbed is never called either of the others.
"""
import dataclasses
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import harness  # pylint: disable=wrong-import-position
import scenario as scenarios  # pylint: disable=wrong-import-position

NOISE_PROBE = harness.BUILD / "tests" / "noise_probe"
SIM_USAGE = harness.BUILD / "tests" / "sim_usage"
SIMULATION = harness.BUILD / "bin" / "simulation"
LEAST_DILATION = 2
MOST_DILATION = 32
NOISE_POINTS = 1.0   # of GPU time that late wake-ups may cost
AGREEMENT_POINTS = 3  # with the same scenario in one process, on the virtual clock
LAYER_TOLERANCE = 3  # many processes: so many times the scenario's tolerance
HOLD_S = 3600
WORK_US = 60         # CPU time for which the device waits: the end of a wait, and a launch
LAUNCH_US = 50       # CPU time of one launch with all that follows it, in all threads


@dataclasses.dataclass
class Outcome:
    scenario: scenarios.Scenario
    dilation: int = 0
    skipped: str = ""                               # not empty: why nothing can be said
    differs: list = dataclasses.field(default_factory=list)
    gpu_time: dict = dataclasses.field(default_factory=dict)  # of the device's, by program
    share_time: dict = dataclasses.field(default_factory=dict)
    device_use: float = 0
    latency: dict = dataclasses.field(default_factory=dict)   # of open loops, by program
    virtual: dict | None = None  # GPU time, by program, on the virtual clock; None: not asked
    noise: dict = dataclasses.field(default_factory=dict)     # before and during
    wall_s: float = 0

    def of(self, expect):
        if expect.device_use:
            return self.device_use
        if expect.program is not None:
            return self.gpu_time[expect.program]
        return self.share_time[expect.share]

    def json(self):
        return {"scenario": self.scenario.name, "dilation": self.dilation,
                "verdict": "skipped" if self.skipped else "differs" if self.differs else "agrees",
                "why": self.skipped or "; ".join(self.differs), "gpu_time": self.gpu_time,
                "share_time": self.share_time, "device_use": self.device_use,
                "latency": self.latency,
                "virtual": self.virtual, "noise": self.noise,
                "wall_s": round(self.wall_s, 1)}


def spread(sample):
    """As report.h's Spread, in milliseconds of a sample in microseconds; None: it is empty."""
    sample = sorted(sample)
    if not sample:
        return None
    def rank(part):
        return sample[max(1, math.ceil(part * len(sample))) - 1] / 1000
    return {"count": len(sample), "p50_ms": rank(0.5), "p99_ms": rank(0.99), "most_ms": rank(1)}


def noise_options(scenario):
    span_us, wakes = scenario.span()
    return ["--span-us", span_us, "--wakes", wakes, "--work-us", WORK_US,
            "--window-us", scenario.window_us, "--points", NOISE_POINTS,
            "--load", scenario.launches_per_us() * LAUNCH_US,
            "--least", LEAST_DILATION, "--most", MOST_DILATION]


def probe(scenario, seconds=1.0):
    command = [NOISE_PROBE, "--seconds", seconds, *noise_options(scenario)]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True,
                          timeout=harness.DEADLINE_S, check=True)
    return json.loads(done.stdout)


def cpu_s(pids):
    """CPU time that these processes have used so far."""
    ticks = 0
    for pid in pids:
        try:
            fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


class Run:
    """One run of a scenario, on a machine of its own."""

    def __init__(self, scenario, dilation):
        self.scenario, self.dilation = scenario, dilation
        self.machine = harness.Machine(scenarios.machine_toml(scenario.machine, dilation))
        self.barrier = self.machine.folder / "begin"
        self.processes = {}  # by name
        self.failed_updates = []
        self.agent = None

    def close(self):
        self.machine.close()

    def start(self):
        if self.scenario.prorata:
            ceiling = self.scenario.elastic_ceiling
            self.agent = self.machine.start_agent(
                "--dilation", str(self.dilation),
                *(["--elastic-ceiling", ceiling] if ceiling else []))
        seed = 0
        for share, programs in self.scenario.shares().items():
            members = [(name, program) for program in programs for name in program.names]
            environment = self._share_environment(share, members)
            for name, program in members:
                seed += 1
                # Held at its end: what a process got is asked of the device while it lives.
                load = [harness.GPULOAD, *program.load_options(seed), "--dilation", self.dilation,
                        "--wait-for", self.barrier, "--announce", "--hold", HOLD_S,
                        *self.more_options(name)]
                if self.scenario.prorata and environment is None:
                    load = self.machine.command(program.share_options(), load)
                self.processes[name] = self.machine.start(load, environment)
        for process in self.processes.values():
            harness.read_event(process, "ready")

    def more_options(self, name):
        """Of gpuload, for one process."""
        del name
        return []

    def _share_environment(self, share, members):
        """What its programs run in; None: `prorata run` makes the share of its only one."""
        if not self.scenario.prorata:
            return self.machine.bare_environment()
        if len(members) == 1:
            return None
        # The share's owner does nothing; what `prorata run` gave it makes the others members.
        owner = self.machine.start(self.machine.command(members[0][1].share_options(),
                                                        ["sleep", "3600"]))
        def environment():
            folder = pathlib.Path(f"/proc/{owner.pid}")
            if (folder / "comm").read_text().strip() != "sleep":
                return None
            pairs = (folder / "environ").read_bytes().decode().split("\0")
            return dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        return harness.wait_until(environment, what=f"the share {share}")

    def start_updates(self, begin_ns):
        """Threads that say the scenario's updates when they are due."""
        def say(update):
            status, _, err = self.machine.call([harness.PRORATA, "update", update.share,
                                                *update.term_options()])
            if status != 0:
                self.failed_updates.append(f"update of {update.share} ended with {status}: {err}")
        threads = []
        for update in self.scenario.updates if self.scenario.prorata else ():
            due_s = (begin_ns / 1e9 + update.at_ms / 1e3) * self.dilation - time.monotonic()
            threads.append(threading.Timer(max(0, due_s), say, [update]))
            threads[-1].start()
        return threads

    def measure(self):
        """(usage at the window's begin, at its end, the watch's report)."""
        usage = self.machine.start([SIM_USAGE], stdin=subprocess.PIPE)
        harness.read_line(usage)
        watch = self.machine.start(
            [NOISE_PROBE, "--watch", "--dilation", self.dilation, *noise_options(self.scenario)],
            stdin=subprocess.PIPE)
        own = [p.pid for p in (*self.processes.values(), usage, self.agent) if p] + [os.getpid()]
        before_s = cpu_s(own)
        self.barrier.touch()
        begin_ns = time.monotonic_ns() / self.dilation
        updates = self.start_updates(begin_ns)
        ends = [int(begin_ns + ms * 1e6)
                for ms in (self.scenario.warmup_ms, self.scenario.duration_ms)]
        usage.stdin.write("".join(f"{end}\n" for end in ends))
        usage.stdin.flush()
        deadline_s = self.scenario.duration_ms * self.dilation / 1000 + harness.DEADLINE_S
        first, last = (json.loads(harness.read_line(usage, deadline_s)) for _ in ends)
        for update in updates:
            update.join()
        watch.send_signal(signal.SIGTERM)
        out, err = watch.communicate(f"{cpu_s(own) - before_s}\n", timeout=harness.DEADLINE_S)
        if watch.returncode != 0:
            raise AssertionError(f"noise_probe ended with {watch.returncode}: {err}")
        return first, last, json.loads(out)

    def latencies(self):
        """{program: spread of its requests that were done in the window}, of those with open loops."""
        found = {}
        for program in self.scenario.programs:
            if not program.every_us:
                continue
            from_s = (self.scenario.warmup_ms - program.start_ms) / 1000
            requests = [request for name in program.names for request in harness.read_event(
                self.processes[name], "requests")["done_s_latency_us"]]
            found[program.name] = spread(us for done_s, us in requests if done_s > from_s)
        return found

    def check_alive(self):
        if self.failed_updates:
            raise AssertionError("; ".join(self.failed_updates))
        self._check_programs()

    def _check_programs(self):
        """A program ends by itself only when something failed. Killed later, not stopped: one that
        never synchronises may have seconds of work queued."""
        for name, process in self.processes.items():
            if process.poll() is not None:
                out, err = process.communicate()
                raise AssertionError(f"{name} ended with {process.returncode}: {out} {err}\n"
                                     + self.machine.agent_log()[-4000:])


def judge(outcome, first, last, pids):
    """Fills in what each got between two looks at the machine, and what differs from the file."""
    scenario = outcome.scenario
    busy = {name: last["processes"].get(str(pid), 0) - first["processes"].get(str(pid), 0)
            for name, pid in pids.items()}
    together = sum(busy.values())
    outcome.device_use = ((last["busy_ns"] - first["busy_ns"]) /
                          (last["now_ns"] - first["now_ns"]))
    for program in scenario.programs:
        part = sum(busy[name] for name in program.names) / max(1, together)
        outcome.gpu_time[program.name] = part
        outcome.share_time[program.share] = outcome.share_time.get(program.share, 0) + part
    for expect in scenario.expect:
        points = 100 * abs(outcome.of(expect) - expect.gpu_time)
        if points > LAYER_TOLERANCE * expect.tolerance_points:
            outcome.differs.append(
                f"{expect.of} got {100 * outcome.of(expect):.1f} %, not "
                f"{100 * expect.gpu_time:.1f} % within "
                f"{LAYER_TOLERANCE * expect.tolerance_points:.1f} points")


def virtual_time(text):
    """{program: GPU time} of a scenario's text in the one-process simulation; None where that is not
    built."""
    if not SIMULATION.exists():
        return None
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        done = subprocess.run([SIMULATION, "--json", file.name], capture_output=True, text=True,
                              timeout=harness.DEADLINE_S, check=False)
    if not done.stdout:
        raise AssertionError(f"{SIMULATION} ended with {done.returncode}: {done.stderr}")
    return {program["name"]: program["gpu_time"]
            for program in json.loads(done.stdout)["programs"]}


def compare(outcome, virtual):
    """What many processes got against what the virtual clock says of the same scenario."""
    outcome.virtual = virtual
    for program, part in outcome.gpu_time.items() if virtual else ():
        if abs(part - virtual[program]) * 100 > AGREEMENT_POINTS:
            outcome.differs.append(
                f"{program} got {100 * part:.1f} %, on the virtual clock "
                f"{100 * virtual[program]:.1f} %: more than {AGREEMENT_POINTS} points apart")


def run_patiently(scenario, patience_s=12):
    """Runs it again while it is skipped: a short disturbance should not cost the test."""
    begin_s = time.monotonic()
    while True:
        outcome = run(scenario)
        if not outcome.skipped or time.monotonic() - begin_s > patience_s:
            return outcome


def run(scenario, dilation=None):
    """Runs it once. `dilation`: this one, without a probe before; noise during the run counts all the
    same."""
    begin_s = time.monotonic()
    outcome = Outcome(scenario)
    if dilation is None:
        found = probe(scenario)
        outcome.noise["before"] = found["noise"]
        if "refusal" in found:
            outcome.skipped = found["refusal"]
            return outcome
        dilation = found["dilation"]
    outcome.dilation = dilation
    this = Run(scenario, dilation)
    try:
        this.start()
        first, last, watched = this.measure()
        this.check_alive()
        outcome.latency = this.latencies()
    finally:
        this.close()
    outcome.noise["during"] = {**watched["noise"], **{
        key: watched[key] for key in ("own", "others", "points")}}
    judge(outcome, first, last, {name: process.pid for name, process in this.processes.items()})
    if "refusal" in watched:
        outcome.skipped = watched["refusal"]
    outcome.wall_s = time.monotonic() - begin_s
    return outcome
