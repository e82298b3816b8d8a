#!/usr/bin/env python3
"""Runs the scenario benchmarks of families.py with prorata and without it, and writes what each program got:
JSON for every scenario, a table, and pictures.

    bench/scenarios/run.py --build build                          # layer V: the one-process simulation
    bench/scenarios/run.py --build build --layers V,M --only elastic
    bench/scenarios/run.py --build build --layers G               # on a GPU, with prorata and without

V: the virtual clock, a few seconds each, from seeds. M: real processes on the simulated GPU, its clock slowed
down as this machine's noise asks for; only scenarios that are coarse enough; some may be skipped as too noisy.
G: gpuload on a GPU; without one it says so, and runs nothing.

Ends with 0 if all ran, whatever they gave: the bars are judged by the tests. 1: something did not run.
"""
import argparse
import json
import os
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent.parent / "tests" / "scenarios")]
import families  # pylint: disable=wrong-import-position
import charts    # pylint: disable=wrong-import-position
import virtual   # pylint: disable=wrong-import-position


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    parser.add_argument("--layers", default="V", help="some of V,M,G (V)")
    parser.add_argument("--only", default="", help="names that match this expression")
    parser.add_argument("--seeds", type=int, default=3, help="of layer V, from 1 (3)")
    parser.add_argument("--out", type=pathlib.Path, help="a folder (BUILD/bench-scenarios)")
    parser.add_argument("--seconds", type=float, default=2.0, help="simulated, of layer M's scenarios (2)")
    parser.add_argument("--dilation", type=int, help="of layer M: slow down so many times, whatever the noise")
    parser.add_argument("--list", action="store_true", help="only tell the names")
    return parser.parse_args()


def run_virtual(benchmark, path, options):
    """{policy: [report of each seed]}"""
    simulation = options.build / "bin" / "simulation"
    return {policy: virtual.run(simulation, path, policy, options.seeds) for policy in ("default", "none")}


def run_processes(benchmark, options):
    """{policy: outcome}; empty: not for this layer."""
    if not benchmark.processes:
        return {}
    os.environ["PRORATA_BUILD_DIR"] = str(options.build.resolve())
    import processes  # pylint: disable=import-outside-toplevel
    import scenario   # pylint: disable=import-outside-toplevel
    outcomes = {}
    for policy in ("default", "none"):
        text = benchmark.text
        if policy == "none":
            text = text.replace("prorata = true", "prorata = false")
        if benchmark.name != "elastic":  # its programs come and go at their times
            text = scenario.shortened(text, 1000 * options.seconds)
        outcomes[policy] = processes.run(scenario.parse(text, benchmark.name), options.dilation).json()
    return outcomes


def throughput(reports, without):
    """What all programs got done with prorata, of what they get done without it: by device time."""
    def busy(some):
        return sum(r["device_ms"][-1] - r["device_ms"][0] for r in some)
    return busy(reports) / busy(without) if busy(without) else None


def row(name, runs):
    """A line of the table of layer V: the worst of the seeds."""
    reports, without = runs["default"], runs["none"]
    expected = [e for e in reports[0].get("expectations", []) if e["of"] != "device use"]
    error = None
    if expected:
        error = 100 * max(abs(e["seen"] - e["expected"]) for r in reports for e in r["expectations"]
                          if e["of"] != "device use")
    return {"name": name, "share_error_points": error,
            "device_use": min(r["device_use"] for r in reports),
            "device_use_without": min(r["device_use"] for r in without),
            "throughput_of_without": throughput(reports, without),
            "gap_p99_ms": max(r["gaps"]["p99_ms"] for r in reports),
            "gap_most_ms": max(r["gaps"]["most_ms"] for r in reports),
            "p99_ms": virtual.worst(reports, virtual.p99_ms),
            "p99_ms_without": virtual.worst(without, virtual.p99_ms)}


COLUMNS = (("name", "scenario", "{}"), ("share_error_points", "share error, points", "{:.2f}"),
           ("device_use", "device use", "{:.1%}"), ("device_use_without", "without", "{:.1%}"),
           ("throughput_of_without", "work done, of without", "{:.1%}"), ("gap_p99_ms", "gap p99, ms", "{:.2f}"),
           ("gap_most_ms", "gap most, ms", "{:.2f}"), ("p99_ms", "latency p99, ms", "{:.2f}"),
           ("p99_ms_without", "without", "{:.2f}"))


