#!/usr/bin/env python3
"""The deadlock of two programs that each hold a part of a GPU's memory and each wait for more:
without prorata, with `--on-full fail`, and with `--on-full wait`. On a simulated GPU of 5 GiB.

    examples/deadlock/run.py [--build build]
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading

HERE = pathlib.Path(__file__).resolve().parent
MIB, GIB = 1 << 20, 1 << 30
FIRST, SECOND = 2 * GIB, 2 * GIB - 256 * MIB  # of a limit of 4 GiB, with room for a context
TRIES = 20
MACHINE = '[[devices]]\nmemory = "5GiB"\ncontext_memory = "16MiB"\n'


def follow(program, held):
    """Prints what a program says; sets `held` when it has its first step, or ended without it."""
    for line in program.stdout:
        print("  " + line.rstrip(), flush=True)
        held.set()
    held.set()


def waits(prorata, name, environment):
    """Whether a share waits for memory, as `prorata ps` has it."""
    listed = subprocess.run([prorata, "ps", "--json"], env=environment, capture_output=True,
                            check=True).stdout
    return any(share["name"] == name and share["devices"][0]["memory_waits"] > 0
               for share in json.loads(listed))


def scene(title, commands, environment, is_waiting=lambda: False):
    """Runs two programs: both are to hold their first step before either asks for its second. A
    second one that waits for its first step already lets the first go on alone."""
    print(title, flush=True)
    programs, threads, holding = [], [], []
    for command in commands:
        program = subprocess.Popen(command, env=environment, text=True, stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE)
        programs.append(program)
        holding.append(threading.Event())
        threads.append(threading.Thread(target=follow, args=(program, holding[-1])))
        threads[-1].start()
        while not holding[-1].wait(0.1) and not is_waiting():
            pass
    for program in programs:
        program.stdin.close()
    for thread in threads:
        thread.join()
    ended = [program.wait() for program in programs]
    print(f"  -> {ended.count(0)} of 2 finished\n", flush=True)
    return ended.count(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=HERE.parents[1] / "build")
    build = parser.parse_args().build.resolve()
    prorata, sim = build / "bin" / "prorata", build / "sim"
    if not prorata.exists():
        sys.exit(f"{prorata} is not built: `make` first, or say --build FOLDER")
    with tempfile.TemporaryDirectory(prefix="prorata-deadlock-") as folder:
        (pathlib.Path(folder) / "machine.toml").write_text(MACHINE)
        for name in ("run", "sim"):
            (pathlib.Path(folder) / name).mkdir()
        environment = {**os.environ, "PRORATA_DIR": f"{folder}/run",
                       "PRORATA_DRIVER_DIR": str(sim), "PRORATA_SIM_STATE": f"{folder}/sim",
                       "PRORATA_SIM_MACHINE": f"{folder}/machine.toml"}

        def program(name, tries=TRIES):
            return [sys.executable, HERE / "two_steps.py", name, str(FIRST), str(SECOND), str(tries)]

        def share(how, name, tries=TRIES):
            return [prorata, "run", "--memory", "4GiB", "--on-full", how, "--name", name, "--",
                    *program(name, tries)]
        agent = subprocess.Popen([prorata, "agent", "--overcommit", "2", "--log-level", "warn",
                                  "--ready-fd", "1"], env=environment, text=True,
                                 stdout=subprocess.PIPE)
        try:
            if agent.stdout.readline() != "ready\n":
                sys.exit("the agent did not start")
            scene("without prorata:", [program("a"), program("b")],
                  {**environment, "LD_LIBRARY_PATH": str(sim)})
            scene("--on-full fail, and b takes no for an answer:",
                  [share("fail", "a", 100 * TRIES), share("fail", "b", 1)], environment)
            done = scene("--on-full wait:", [share("wait", "a"), share("wait", "b")], environment,
                         lambda: waits(prorata, "b", environment))
        finally:
            agent.terminate()
            agent.wait()
        sys.exit(0 if done == 2 else 1)


if __name__ == "__main__":
    main()
