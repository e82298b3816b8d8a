#!/usr/bin/env python3
"""The main job, shown: three CUDA programs share one GPU with requests 0.5 / 0.3 / 0.2 and memory
limits. A live table shows what each is entitled to and gets; a closing one is made from the
programs' own kernel stamps. Exit status 0: all were within 3 points of their entitlement.

On a machine without an NVIDIA driver it runs on the simulated GPU, and says so in its first line.
"""
import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOLERANCE_POINTS = 3.0
# name, request, memory limit, what the program allocates, its kernel in microseconds
PROGRAMS = [
    ("a", 0.5, "4GiB", "2GiB", 2000),
    ("b", 0.3, "2GiB", "1GiB", 1000),
    ("c", 0.2, "1GiB", "256MiB", 500),
]


class Interrupted(Exception):
    """Ctrl-C or SIGTERM: clean up and end."""


def find_driver(build):
    """(first line's words, environment that leads to the driver)."""
    if os.environ.get("PRORATA_DRIVER_DIR"):
        return f"driver in {os.environ['PRORATA_DRIVER_DIR']}", {}
    if pathlib.Path("/dev/nvidiactl").exists() or pathlib.Path("/proc/driver/nvidia").exists():
        return None, {}
    return "simulated GPU (no NVIDIA driver found)", {"PRORATA_DRIVER_DIR": str(build / "sim")}


