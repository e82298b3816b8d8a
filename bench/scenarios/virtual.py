"""Layer V: scenarios in the one-process simulation, and what is read from them."""
import json
import pathlib
import subprocess


def run(simulation, path, policy="default", seeds=1, first_seed=1):
    """One report (simulation --json --series) for each seed."""
    done = subprocess.run([simulation, path, "--json", "--series", "--policy", policy, "--seed", str(first_seed),
                           "--runs", str(seeds)], capture_output=True, text=True, check=False)
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode not in (0, 1) or len(reports) != seeds:
        raise RuntimeError(f"simulation {pathlib.Path(path).name} --policy {policy} ended with "
                           f"{done.returncode}: {done.stderr.strip()}")
    for report in reports:
        if report["failure"]:
            raise RuntimeError(f"{report['scenario']}, {policy}, seed {report['seed']}: {report['failure']}")
    return reports


def share_error(report, expected, window_ms, from_ms):
    """How far, in points, a program was from what it is entitled to, in the worst window of so long that
    begins at `from_ms` or so many tenths of a second later. `expected`: {program: part}."""
    step = report["step_ms"]
    steps = round(window_ms / step)
    first = round(from_ms / step)
    busy = {program["name"]: program["busy_ms"] for program in report["programs"]}
    worst = 0.0
    for begin in range(first, len(report["device_ms"]) - steps):
        together = sum(line[begin + steps] - line[begin] for line in busy.values())
        for program, part in expected.items():
            got = busy[program][begin + steps] - busy[program][begin]
            worst = max(worst, abs(got / together - part) * 100 if together else 100 * part)
    return worst


def rates(report, program):
    """[(seconds, part of the device's time)] of every tenth of a second."""
    busy = next(entry["busy_ms"] for entry in report["programs"] if entry["name"] == program)
    step = report["step_ms"]
    return [((i + 0.5) * step / 1000, (busy[i + 1] - busy[i]) / step) for i in range(len(busy) - 1)]


def worst(reports, value):
    """The greatest of what `value` gives for each, or None where it gives none."""
    found = [part for part in map(value, reports) if part is not None]
    return max(found) if found else None


def p99_ms(report, prefix=""):
    """The worst of its open loops' p99, of programs whose names begin so; None: it has none."""
    found = [program["latency"]["p99_ms"] for program in report["programs"]
             if "latency" in program and program["name"].startswith(prefix)]
    return max(found) if found else None
