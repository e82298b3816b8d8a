"""Programs of NVIDIA's in a container on its share: the CUDA runtime, and nvidia-smi."""
import json
import os
import pathlib
import shutil
import subprocess
import unittest

import harness
import podman
import pytest
import quiet
from harness import GIB, MIB

RUNTIME = next(iter(sorted((harness.BUILD / "venv-cuda13").glob("**/libcudart_static.a"))), None)
SMI = pathlib.Path(os.environ.get("PRORATA_NVIDIA_SMI", harness.BUILD / "nvidia-smi" / "nvidia-smi"))
FILL = harness.ROOT / "tests" / "cudart" / "fill.cc"
STEP = 128 * MIB  # of fill.cc
SECONDS = 8


class Programs(podman.PodmanTestCase):
    def setUp(self):
        if RUNTIME is None:
            self.skipTest(f"no CUDA runtime in {harness.BUILD}: scripts/setup.sh cuda-venv BUILD")
        fill = harness.BUILD / "tests" / "fill_in_container"
        fill.parent.mkdir(exist_ok=True)
        subprocess.run([shutil.which("c++"), "-O1", "-o", fill, FILL, RUNTIME.resolve(), "-ldl",
                        "-lpthread", "-lrt"], check=True)
        self.PROGRAMS = [(fill, "usr/bin/fill", 0o755)]  # pylint: disable=invalid-name
        if SMI.exists():
            self.PROGRAMS.append((SMI.resolve(), "usr/bin/nvidia-smi", 0o755))
        super().setUp()

    def start(self, name, share, *program):
        return self.podman.start(*self.podman.run_arguments(self.named(name), share, "--rm"),
                                 *program)

    def test_two_containers_together(self):
        """A cudart program and gpuload, each with its own share's memory, to the byte."""
        fill_share = self.create("fill", "--memory", "3GiB", "--compute", "0.3")
        load_share = self.create("load", "--memory", "2GiB", "--compute", "0.5")
        load = self.start("load", load_share, "gpuload", "--allocate", "128MiB", "--until-refused",
                          "--hold", "600", "--announce")
        fill = self.start("fill", fill_share, "fill", "600")
        report = json.loads(harness.read_line(fill))
        self.assertGreater(report["allocated_bytes"], report["free"] - STEP)
        self.assertLessEqual(report["allocated_bytes"], 3 * GIB)
        self.assertEqual(harness.read_event(load, "allocated")["allocated_bytes"],
                         2 * GIB - 512 * MIB)
        self.assertEqual(self.machine.share(load_share)["used_bytes"], 2 * GIB)
        self.assertLessEqual(self.machine.share(fill_share)["used_bytes"], 3 * GIB)

    @pytest.mark.pairs
    def test_each_gets_its_part_of_the_time(self):
        """Two that both want all get what they are entitled to: 0.6 + half of the 0.1 that is left, by
        equal weights, and 0.3 + 0.05."""
        shares = {name: self.create(name, "--memory", "2GiB", "--compute", compute)
                  for name, compute in (("a", "0.6"), ("b", "0.3"))}
        running = [self.start(name, share, "gpuload", "--seconds", "600", "--kernel-us", "1000",
                              "--announce") for name, share in shares.items()]
        for process in running:
            harness.read_event(process, "kernels")
        pids = {name: str(self.podman.pid_of(self.named(name))) for name in shares}
        with quiet.Watch() as watch:
            entitled = {name: self.machine.share(share)["entitled"] for name, share in shares.items()}
            before = self.machine.usage()  # the device's own account, not what prorata says of itself

            def used_since():
                now = self.machine.usage()["processes"]
                return {name: now[pid] - before["processes"][pid] for name, pid in pids.items()}
            harness.wait_until(lambda: sum(used_since().values()) > SECONDS * 10**9, what="GPU time", step_s=0.1)
            ran = used_since()
        for name, part in ((name, ns / sum(ran.values())) for name, ns in ran.items()):
            due = entitled[name] / sum(entitled.values())
            watch.judge(self, abs(part - due) < 0.03, f"{name} got {part:.3f} of {due:.3f}")

    @unittest.skipUnless(SMI.exists(), f"no nvidia-smi in {SMI.parent}: scripts/setup.sh nvidia-smi")
    def test_nvidia_smi_shows_the_share(self):
        share = self.create("smi", "--memory", "3GiB")
        out = self.podman.run(self.named("smi"), share,
                              ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader"])
        self.assertEqual(out[0], 0, out)
        self.assertEqual(out[1].strip(), "3072 MiB")


if __name__ == "__main__":
    unittest.main()
