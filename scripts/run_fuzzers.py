#!/usr/bin/env python3
"""Runs every libFuzzer program of a build for a while, each from the seeds beside its source: a line of
NAME_fuzz.seeds is an input, as it stands or, after "hex:", in hexadecimal."""
import argparse
import concurrent.futures
import os
import pathlib
import subprocess
import sys
import tempfile

import test_report


ROOT = pathlib.Path(__file__).resolve().parent.parent


def write_seeds(name, corpus):
    for path in (ROOT / "src").glob(f"**/{name}.seeds"):
        for number, line in enumerate(path.read_text().splitlines()):
            seed = bytes.fromhex(line[4:]) if line.startswith("hex:") else line.encode()
            pathlib.Path(corpus, f"seed-{number}").write_bytes(seed)


def fuzz(program, args):
    with tempfile.TemporaryDirectory() as corpus:
        write_seeds(program.name, corpus)
        command = [program, corpus, f"-max_total_time={args.seconds}", "-timeout=60",
                   "-rss_limit_mb=2048", f"-artifact_prefix={args.build}/"]
        return subprocess.run(command, capture_output=True, text=True, errors="replace",
                              check=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True)
    parser.add_argument("--seconds", type=int, default=10, help="for each program")
    args = parser.parse_args()
    programs = sorted(pathlib.Path(args.build, "fuzz").glob("*_fuzz"))
    if not programs:
        print("run_fuzzers: no fuzz program was built", file=sys.stderr)
        return 1
    failed = []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for program, done in zip(programs, pool.map(lambda one: fuzz(one, args), programs)):
            runs = [line for line in done.stderr.splitlines() if line.startswith("Done ")]
            print(f"{program.name}: {runs[-1] if runs else f'exit status {done.returncode}'}")
            if done.returncode:
                failed.append((program.name, done.stderr[-4000:]))
    test_report.finish("fuzz", len(programs) - len(failed), failed, 0)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
