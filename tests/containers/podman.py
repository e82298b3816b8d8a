"""podman for tests: storage of its own below the machine's folder, an image made here, and all of it
gone afterwards. Where podman or a right is missing, a test that needs it is skipped and says why."""
import json
import os
import pathlib
import shutil
import subprocess
import unittest

import harness
import image

IMAGE = "localhost/prorata-test:latest"
# What a machine has on which the engine may not raise limits, or that has no systemd.
CONFIGURATION = """[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
netns = "none"
"""


class Podman:
    def __init__(self, machine, programs=()):
        self.machine = machine
        self.folder = machine.folder / "podman"
        self.folder.mkdir()
        (self.folder / "containers.conf").write_text(CONFIGURATION)
        self.environment = {"CONTAINERS_CONF": str(self.folder / "containers.conf")}
        self._prefix = ["podman", "--root", str(self.folder / "storage"),
                        "--runroot", str(self.folder / "run"), "--log-level", "error"]
        self.add_image(IMAGE, lambda tar: image.write(tar, programs))

    def add_image(self, name, write):
        """An image of the root file system that write(path) writes as a tar."""
        tar = self.folder / "root.tar"
        write(tar)
        self.call("import", tar, name)
        tar.unlink()

    def command(self, *arguments):
        return [*self._prefix, *map(str, arguments)]

    def try_call(self, *arguments, timeout_s=harness.DEADLINE_S):
        """(exit status, stdout, stderr)."""
        return self.machine.call(self.command(*arguments), timeout_s, self.environment)

    def call(self, *arguments, timeout_s=harness.DEADLINE_S):
        status, out, err = self.try_call(*arguments, timeout_s=timeout_s)
        if status != 0:
            raise AssertionError(f"podman {arguments} ended with {status}: {out} {err}")
        return out

    def start(self, *arguments, **options):
        return self.machine.start(self.command(*arguments), self.environment, **options)

    @staticmethod
    def run_arguments(name, share, *options, of=IMAGE):
        return ["run", "--name", name, "--device", f"prorata.dev/share={share}", *options, of]

    def run(self, name, share, program, options=(), of=IMAGE):
        """A container to its end: (exit status, stdout, stderr)."""
        return self.try_call(*self.run_arguments(name, share, "--rm", *options, of=of), *program)

    def run_json(self, name, share, load_options, options=()):
        """gpuload's report."""
        status, out, err = self.run(name, share, ["gpuload", *load_options], options)
        if status != 0:
            raise AssertionError(f"gpuload in {name} ended with {status}: {out} {err}")
        return json.loads(out.splitlines()[-1])

    def exec_json(self, name, program, options=()):
        out = self.call("exec", *options, name, *program)
        return json.loads(out.splitlines()[-1])

    def pid_of(self, name):
        return int(self.call("inspect", "--format", "{{.State.Pid}}", name))

    def close(self):
        self.try_call("rm", "--all", "--force", "--time", "0")
        # What a test killed on its way may have left mounted.
        mine = str(self.folder) + "/"
        for line in reversed(pathlib.Path("/proc/self/mountinfo").read_text().splitlines()):
            point = line.split()[4]
            if point.startswith(mine):
                subprocess.run(["umount", "-l", point], check=False)


def why_not():
    """What is missing here for containers, or ""."""
    if os.geteuid() != 0:
        return "not run by root, who may make device specifications for podman"
    if shutil.which("podman") is None or shutil.which("runc") is None:
        return "podman is not installed; `scripts/setup.sh containers` installs it"
    return ""


class PodmanTestCase(harness.MachineTestCase):
    """A machine with an agent and podman."""

    PROGRAMS = ()  # more of them in the image, as image.write takes them
    DRIVER = None  # the folder of the simulated driver, if another than the build's

    def setUp(self):
        if reason := why_not():
            raise unittest.SkipTest("NEEDS PODMAN: " + reason)
        super().setUp()
        if self.DRIVER:
            self.machine.environment["PRORATA_DRIVER_DIR"] = str(self.DRIVER)
        # The simulated GPU's state is files, and a GPU is for every user of a container.
        before = os.umask(0)
        try:
            self.machine.start_agent()
        finally:
            os.umask(before)
        self.podman = Podman(self.machine, self.PROGRAMS)
        self.addCleanup(self.podman.close)
        status, out, err = self.podman.try_call("run", "--rm", IMAGE, "true")
        if status != 0:
            self.skipTest(f"NEEDS PODMAN: it cannot run a container here: {out} {err}".strip())
        # Names of devices are the machine's, not a folder's: other tests may run beside this one.
        self.tag = f"t{os.getpid()}"

    def named(self, name):
        return f"{self.tag}-{name}"

    def prorata(self, *arguments):
        return self.machine.call([harness.PRORATA, *arguments])

    def create(self, name, *options):
        """A share; it and its specification are gone when the test is over."""
        share = self.named(name)
        status, out, err = self.prorata("create", share, *options)
        self.assertEqual(status, 0, err)
        self.assertEqual(out, f"prorata.dev/share={share}\n")
        self.addCleanup(specification(share).unlink, missing_ok=True)
        return share

    def restart_agent(self):
        self.machine.kill_agent()
        self.machine.start_agent()


def specification(share):
    return pathlib.Path("/var/run/cdi") / f"prorata.dev-share-{share}.json"
