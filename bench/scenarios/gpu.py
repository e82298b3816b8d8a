"""Layer G: scenarios on a GPU, with gpuload as the programs. The referee is the merged stamps of all kernels
(%globaltimer, one clock for all processes): each moment of the device belongs to the programs that have a kernel
under way in it, in equal parts.

NEVER RUN ON A GPU so far. The same code runs on the simulated GPU (`simulated`), and a test does that.
"""
import ctypes
import heapq
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "scenarios"))
STAMPS = 1 << 20  # kept for each program


def missing():
    """Why there is no layer G here; empty: there is a GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"there is no NVIDIA driver ({error})"
    status = driver.cuInit(0)
    if status != 0:
        return f"the driver's cuInit answers {status}"
    name = ctypes.create_string_buffer(128)
    device = ctypes.c_int()
    if driver.cuDeviceGet(ctypes.byref(device), 0) != 0 or driver.cuDeviceGetName(name, 128, device) != 0:
        return "the driver has no device"
    return "the driver is the simulated one" if name.value.startswith(b"Simulated") else ""


def divided(kernels, from_ns, to_ns):
    """({program: its device time}, time in which any kernel ran) within [from_ns, to_ns], of {program: [(start,
    end)]}. Overlaps are divided between programs, not between kernels of one."""
    moments = []
    for program, spans in kernels.items():
        for start, end in spans:
            start, end = max(start, from_ns), min(end, to_ns)
            if start < end:
                moments += [(start, 1, program), (end, -1, program)]
    heapq.heapify(moments)
    under_way = dict.fromkeys(kernels, 0)
    busy = dict.fromkeys(kernels, 0.0)
    any_ns, since = 0, from_ns
    while moments:
        when, change, program = heapq.heappop(moments)
        running = [name for name, count in under_way.items() if count]
        for name in running:
            busy[name] += (when - since) / len(running)
        any_ns += (when - since) if running else 0
        since = when
        under_way[program] += change
    return busy, any_ns


def judge(scenario, stamps):
    """What each program got, from {program: [(start, end)]}. Time 0 is when the first kernel of those that begin
    at once started."""
    first = [min(start for start, _ in stamps[p.name]) for p in scenario.programs
             if p.start_ms == 0 and stamps[p.name]]
    if not first:
        raise AssertionError(f"{scenario.name}: no program launched anything")
    begin = min(first)
    from_ns = begin + int(scenario.warmup_ms * 1e6)
    to_ns = begin + int(scenario.duration_ms * 1e6)
    busy, any_ns = divided(stamps, from_ns, to_ns)
    together = sum(busy.values()) or 1
    return {"gpu_time": {name: part / together for name, part in busy.items()},
            "device_use": any_ns / (to_ns - from_ns)}


def run_once(scenario, simulated_dilation=None):
    os.environ.setdefault("PRORATA_TEST_GPU", "" if simulated_dilation else "real")
    import processes  # pylint: disable=import-outside-toplevel
    from processes import harness  # pylint: disable=import-outside-toplevel
    if bool(simulated_dilation) == harness.REAL_GPU:
        raise AssertionError("layers on the simulated GPU and on a GPU: not in one process")

    class GpuRun(processes.Run):
        def more_options(self, name):
            return ["--stamp-capacity", STAMPS, "--stamps", self.machine.folder / f"{name}.stamps"]

        def finish(self):
            """{program: [(start, end)]}, and the spreads of open loops."""
            self.barrier.touch()
            deadline_s = scenario.duration_ms * self.dilation / 1000 + harness.DEADLINE_S
            latency, stamps = {}, {}
            for program in scenario.programs:
                spans, requests = [], []
                for name in program.names:
                    if program.every_us:
                        requests += self._event(name, "requests", deadline_s)["done_s_latency_us"]
                    self._event(name, "done", deadline_s)
                    spans += json.loads((self.machine.folder / f"{name}.stamps").read_text())
                stamps[program.name] = spans
                from_s = (scenario.warmup_ms - program.start_ms) / 1000
                if program.every_us:
                    latency[program.name] = processes.spread(us for done_s, us in requests if done_s > from_s)
            return stamps, latency

        def _event(self, name, event, deadline_s):
            while True:
                found = json.loads(harness.read_line(self.processes[name], deadline_s))
                if found.get("event") == event:
                    return found
                if "error" in found:
                    raise AssertionError(f"{name}: {found['message']}")

    this = GpuRun(scenario, simulated_dilation or 1)
    try:
        this.start()
        stamps, latency = this.finish()
    finally:
        this.close()
    return {**judge(scenario, stamps), "latency": latency}


def run(benchmark, build, simulated_dilation=None, seconds=None):
    """{policy: what each program got}, with prorata and without it."""
    os.environ["PRORATA_BUILD_DIR"] = str(build)
    os.environ["PRORATA_TEST_GPU"] = "" if simulated_dilation else "real"
    import scenario  # pylint: disable=import-outside-toplevel
    found = {}
    for policy in ("default", "none"):
        text = benchmark.text
        if policy == "none":
            text = text.replace("prorata = true", "prorata = false")
        if seconds:
            text = scenario.shortened(text, 1000 * seconds)
        found[policy] = run_once(scenario.parse(text, benchmark.name), simulated_dilation)
    return found
