"""A share as a container has it, without an engine: a mount namespace with what an engine mounts of the share."""

import json
import os
import pathlib

import harness

PLACE = pathlib.Path("/run/prorata")
DRIVER = PLACE / "driver" / "libcuda.so.real"


def why_not():
    return "" if os.geteuid() == 0 else "NEEDS ROOT: for a mount namespace"


def command_in(test, share, leave_out=()):
    """A function from a command to one that runs it there; `test` has the machine, whose agent writes CDI files. The
    places in `leave_out` are not mounted. What is mounted over the images' own libraries is not: LD_LIBRARY_PATH must
    have harness.LIB_DIR."""
    status, out, err = test.machine.call([harness.PRORATA, "cdi", share])
    test.assertEqual(status, 0, err)
    mounts = [(mount["hostPath"], mount["containerPath"])
              for mount in json.loads(out)["devices"][0]["containerEdits"]["mounts"]
              if mount["containerPath"].startswith(f"{PLACE}/")]  # fmt: skip
    if not PLACE.exists():
        PLACE.mkdir()
        test.addCleanup(PLACE.rmdir)
    script = f"set -e; mount -t tmpfs tmpfs {PLACE}\n"
    for source, target in mounts:
        if pathlib.Path(target) in leave_out:
            continue
        make = "mkdir -p" if os.path.isdir(source) else f"mkdir -p $(dirname {target}) && touch"
        script += f"{make} {target}; mount --rbind {source} {target}\n"
    holder = test.machine.start(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script + "echo ready; exec sleep infinity"]
    )
    line = holder.stdout.readline()
    if line != "ready\n":
        test.fail("no mount namespace: " + holder.stderr.read())
    return lambda program: ["nsenter", f"--mount=/proc/{holder.pid}/ns/mnt", "--", *program]
