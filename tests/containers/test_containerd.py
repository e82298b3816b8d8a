"""containerd by plain mount arguments, as one before 1.7 needs them."""
import json
import os
import pathlib
import shutil
import subprocess
import tarfile
import unittest

import harness
import image
from harness import GIB, MIB

CONFIGURATION = """version = 2
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
address = "{folder}/sock"
"""


class Containerd(harness.MachineTestCase):
    def setUp(self):
        if os.geteuid() != 0:
            self.skipTest("NEEDS CONTAINERD: not run by root")
        if not all(map(shutil.which, ("containerd", "ctr", "runc"))):
            self.skipTest("NEEDS CONTAINERD: it is not installed; `scripts/setup.sh containers` "
                          "installs it")
        super().setUp()
        self.machine.start_agent("--cdi-dir", self.machine.folder / "cdi")
        self.folder = self.machine.folder / "containerd"
        self.folder.mkdir()
        (self.folder / "config.toml").write_text(CONFIGURATION.format(folder=self.folder))
        self.root = self.folder / "rootfs"
        image.write(self.folder / "root.tar")
        with tarfile.open(self.folder / "root.tar") as tar:
            tar.extractall(self.root)
        log = open(self.folder / "log", "w")
        self.daemon = self.machine.start(["containerd", "--config", self.folder / "config.toml"],
                                         stdout=log, stderr=log)
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
        return ["ctr", "--address", self.folder / "sock", *arguments]

    def end_containers(self):
        for name in self.ctr("tasks", "ls", "-q")[1].split():
            self.ctr("tasks", "kill", "-s", "KILL", name)
        mine = str(self.folder) + "/"
        for line in reversed(pathlib.Path("/proc/self/mountinfo").read_text().splitlines()):
            if line.split()[4].startswith(mine):
                subprocess.run(["umount", "-l", line.split()[4]], check=False)

    def test_a_container_has_its_share(self):
        status, _, err = self.machine.call([harness.PRORATA, "create", "train", "--memory", "2GiB"])
        self.assertEqual(status, 0, err)
        _, arguments, _ = self.machine.call([harness.PRORATA, "cdi", "--ctr", "train"])
        name = f"box-{os.getpid()}"
        box = self.machine.start(self.command(
            "run", "--rm", *arguments.split("\n")[:-1], "--rootfs", self.root, name, "/usr/bin/gpuload",
            "--allocate", "128MiB", "--until-refused", "--hold", "600", "--announce"))
        held = harness.read_event(box, "allocated")
        self.assertEqual(held["allocated_bytes"], 2 * GIB - 512 * MIB)
        container = harness.wait_until(lambda: self.machine.share("train").get("container"),
                                       what="the container")
        self.assertEqual(container, {"engine": "containerd", "id": name, "name": name})
        # Held like the first one, with nothing in its environment.
        _, out, err = self.ctr("tasks", "exec", "--exec-id", "second", name, "/usr/bin/env", "-i",
                               "/usr/bin/gpuload", "--allocate", "128MiB", "--until-refused")
        second = json.loads(out.splitlines()[-1])
        self.assertIn("CUDA_ERROR_OUT_OF_MEMORY", json.dumps(second) + err)
        self.assertEqual(self.ctr("tasks", "kill", "-s", "KILL", name)[0], 0)
        box.communicate(timeout=harness.DEADLINE_S)
        harness.wait_until(lambda: self.machine.share("train")["used_bytes"] == 0
                           and "container" not in self.machine.share("train"),
                           what="the container's end")


if __name__ == "__main__":
    unittest.main()
