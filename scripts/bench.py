#!/usr/bin/env python3
"""Runs build/bin/micro: what the client library adds to each driver call, against the bars of the
design. Further arguments go to it (after --). Its table and its exit status are these."""
import argparse
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("arguments", nargs="*", help="for micro, such as -- --json")
    options = parser.parse_args()
    program = options.build / "bin" / "micro"
    if not program.exists():
        print(f"bench: {program} is not built: run `make build` first", file=sys.stderr)
        return 1
    try:
        code = subprocess.run([program, "--dir", options.build, *options.arguments], check=False).returncode
    except KeyboardInterrupt:
        return 130
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
