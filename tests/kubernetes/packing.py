"""What the GPUs of one node would have by `prorata simulate`, to compare a cluster's with."""

import csv
import io
import pathlib
import subprocess
import tempfile

import harness

MIB_OF_HOST = 1 << 20


def simulated(shares, gpus, gpu_gib, policy):
    """[(hundredths of its time, MiB)] of each GPU, sorted. `shares`: (hundredths, MiB), in the order of arrival."""
    nodes = f"sn,cpu_milli,memory_mib,gpu,model,gpu_memory_mib\nn,1000,{MIB_OF_HOST},{gpus},G,{gpu_gib << 10}\n"
    pods = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_memory_mib\n"
    pods += "".join(f"s{number},0,0,1,{10 * compute},{mib}\n" for number, (compute, mib) in enumerate(shares))
    with tempfile.TemporaryDirectory(prefix="prorata-packing-") as name:
        folder = pathlib.Path(name)
        (folder / "nodes.csv").write_text(nodes)
        (folder / "pods.csv").write_text(pods)
        subprocess.run(
            [harness.PRORATA, "simulate", "--nodes", folder / "nodes.csv", "--pods", folder / "pods.csv",
             "--policy", policy, "--arrivals", "trace", "--packing", folder / "packing.csv", "--no-plan"],
            check=True, capture_output=True, timeout=harness.DEADLINE_S,
        )  # fmt: skip
        rows = csv.DictReader(io.StringIO((folder / "packing.csv").read_text()))
        return sorted((int(row["gpu_milli"]) // 10, int(row["gpu_memory_mib"])) for row in rows)


def of_shares(machine):
    """The same of what the machine's agent has."""
    held = {gpu["uuid"]: (0, 0) for gpu in machine.gpus()}
    for share in machine.ps():
        for on in share["devices"]:
            compute, mib = held[on["uuid"]]
            held[on["uuid"]] = (compute + round(100 * on["compute_request"]), mib + (on["memory_limit_bytes"] >> 20))
    return sorted(held.values())


def check(test, shares, gpus, gpu_gib, policy):
    """That each GPU has what `prorata simulate` gives it; `shares`: in the order in which they were placed."""
    packed, expected = of_shares(test.machine), simulated(shares, gpus, gpu_gib, policy)
    print(f"{len(shares)} shares; (hundredths, MiB) of each GPU: {packed}, simulated: {expected}")
    test.assertEqual(packed, expected)
