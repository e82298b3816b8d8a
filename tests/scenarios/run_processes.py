#!/usr/bin/env python3
"""Runs scenario files in many real processes on the simulated GPU, and on the virtual clock; prints
what each program got.

    tests/scenarios/run_processes.py --build build tests/scenarios/two_busy.toml
    tests/scenarios/run_processes.py --build build --seconds 2 --json tests/scenarios/*.toml

Ends with 0 if all agree with their files and the virtual clock, 1 if one differs, 77 if none differs and some were
skipped: this machine was too noisy, before or while they ran.
"""
import argparse
import json
import os
import pathlib
import sys

SKIPPED = 77


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    parser.add_argument("--build", default="build", help="the build folder")
    parser.add_argument("--seconds", type=float, help="simulated; shortens longer scenarios")
    parser.add_argument("--dilation", type=int, help="no probe before: slow down so many times")
    parser.add_argument("--tries", type=int, default=1, help="when skipped, try again")
    parser.add_argument("--json", action="store_true", help="one line of JSON for each")
    return parser.parse_args()


def show(outcome):
    verdict = outcome.json()
    print(f"{outcome.scenario.name}: {verdict['verdict']}"
          + (f" (time slowed down {outcome.dilation} times, {outcome.wall_s:.0f} s)"
             if outcome.dilation else ""))
    if verdict["why"]:
        print(f"    {verdict['why']}")
    for program, part in outcome.gpu_time.items():
        virtual = f", on the virtual clock {100 * outcome.virtual[program]:.1f} %" \
            if outcome.virtual else ""
        print(f"    {program:12} {100 * part:5.1f} % of the device time{virtual}")
    for program, latency in outcome.latency.items():
        print(f"    {program:12} {latency['count']} requests, p50 {latency['p50_ms']:.2f} ms, "
              f"p99 {latency['p99_ms']:.2f} ms" if latency else f"    {program:12} no requests")
    if outcome.gpu_time:
        print(f"    the device was used {100 * outcome.device_use:.1f} % of the time")
    for when, noise in outcome.noise.items():
        extra = (f"; CPUs: {100 * noise['own']:.0f} % ours, {100 * noise['others']:.0f} % others'"
                 if "own" in noise else "")
        print(f"    {when}: {noise['text']}{extra}")


def main():
    options = arguments()
    os.environ["PRORATA_BUILD_DIR"] = str(pathlib.Path(options.build).resolve())
    import processes  # pylint: disable=import-outside-toplevel
    import scenario   # pylint: disable=import-outside-toplevel
    status = 0
    for path in options.files:
        text = path.read_text(encoding="utf-8")
        if options.seconds:
            text = scenario.shortened(text, 1000 * options.seconds)
        for _ in range(options.tries):
            outcome = processes.run(scenario.parse(text, str(path)), options.dilation)
            if not outcome.skipped:
                break
        if outcome.gpu_time:
            processes.compare(outcome, processes.virtual_time(text))
        if options.json:
            print(json.dumps({"file": str(path), **outcome.json()}), flush=True)
        else:
            show(outcome)
        if outcome.skipped:
            status = status or SKIPPED
        elif outcome.differs:
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