class Demo:
    def __init__(self, options):
        self.build = options.build.resolve()
        self.seconds = options.seconds
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="prorata-demo-"))
        self.words, driver = find_driver(self.build)
        self.environment = {**os.environ, **driver, "PRORATA_DIR": str(self.folder / "run"),
                            "PRORATA_SIM_STATE": str(self.folder / "sim")}
        (self.folder / "run").mkdir()
        (self.folder / "sim").mkdir()
        self.agent = None
        self.programs = {}

    def prorata(self, *arguments):
        done = subprocess.run([self.build / "bin" / "prorata", *arguments], env=self.environment,
                              capture_output=True, text=True, check=False, timeout=120)
        if done.returncode != 0:
            raise RuntimeError(f"prorata {arguments[0]}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def popen(self, command, log):
        # A session of its own: Ctrl-C is for the demo, which then ends the programs in order.
        with open(self.folder / log, "w", encoding="utf-8") as errors:
            return subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL,
                                    stdout=subprocess.PIPE, stderr=errors, text=True,
                                    start_new_session=True)

    def start_agent(self):
        self.agent = self.popen([self.build / "bin" / "prorata", "agent"], "agent.log")
        end = time.monotonic() + 120
        while time.monotonic() < end and self.agent.poll() is None:
            done = subprocess.run([self.build / "bin" / "prorata", "gpus", "--json"],
                                  env=self.environment, capture_output=True, text=True, check=False)
            if done.returncode == 0 and json.loads(done.stdout):
                return json.loads(done.stdout)[0]
            time.sleep(0.05)
        log = (self.folder / "agent.log").read_text(encoding="utf-8")
        raise RuntimeError(f"the agent did not start: {log.strip()}")

    def start_programs(self):
        for name, request, limit, allocate, kernel_us in PROGRAMS:
            self.programs[name] = self.popen(
                [self.build / "bin" / "prorata", "run", "--name", name, "--memory", limit,
                 "--compute", str(request), "--", self.build / "bin" / "gpuload",
                 "--seconds", str(self.seconds), "--kernel-us", str(kernel_us),
                 "--allocate", allocate, "--stamps", self.folder / f"{name}.stamps"],
                f"{name}.log")

    def reports(self):
        found = {}
        for name, process in self.programs.items():
            out, _ = process.communicate(timeout=180)
            if process.returncode != 0:
                log = (self.folder / f"{name}.log").read_text(encoding="utf-8")
                raise RuntimeError(f"program {name} ended with {process.returncode}: "
                                   f"{out.strip()} {log.strip()}")
            found[name] = json.loads(out.splitlines()[-1])
        return found

    def stamps(self, name):
        return json.loads((self.folder / f"{name}.stamps").read_text(encoding="utf-8"))

    def close(self):
        processes = [p for p in [*self.programs.values(), self.agent] if p is not None]
        for process in processes:
            if process.poll() is None:
                process.terminate()
        end = time.monotonic() + 5
        for process in processes:
            try:
                process.wait(timeout=max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def format_bytes(value):
    return f"{value / (1 << 30):.2f} GiB"


class LiveTable:
    """Redrawn in place on a terminal; elsewhere one line a second."""

    def __init__(self):
        self.in_place = sys.stdout.isatty()
        self.drawn = 0

    def show(self, second, shares):
        if not self.in_place:
            parts = [f"{name} entitled {100 * device['entitled']:.0f}% "
                     f"gets {100 * device['achieved']:.0f}% "
                     f"holds {format_bytes(device['used_bytes'])}" for name, device in shares]
            print(f"{second:3d} s  " + " | ".join(parts), flush=True)
            return
        lines = [f"{'':2}{'SHARE':<8}{'REQUEST':>8}{'ENTITLED':>10}{'GPU TIME':>10}"
                 f"{'MEMORY':>12}{'LIMIT':>12}   after {second} s"]
        for name, device in shares:
            bar = "#" * round(30 * device["achieved"])
            lines.append(f"{'':2}{name:<8}{device['compute_request']:>8g}"
                         f"{100 * device['entitled']:>9.1f}%{100 * device['achieved']:>9.1f}%"
                         f"{format_bytes(device['used_bytes']):>12}"
                         f"{format_bytes(device['memory_limit_bytes']):>12}   {bar}")
        if self.drawn:
            sys.stdout.write(f"\x1b[{self.drawn}A")
        sys.stdout.write("".join(f"\x1b[2K{line}\n" for line in lines))
        sys.stdout.flush()
        self.drawn = len(lines)


def device_time(stamps_by_name):
    """Device nanoseconds of each program in the window in which all ran: (seconds, {name: ns}).

    Where kernels of several programs lie over each other, the moment is divided among them; kernels
    of one program that overlap count once.
    """
    begin = max(min(start for start, _ in stamps) for stamps in stamps_by_name.values())
    end = min(max(stop for _, stop in stamps) for stamps in stamps_by_name.values())
    if end <= begin:
        raise RuntimeError("the programs never ran at the same time")
    edges = []
    for name, stamps in stamps_by_name.items():
        for start, stop in stamps:
            start, stop = max(start, begin), min(stop, end)
            if start < stop:
                edges += [(start, 1, name), (stop, -1, name)]
    edges.sort()
    running = dict.fromkeys(stamps_by_name, 0)
    achieved = dict.fromkeys(stamps_by_name, 0.0)
    last = begin
    for moment, change, name in edges:
        present = [other for other, count in running.items() if count]
        for other in present:
            achieved[other] += (moment - last) / len(present)
        running[name] += change
        last = moment
    return (end - begin) / 1e9, achieved


def closing_table(demo):
    seconds, achieved = device_time({name: demo.stamps(name) for name in demo.programs})
    all_time = sum(achieved.values())
    all_requests = sum(request for _, request, *_ in PROGRAMS)
    print(f"\nBy the kernels' own stamps, in the {seconds:.1f} s in which all three ran:\n")
    print(f"  {'SHARE':<8}{'ENTITLED':>10}{'ACHIEVED':>10}{'DIFFERENCE':>13}")
    worst = 0.0
    for name, request, *_ in PROGRAMS:
        entitled = 100 * request / all_requests
        got = 100 * achieved[name] / all_time
        worst = max(worst, abs(got - entitled))
        print(f"  {name:<8}{entitled:>9.1f}%{got:>9.1f}%{got - entitled:>+7.1f} points")
    well = worst <= TOLERANCE_POINTS
    print(f"\n{'PASSED' if well else 'FAILED'}: the largest difference is {worst:.1f} points "
          f"(allowed: {TOLERANCE_POINTS:.0f}); the GPU was in use "
          f"{100 * all_time / 1e9 / seconds:.0f} % of the time")
    return 0 if well else 1


def run(demo):
    if demo.words:
        print(demo.words, flush=True)
    gpu = demo.start_agent()
    if not demo.words:
        print(gpu["name"], flush=True)
    print(f"Three programs on one GPU ({format_bytes(gpu['total_bytes'])}) "
          f"for {demo.seconds:g} s\n", flush=True)
    demo.start_programs()
    table = LiveTable()
    begin = time.monotonic()
    second = 0
    while any(process.poll() is None for process in demo.programs.values()):
        second += 1
        time.sleep(max(0.0, begin + second - time.monotonic()))
        shares = [(s["name"], s["devices"][0]) for s in demo.prorata("ps", "--json")
                  if not s["ended"]]
        if len(shares) == len(PROGRAMS):
            table.show(second, sorted(shares, key=lambda share: share[0]))
        if second > demo.seconds + 180:
            raise RuntimeError("the programs did not end in time")
    demo.reports()
    return closing_table(demo)


def interrupt(_signal, _frame):
    raise Interrupted


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build",
                        help="folder of the build (default: build)")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    demo = Demo(options)
    try:
        return run(demo)
    except Interrupted:
        print("\ninterrupted; the programs and the agent are ended", file=sys.stderr)
        return 130
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        demo.close()


if __name__ == "__main__":
    sys.exit(main())