def table(rows):
    def cell(entry, key, form):
        return "" if entry[key] is None else form.format(entry[key])
    lines = ["| " + " | ".join(title for _, title, _ in COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    lines += ["| " + " | ".join(cell(entry, key, form) for key, _, form in COLUMNS) + " |" for entry in rows]
    return "\n".join(lines) + "\n"


def draw_elastic(path, runs):
    """The first seed's run: with prorata, and without it."""
    panels = []
    for policy, title in (("default", "with prorata"), ("none", "without")):
        report = runs[policy][0]
        panels.append({"title": f"part of the GPU's time, {title}", "x_title": "seconds", "y_max": 1.0,
                       "series": {name: virtual.rates(report, name) for name in ("first", "second")}})
    charts.draw(path, panels)


def draw_numbers(path, results, family, x_title):
    """Over the number that a family varies: device use, with prorata and without; and the share error."""
    found = sorted((b.number, r) for b, r in results.values() if b.family == family)
    use = {"with prorata": [(n, r["device_use"]) for n, r in found],
           "without": [(n, r["device_use_without"]) for n, r in found]}
    error = {"with prorata": [(n, r["share_error_points"] or 0) for n, r in found]}
    charts.draw(path, [
        {"title": "device use", "x_title": x_title, "series": use, "y_max": 1.0, "log_x": True},
        {"title": "share error, points", "x_title": x_title, "series": error, "log_x": True}])


def draw(out, results, runs):
    if "elastic" in runs:
        draw_elastic(out / "elastic.svg", runs["elastic"])
    for family, x_title in (("partition", "equal shares"), ("isolation", "programs"), ("programs", "programs")):
        if any(b.family == family for b, _ in results.values()):
            draw_numbers(out / f"{family}.svg", results, family, x_title)


def run_gpu(benchmarks, options):
    import gpu  # pylint: disable=import-outside-toplevel
    missing = gpu.missing()
    if missing:
        print(f"layer G: not run: {missing}")
        return {}
    return {benchmark.name: gpu.run(benchmark, options.build.resolve()) for benchmark in benchmarks
            if benchmark.processes}


def show_processes(name, outcomes):
    for policy, outcome in outcomes.items():
        parts = ", ".join(f"{program} {100 * part:.1f} %" for program, part in outcome["gpu_time"].items())
        found = f"{parts}; device use {100 * outcome['device_use']:.1f} %" if parts else ""
        latency = "".join(f"; {program} p99 {spread['p99_ms']:.2f} ms"
                          for program, spread in outcome["latency"].items() if spread)
        doubt = f" (not to be relied on: {outcome['skipped_because']})" if outcome["skipped_because"] else ""
        print(f"layer M: {name} ({policy}): {found}{latency}{doubt}", flush=True)


def main():
    options = arguments()
    layers = options.layers.split(",")
    out = options.out or options.build / "bench-scenarios"
    wanted = [b for b in families.everything() if re.search(options.only, b.name)]
    if options.list:
        print("\n".join(benchmark.name for benchmark in wanted))
        return 0
    out.mkdir(parents=True, exist_ok=True)
    results, runs, everything = {}, {}, {}
    for benchmark in wanted:
        path = out / f"{benchmark.name}.toml"
        path.write_text(benchmark.text, encoding="utf-8")
        entry = everything.setdefault(benchmark.name, {})
        if "V" in layers:
            runs[benchmark.name] = entry["V"] = run_virtual(benchmark, path, options)
            results[benchmark.name] = (benchmark, row(benchmark.name, entry["V"]))
        if "M" in layers:
            entry["M"] = run_processes(benchmark, options)
            for outcome in entry["M"].values():
                outcome["skipped_because"] = outcome["why"] if outcome["verdict"] == "skipped" else ""
            show_processes(benchmark.name, entry["M"])
    if "G" in layers:
        for name, found in run_gpu(wanted, options).items():
            everything[name]["G"] = found
    (out / "results.json").write_text(json.dumps(everything, indent=1), encoding="utf-8")
    if results:
        text = table([entry for _, entry in results.values()])
        (out / "table.md").write_text(text, encoding="utf-8")
        print(f"layer V, the worst of {options.seeds} seeds:\n\n{text}")
    print(f"written to {out}")
    if results:
        draw(out, results, runs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
