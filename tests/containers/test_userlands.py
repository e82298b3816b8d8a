"""A share in images of other distributions: older and newer C libraries, and Red Hat's folders."""
import json
import os
import pathlib
import shutil
import unittest

import harness
import podman
import userlands
from harness import GIB, MIB

SMI = pathlib.Path(os.environ.get("PRORATA_NVIDIA_SMI", harness.BUILD / "nvidia-smi" / "nvidia-smi"))
LOAD = ["gpuload", "--allocate", "128MiB", "--until-refused"]
OURS = "/usr/lib/x86_64-linux-gnu"
COMPAT = "usr/local/cuda/compat"


class Userlands(podman.PodmanTestCase):
    def setUp(self):
        userlands.tree(userlands.OLDEST)
        self.DRIVER = userlands.relinked()  # pylint: disable=invalid-name
        super().setUp()
        self.share = self.create("old", "--memory", "2GiB")

    def make_image(self, name, **options):
        tag = f"localhost/{name}:latest"
        programs = [(SMI.resolve(), "usr/bin/nvidia-smi", 0o755)] if SMI.exists() else []
        self.podman.add_image(tag, lambda tar: userlands.write(tar, name, programs, **options))
        return tag

    def run_in(self, tag, program, options=()):
        status, out, err = self.podman.run(self.named("box"), self.share, program, options, of=tag)
        self.assertEqual(status, 0, f"{program}: {out} {err}")
        return out

    def check_share(self, tag, glibc, place=OURS):
        self.assertIn(f"version {glibc}", self.run_in(tag, [f"{place}/libc.so.6"]))
        report = json.loads(self.run_in(tag, LOAD).splitlines()[-1])
        self.assertEqual(report["allocated_bytes"], 2 * GIB - 512 * MIB)
        self.assertIn("OUT_OF_MEMORY", json.dumps(report))
        if SMI.exists():
            out = self.run_in(tag, ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader"])
            self.assertEqual(out.strip(), "2048 MiB")

    def test_debian_11(self):
        self.check_share(self.make_image("debian11"), "2.31")

    def test_debian_13(self):
        self.check_share(self.make_image("debian13"), "2.41")

    def test_ubuntu_18_04(self):
        self.check_share(self.make_image("ubuntu18.04"), "2.27")

    def test_red_hats_folders(self):
        """A loader that looks into /lib64 and /usr/lib64, and nowhere else."""
        tag = self.make_image("debian11", red_hat=True)
        self.assertEqual(self.run_in(tag, ["sh", "-c", f"ls {OURS} | grep -v -e libcuda -e libnvidia-ml; true"]), "")
        self.check_share(tag, "2.31", "/usr/lib64")
        # Nor is it the cache alone that leads there.
        self.run_in(tag, ["sh", "-c", "rm /etc/ld.so.cache && exec gpuload --allocate 128MiB"])


if __name__ == "__main__":
    unittest.main()
