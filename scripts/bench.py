#!/usr/bin/env python3
"""What the client library costs, against the bars of the design: build/bin/micro (nanoseconds that it
adds to each driver call, over a driver that does almost nothing), then build/bin/memory-throughput (how
much many threads and processes allocate and free through it and straight at the simulated driver).
Further arguments go to all (after --); all know --json. Tables and exit status are theirs. Then
build/bin/placement: how many decisions on where shares go a second. Then the scenarios of bench/scenarios: what programs get of a GPU's time, with prorata and without it."""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent


def throughput(build, arguments):
    """On a machine, and under an agent, of its own; the agent ends with the share."""
    with tempfile.TemporaryDirectory(prefix="prorata-bench-") as folder:
        environment = {**os.environ, "PRORATA_DRIVER_DIR": str(build / "sim"),
                       "PRORATA_DIR": f"{folder}/run", "PRORATA_SIM_STATE": f"{folder}/sim"}
        for name in ("run", "sim"):
            pathlib.Path(folder, name).mkdir()
        return subprocess.run(
            [build / "bin" / "prorata", "run", "--memory", "4GiB", "--",
             build / "bin" / "memory-throughput", "--bare", build / "sim" / "libcuda.so.1", *arguments],
            env=environment, check=False).returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--only", choices=("micro", "memory-throughput", "placement", "scenarios"), help="one of them")
    parser.add_argument("arguments", nargs="*", help="for the programs, such as -- --json")
    options = parser.parse_args()
    build = options.build.resolve()
    runs = {"micro": lambda: subprocess.run([build / "bin" / "micro", "--dir", build, *options.arguments],
                                            check=False).returncode,
            "memory-throughput": lambda: throughput(build, options.arguments)}
    runs["placement"] = lambda: subprocess.run([build / "bin" / "placement", *options.arguments],
                                               check=False).returncode
    runs["scenarios"] = lambda: subprocess.run(
        [sys.executable, ROOT / "bench" / "scenarios" / "run.py", "--build", build, "--layers", "V,M,G"],
        check=False).returncode
    needed = {"scenarios": "simulation"}
    worst = 0
    for name, run in runs.items():
        if options.only not in (None, name):
            continue
        program = build / "bin" / needed.get(name, name)
        if not program.exists():
            print(f"bench: {program} is not built: run `make everything` first", file=sys.stderr)
            return 1
        try:
            code = run()
        except KeyboardInterrupt:
            return 130
        worst = max(worst, code if code >= 0 else 128 - code)
    return worst


if __name__ == "__main__":
    sys.exit(main())
