"""containerd: the machine's by plain mount arguments, as one before 1.7 needs them, and a later one, which the tests on
Kubernetes build, by a device."""
import json
import os
import pathlib
import shutil
import subprocess
import tarfile
import unittest

import harness
import image
import podman
import pytest
from harness import GIB, MIB

CONFIGURATION = """version = 2
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
address = "{folder}/sock"
[plugins."io.containerd.nri.v1.nri"]
disable = true
"""
LATER = harness.BUILD / "kubernetes" / "bin"


class ContainerdTestCase(harness.MachineTestCase):
    @staticmethod
    def why_not():
        raise NotImplementedError

    @staticmethod
    def program(name):
        return name

    def start_agent(self):
        raise NotImplementedError

    def create(self):
        """A share of 2 GiB, and the arguments by which a container has it."""
        raise NotImplementedError

    def setUp(self):
        if os.geteuid() != 0:
            self.skipTest("NEEDS CONTAINERD: not run by root")
        if reason := self.why_not():
            self.skipTest("NEEDS CONTAINERD: " + reason)
        super().setUp()
        self.start_agent()
        self.folder = self.machine.folder / "containerd"
        self.folder.mkdir()
        (self.folder / "config.toml").write_text(CONFIGURATION.format(folder=self.folder))
        self.root = self.folder / "rootfs"
        image.write(self.folder / "root.tar")
        with tarfile.open(self.folder / "root.tar") as tar:
            tar.extractall(self.root)
        log = open(self.folder / "log", "w")
        self.daemon = self.machine.start([self.program("containerd"), "--config", self.folder / "config.toml"],
                                         {"PATH": f"{LATER}:{os.environ['PATH']}"} if self.IS_LATER else None,
                                         stdout=log, stderr=log)  # fmt: skip
        log.close()
        self.addCleanup(self.end_containers)
        harness.wait_until(
            lambda: self.ctr("version")[0] == 0 or self.daemon.poll() is not None,
            what="an answer of containerd")
        if self.daemon.poll() is not None:
            self.skipTest("NEEDS CONTAINERD: it does not run here: "
                          + (self.folder / "log").read_text()[-500:])
        status, out, err = self.ctr("run", "--rm", "--rootfs", self.root, "probe", "/usr/bin/true")
        if status != 0:
            self.skipTest(f"NEEDS CONTAINERD: it cannot run a container here: {out} {err}")

    def ctr(self, *arguments):
        return self.machine.call(self.command(*arguments))

    def command(self, *arguments):
        return [self.program("ctr"), "--address", self.folder / "sock", *arguments]

    def end_containers(self):
        for name in self.ctr("tasks", "ls", "-q")[1].split():
            self.ctr("tasks", "kill", "-s", "KILL", name)
        mine = str(self.folder) + "/"
        for line in reversed(pathlib.Path("/proc/self/mountinfo").read_text().splitlines()):
            if line.split()[4].startswith(mine):
                subprocess.run(["umount", "-l", line.split()[4]], check=False)

    def check_a_container_has_its_share(self):
        share, arguments = self.create()
        name = f"box-{os.getpid()}"
        box = self.machine.start(self.command(
            "run", "--rm", *arguments, "--rootfs", self.root, name, "/usr/bin/gpuload",
            "--allocate", "128MiB", "--until-refused", "--hold", "600", "--announce"))  # fmt: skip
        held = harness.read_event(box, "allocated")
        self.assertEqual(held["allocated_bytes"], 2 * GIB - 512 * MIB)
        container = harness.wait_until(lambda: self.machine.share(share).get("container"),
                                       what="the container")
        self.assertEqual(container, {"engine": "containerd", "id": name, "name": name})
        # Held like the first one, with nothing in its environment.
        _, out, err = self.ctr("tasks", "exec", "--exec-id", "second", name, "/usr/bin/env", "-i",
                               "/usr/bin/gpuload", "--allocate", "128MiB", "--until-refused")
        second = json.loads(out.splitlines()[-1])
        self.assertIn("CUDA_ERROR_OUT_OF_MEMORY", json.dumps(second) + err)
        self.assertEqual(self.ctr("tasks", "kill", "-s", "KILL", name)[0], 0)
        box.communicate(timeout=harness.DEADLINE_S)
        harness.wait_until(lambda: self.machine.share(share)["used_bytes"] == 0
                           and "container" not in self.machine.share(share),
                           what="the container's end")


class ByMounts(ContainerdTestCase):
    IS_LATER = False

    @staticmethod
    def why_not():
        if all(map(shutil.which, ("containerd", "ctr", "runc"))):
            return ""
        return "it is not installed; `scripts/setup.sh containers` installs it"

    def start_agent(self):
        self.machine.start_agent("--cdi-dir", self.machine.folder / "cdi")

    def create(self):
        status, _, err = self.machine.call([harness.PRORATA, "create", "train", "--memory", "2GiB"])
        self.assertEqual(status, 0, err)
        _, arguments, _ = self.machine.call([harness.PRORATA, "cdi", "--ctr", "train"])
        return "train", arguments.split("\n")[:-1]

    def test_a_container_has_its_share(self):
        self.check_a_container_has_its_share()


@pytest.mark.main_flow
@pytest.mark.alone
class ByDevice(ContainerdTestCase):
    """containerd 1.7 or later."""

    IS_LATER = True

    @staticmethod
    def why_not():
        if not (LATER / "containerd").exists():
            return f"{LATER} is not built; `scripts/kubernetes_build.py build` builds containerd 2 there"
        return "" if shutil.which("runc") else "runc is not installed; `scripts/setup.sh containers` installs it"

    @staticmethod
    def program(name):
        return LATER / name

    def start_agent(self):
        # Where ctr looks for devices cannot be chosen.
        self.machine.start_agent()

    def create(self):
        share = f"t{os.getpid()}-train"
        status, out, err = self.machine.call([harness.PRORATA, "create", share, "--memory", "2GiB"])
        self.assertEqual(status, 0, err)
        self.addCleanup(podman.specification(share).unlink, missing_ok=True)
        return share, ["--device", out.strip()]

    def test_a_container_has_its_share(self):
        self.check_a_container_has_its_share()


if __name__ == "__main__":
    unittest.main()
