#!/usr/bin/env python3
"""Two PyTorch programs that train and one that answers requests on one GPU: each alone, all together on shares,
and all together without prorata.

    bench/scenarios/torch_run.py --build build                             # on a GPU, with PyTorch installed
    bench/scenarios/torch_run.py --build build --simulated --small --seconds 3 --python build/compatibility/cuda13/bin/python

NEVER RUN ON A GPU so far. --simulated tries the programs on the simulated GPU, where kernels compute nothing and
take what a cost model says: its figures mean nothing. Ends with 0, 1 if a program failed, 77 without a GPU or
PyTorch.
"""
import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "tests")]
SKIPPED = 77
PROGRAMS = {  # name: (share, program)
    "resnet": (["--compute", "0.4", "--memory", "12GiB"], ["train", "--model", "resnet"]),
    "transformer": (["--compute", "0.4", "--memory", "12GiB"], ["train", "--model", "transformer", "--batch", "8"]),
    "server": (["--compute", "0.2", "--memory", "4GiB"], ["serve", "--model", "resnet", "--every-ms", "40"]),
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    parser.add_argument("--python", default=sys.executable, help="one that has torch")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--small", action="store_true")
    return parser.parse_args()


def missing(options):
    done = subprocess.run([options.python, "-c", "import torch"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return f"{options.python} has no PyTorch that can be loaded: {done.stderr.strip().splitlines()[-1]}"
    if options.simulated:
        return ""
    import gpu  # pylint: disable=import-outside-toplevel
    return gpu.missing()


def run(names, prorata, options, harness):
    """{program: what it printed last}, of programs that begin together on a machine of their own."""
    # The simulated GPU has 16 GiB by default, and the shares' own limits add up to more.
    machine = harness.Machine('devices = [{ memory = "80GiB" }]\n' if options.simulated else None)
    begin = machine.folder / "begin"
    try:
        processes = {}
        for name in names:
            share, program = PROGRAMS[name]
            command = [options.python, HERE / "torch_programs.py", *program, "--seconds", options.seconds,
                       "--wait-for", begin, *(["--small"] if options.small else [])]
            if prorata:
                processes[name] = machine.start(machine.command(["--name", name, *share], command))
            else:
                processes[name] = machine.start(command, machine.bare_environment())
        for process in processes.values():
            json.loads(harness.read_line(process))
        begin.touch()
        found = {}
        for name, process in processes.items():
            out, err = process.communicate(timeout=options.seconds + harness.DEADLINE_S)
            if process.returncode != 0:
                raise RuntimeError(f"{name} ended with {process.returncode}: {err.strip()[-2000:]}")
            found[name] = json.loads(out.splitlines()[-1])
        return found
    finally:
        machine.close()


def main():
    options = arguments()
    reason = missing(options)
    if reason:
        print(f"layer G, PyTorch: not run: {reason}")
        return SKIPPED
    os.environ["PRORATA_BUILD_DIR"] = str(options.build.resolve())
    os.environ["PRORATA_TEST_GPU"] = "" if options.simulated else "real"
    import harness  # pylint: disable=import-outside-toplevel
    # So that what was started ends with this.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        result = {"alone": {}, "together": run(PROGRAMS, True, options, harness),
                  "together, without prorata": run(PROGRAMS, False, options, harness)}
        for name in PROGRAMS:
            result["alone"] |= run([name], False, options, harness)
    except (RuntimeError, AssertionError) as error:
        print(f"torch_run: {error}", file=sys.stderr)
        return 1
    print(json.dumps({"simulated": options.simulated, **result}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
