#!/usr/bin/env python3
"""Runs the same programs under each policy on the virtual clock (layer V), and writes the tables of
docs/reports/device-time.md between its marks, and the picture beside it.

    bench/scenarios/compare.py --build build --write docs/reports/device-time.md
"""
import argparse
import pathlib
import re
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import families  # pylint: disable=wrong-import-position
import run       # pylint: disable=wrong-import-position
import virtual   # pylint: disable=wrong-import-position

POLICIES = (("default", "prorata"), ("gemini", "Gemini's"), ("gemini-least", "Gemini's, least quotas"),
            ("round-robin", "round robin"), ("none", "no prorata"))
WARMUP_MS, DURATION_MS = 5000, 35000
BUSY, LONG = {"kernel_us": 1000}, {"kernel_us": 200000, "per_sync": 1}
CRITICAL = {"name": "critical", "compute": "0.2", "kernel_us": 1000, "per_sync": 1, "every_us": 20000}
BEST_EFFORT = [{"name": f"best-effort-{i}", "kernel_us": 2000} for i in range(2)]

# (title, programs, what each is entitled to)
TRACES = (
    ("three busy shares of 0.5, 0.3 and 0.2; kernels of 1 ms",
     [{"name": n, "compute": c, **BUSY} for n, c in (("a", "0.5"), ("b", "0.3"), ("c", "0.2"))],
     {"a": 0.5, "b": 0.3, "c": 0.2}),
    ("two busy shares of 0.9 and 0.1; kernels of 0.2 to 5 ms",
     [{"name": n, "compute": c, "kernel_us": [200, 5000]} for n, c in (("a", "0.9"), ("b", "0.1"))],
     {"a": 0.9, "b": 0.1}),
    ("a share of 0.4 with a limit of 0.4, and two elastic ones; kernels of 1 ms",
     [{"name": "limited", "compute": "0.4", "compute_limit": "0.4", **BUSY}, {"name": "b", **BUSY},
      {"name": "c", **BUSY}], {"limited": 0.4, "b": 0.3, "c": 0.3}),
    ("two equal shares, one with kernels of 200 ms",
     [{"name": "a", "compute": "0.5", **BUSY}, {"name": "long", "compute": "0.5", **LONG}],
     {"a": 0.5, "long": 0.5}),
    ("a pair with gaps: 6 ms of work, 4 ms asleep",
     [{"name": n, "kernel_us": 500, "per_sync": 12, "gap_us": 4000} for n in "ab"], {"a": 0.5, "b": 0.5}),
    ("two that train in steps of 100 ms, 3 ms apart; two with requests of 4 ms, Poisson, every 40 ms",
     [{"name": f"training-{i}", "compute": "0.3", "kernel_us": [200, 3000], "per_sync": 64,
      "gap_us": 3000} for i in range(2)]
     + [{"name": f"inference-{i}", "compute": "0.2", "kernel_us": 500, "per_sync": 8, "every_us": 40000,
         "poisson": True} for i in range(2)], {}),
    ("1 ms of work every 20 ms, and two best-effort programs with kernels of 2 ms",
     [CRITICAL, *BEST_EFFORT], {}),
    ("the same, with a priority", [{**CRITICAL, "priority": 10}, *BEST_EFFORT], {}),
)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    parser.add_argument("--seeds", type=int, default=3, help="from 1 (3)")
    parser.add_argument("--write", type=pathlib.Path, help="the document; else the tables are printed")
    return parser.parse_args()


def cells(reports, expected):
    def worst(value):
        return max(map(value, reports))
    points = ("", "") if not expected else tuple(
        f"{worst(lambda r, ms=ms: virtual.share_error(r, expected, ms, WARMUP_MS)):.1f}"
        for ms in (5000, DURATION_MS - WARMUP_MS))
    p99 = virtual.worst(reports, virtual.p99_ms)
    return [*points, f"{100 * min(r['device_use'] for r in reports):.1f}",
            f"{worst(lambda r: r['gaps']['p99_ms']):.2f}", f"{worst(lambda r: r['gaps']['most_ms']):.2f}",
            f"{100 * worst(lambda r: r['waiting_idle']):.1f}", "" if p99 is None else f"{p99:.1f}"]


def tables(simulation, seeds):
    out = []
    with tempfile.TemporaryDirectory() as folder:
        for number, (title, programs, expected) in enumerate(TRACES):
            path = pathlib.Path(folder, f"trace-{number}.toml")
            path.write_text(families.text_of(title, DURATION_MS, WARMUP_MS, programs), encoding="utf-8")
            out += [f"**{title[0].upper() + title[1:]}**", "",
                    "| policy | share error, 5 s | share error, 30 s | device use, % | gap p99, ms | longest gap, ms"
                    " | idle while waited, % | latency p99, ms |", "|---|" + "---:|" * 7]
            for policy, name in POLICIES:
                reports = virtual.run(simulation, path, policy, seeds)
                out.append(f"| {name} | " + " | ".join(cells(reports, expected)) + " |")
            out.append("")
    return "\n".join(out).rstrip() + "\n"


def draw_elastic(path, simulation):
    benchmark = next(families.elastic())
    with tempfile.TemporaryDirectory() as folder:
        scenario = pathlib.Path(folder, "elastic.toml")
        scenario.write_text(benchmark.text, encoding="utf-8")
        run.draw_elastic(path, {policy: virtual.run(simulation, scenario, policy)
                                for policy in ("default", "none")})


def main():
    options = arguments()
    simulation = options.build / "bin" / "simulation"
    made = tables(simulation, options.seeds)
    made = f"Seeds 1 to {options.seeds}; of each figure the worst of them.\n\n{made}"
    if options.write is None:
        print(made)
        return 0
    text = options.write.read_text(encoding="utf-8")
    new, count = re.subn(r"(<!-- made by [^>]*-->\n).*?(<!-- end -->)",
                         lambda match: match.group(1) + "\n" + made + "\n" + match.group(2), text, flags=re.S)
    if count != 1:
        print(f"compare: {options.write} has {count} places for the tables, not one", file=sys.stderr)
        return 1
    options.write.write_text(new, encoding="utf-8")
    draw_elastic(options.write.with_name("elastic.svg"), simulation)
    return 0


if __name__ == "__main__":
    sys.exit(main())
