"""Docker by a device, which it takes from 25 on: one that the machine has, or one that is built for tests."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import unittest

import harness
import image
import pytest
from harness import GIB, MIB

pytestmark = pytest.mark.alone
BUILT = harness.BUILD / "kubernetes" / "docker"
LEAST = 25
IMAGE = "prorata-test:1"


def program(name):
    return shutil.which(name, path=f"{BUILT}:{os.environ['PATH']}")


def why_not():
    if os.geteuid() != 0:
        return "not run by root"
    found = [program(name) for name in ("dockerd", "docker", "containerd", "runc")]
    if not all(found):
        return "dockerd, docker, containerd or runc is missing; `scripts/kubernetes_build.py build docker` builds Docker"
    for one in found[:2]:
        said = subprocess.run([one, "--version"], capture_output=True, text=True, check=False).stdout
        version = re.search(r"version (\d+)\.", said)
        if not version or int(version[1]) < LEAST:
            return f"{one} is {said.strip()}, and devices need {LEAST}; `scripts/kubernetes_build.py build docker` builds it"
    return ""


class Docker(harness.MachineTestCase):
    def setUp(self):
        if reason := why_not():
            self.skipTest("NEEDS DOCKER: " + reason)
        super().setUp()
        self.machine.start_agent("--cdi-dir", self.machine.folder / "cdi")
        self.folder = self.machine.folder / "docker"
        self.folder.mkdir()
        (self.folder / "daemon.json").write_text(json.dumps({
            "data-root": str(self.folder / "data"), "exec-root": str(self.folder / "exec"),
            "pidfile": str(self.folder / "pid"), "hosts": [f"unix://{self.folder}/sock"],
            "cdi-spec-dirs": [str(self.machine.folder / "cdi")], "features": {"cdi": True},
            "bridge": "none", "iptables": False, "ip6tables": False, "exec-opts": ["native.cgroupdriver=cgroupfs"],
        }))  # fmt: skip
        with open(self.folder / "log", "w") as log:
            self.daemon = self.machine.start(
                [program("dockerd"), "--config-file", self.folder / "daemon.json"],
                {"PATH": f"{BUILT}:{os.environ['PATH']}"}, stdout=log, stderr=log)  # fmt: skip
        self.addCleanup(self.end)
        harness.wait_until(lambda: self.docker("version")[0] == 0 or self.daemon.poll() is not None,
                           what="an answer of dockerd")  # fmt: skip
        if self.daemon.poll() is not None:
            self.skipTest("NEEDS DOCKER: it does not run here: " + (self.folder / "log").read_text()[-500:])
        image.write(self.folder / "root.tar")
        status, _, err = self.docker("import", self.folder / "root.tar", IMAGE)
        self.assertEqual(status, 0, err)
        status, out, err = self.docker("run", "--rm", "--network", "none", IMAGE, "true")
        if status != 0:
            self.skipTest(f"NEEDS DOCKER: it cannot run a container here: {out} {err}")

    def end(self):
        for container in self.docker("ps", "--quiet", "--all")[1].split():
            self.docker("rm", "--force", container)
        self.daemon.terminate()
        self.daemon.wait(harness.DEADLINE_S)
        mine = f"{self.folder}/"
        for line in reversed(pathlib.Path("/proc/self/mountinfo").read_text().splitlines()):
            if line.split()[4].startswith(mine):
                subprocess.run(["umount", "-l", line.split()[4]], check=False)

    def command(self, *arguments):
        return [program("docker"), "--host", f"unix://{self.folder}/sock", *map(str, arguments)]

    def docker(self, *arguments):
        return self.machine.call(self.command(*arguments))

    def create(self, name, *options):
        status, out, err = self.machine.call([harness.PRORATA, "create", name, *options])
        self.assertEqual(status, 0, err)
        return out.strip()

    def hold(self, name, *share):
        """A container that takes what it gets of memory; what that was."""
        box = self.machine.start(self.command(
            "run", "--rm", "--network", "none", "--name", name, *share, IMAGE,
            "gpuload", "--allocate", "128MiB", "--until-refused", "--hold", "600", "--announce"))  # fmt: skip
        return box, harness.read_event(box, "allocated")["allocated_bytes"]

    def test_two_containers_have_their_shares(self):
        boxes = {}
        for name, gib in (("box-a", 2), ("box-b", 3)):
            boxes[name], held = self.hold(name, "--device", self.create(name, "--memory", f"{gib}GiB"))
            self.assertEqual(held, gib * GIB - 512 * MIB)
            container = harness.wait_until(lambda name=name: self.machine.share(name).get("container"),
                                           what="the container")  # fmt: skip
            identifier = self.docker("inspect", "--format", "{{.Id}}", name)[1].strip()
            self.assertEqual((container["engine"], container["id"]), ("docker", identifier))
        # Held like the first process, with nothing in its environment.
        _, out, err = self.docker("exec", "box-a", "env", "-i", "/usr/bin/gpuload", "--allocate", "128MiB",
                                  "--until-refused")  # fmt: skip
        self.assertIn("CUDA_ERROR_OUT_OF_MEMORY", out + err)
        for name, box in boxes.items():
            self.assertEqual(self.docker("kill", name)[0], 0)
            box.communicate(timeout=harness.DEADLINE_S)
            harness.wait_until(lambda name=name: self.machine.share(name)["used_bytes"] == 0
                               and "container" not in self.machine.share(name), what="the container's end")  # fmt: skip

    def test_by_mounts_as_before_25(self):
        self.create("box", "--memory", "2GiB")
        status, out, err = self.machine.call([harness.PRORATA, "cdi", "--volumes", "box"])
        self.assertEqual(status, 0, err)
        box, held = self.hold("box", *out.split())
        self.assertEqual(held, 2 * GIB - 512 * MIB)
        self.assertEqual(self.docker("kill", "box")[0], 0)
        box.communicate(timeout=harness.DEADLINE_S)

    def test_a_device_that_is_no_share_starts_nothing(self):
        status, _, err = self.docker("run", "--rm", "--network", "none", "--device", "prorata.dev/share=none", IMAGE, "true")
        self.assertNotEqual(status, 0)
        self.assertIn("prorata.dev/share=none", err)


if __name__ == "__main__":
    unittest.main()
