"""A share in images of other distributions: older and newer C libraries, and Red Hat's folders."""
import json
import os
import pathlib
import shutil
import unittest

import pytest

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

    @pytest.mark.long
    def test_red_hats_folders(self):
        """A loader that looks into /lib64 and /usr/lib64, and nowhere else."""
        tag = self.make_image("debian11", red_hat=True)
        self.assertEqual(self.run_in(tag, ["sh", "-c", f"ls {OURS} | grep -v -e libcuda -e libnvidia-ml; true"]), "")
        self.check_share(tag, "2.31", "/usr/lib64")
        # Nor is it the cache alone that leads there.
        self.run_in(tag, ["sh", "-c", "rm /etc/ld.so.cache && exec gpuload --allocate 128MiB"])

    def listed(self, tag, options=()):
        """What `ldconfig -p` says of libcuda and NVML, in its order."""
        lines = [line.split() for line in self.run_in(tag, ["ldconfig", "-p"], options).splitlines()]
        return [(line[0], line[-1]) for line in lines if line and line[0].startswith(("libcuda.", "libnvidia-ml."))]

    def test_ldconfig_lists_the_libraries(self):
        expected = [(name, f"{OURS}/{name}") for name in ("libnvidia-ml.so.1", "libnvidia-ml.so", "libcuda.so.1",
                                                           "libcuda.so")]
        for name in ("debian11", "debian13"):
            tag = self.make_image(name)
            for options in ([], ["--read-only"], ["--user", "1000"],
                            ["--uidmap", "0:100000:65536", "--gidmap", "0:100000:65536"]):
                with self.subTest(image=name, options=options):
                    self.assertEqual(self.listed(tag, options), expected)
            # The rest is as the image's own ldconfig made it, and its own makes the same of what is there.
            self.assertIn("libc.so.6", self.run_in(tag, ["ldconfig", "-p"]))
            own = self.run_in(tag, ["sh", "-c", "ldconfig && ldconfig -p && ls -l /etc/ld.so.cache"])
            self.assertIn(f"libcuda.so.1 (libc6,x86-64) => {OURS}/libcuda.so.1", own)

    def test_an_images_own_driver_in_the_cache_is_no_way_out(self):
        """CUDA's compatibility libraries, which the image's ld.so.cache names first."""
        def compat(root):
            (root / COMPAT).mkdir(parents=True)
            shutil.copy(self.DRIVER / "libcuda.so.1", root / COMPAT)
            conf = root / "etc/ld.so.conf"
            conf.write_text(f"/{COMPAT}\n{conf.read_text()}")

        tag = self.make_image("debian11", more=compat)
        self.assertEqual([path for name, path in self.listed(tag) if name == "libcuda.so.1"],
                         [f"{OURS}/libcuda.so.1", f"/{COMPAT}/libcuda.so.1"])
        report = json.loads(self.run_in(tag, LOAD).splitlines()[-1])
        self.assertEqual(report["allocated_bytes"], 2 * GIB - 512 * MIB)

    def test_images_whose_cache_is_none(self):
        """A container starts all the same, and the file is as it was."""
        def link(root):
            (root / "etc/ld.so.cache").symlink_to("/proc/1/root/etc/ld.so.cache")

        def text(root):
            (root / "etc/ld.so.cache").write_text("not glibc's\n")

        def folder(root):
            (root / "etc/ld.so.cache").mkdir()

        for what, check in ((link, "! test -f /etc/ld.so.cache"), (text, "grep -q not /etc/ld.so.cache"),
                            (folder, "test -d /etc/ld.so.cache"), (None, "! test -e /etc/ld.so.cache")):
            tag = self.make_image("debian11", more=what, ldconfig=False)
            with self.subTest(cache=what):
                self.run_in(tag, ["sh", "-c", f"set -e; {check}; exec gpuload --allocate 128MiB"])


if __name__ == "__main__":
    unittest.main()
