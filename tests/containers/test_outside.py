"""Programs of a share's container that use its GPU past the share are reported."""
import json
import os
import shutil
import unittest

import pytest

import harness
import podman
from harness import MIB

HOLD = ["--allocate", "128MiB", "--hold", "600", "--announce"]
REAL = "/run/prorata/driver/libcuda.so.real"
COMPAT = "/usr/local/cuda/compat/libcuda.so.1"
CONTEXT = 512 * MIB  # of the simulated GPU


class Outside(podman.PodmanTestCase):
    def setUp(self):
        super().setUp()
        self.share = self.create("out", "--memory", "2GiB")

    def start_box(self, name, *options):
        name = self.named(name)
        self.podman.call(*self.podman.run_arguments(name, self.share, "--detach", *options), "sleep", "600")
        return name

    def start_in(self, name, program, options=()):
        """A program in a container, once it holds its memory."""
        process = self.podman.start("exec", *options, name, *program)
        harness.read_event(process, "allocated")
        return process

    def outside(self):
        return self.machine.share(self.share).get("outside", [])

    def events(self):
        _, out, _ = self.prorata("events", "--json", "--no-follow", "--share", self.share)
        return [event for event in map(json.loads, out.splitlines()) if event["event"] == "outside_process"]

    def found(self, library):
        """The one that is reported, when it is: what ps, inspect and the event say of it."""
        harness.wait_until(self.outside, what="the report of a program outside")
        (one,) = self.outside()
        self.assertEqual(one["command"], "gpuload")
        self.assertEqual(one["used_bytes"], CONTEXT + 128 * MIB)
        self.assertEqual(one["libraries"], library)
        self.assertIn(f"/{self.podman_id()}".encode(), open(f"/proc/{one['pid']}/cgroup", "rb").read().replace(
            b"libpod-", b""))
        _, table, _ = self.prorata("ps")
        self.assertIn("(1 OUTSIDE)", table)
        _, text, _ = self.prorata("inspect", self.share)
        self.assertIn(f"outside {one['pid']}", text)
        self.assertIn(library, text)
        (event,) = self.events()
        self.assertEqual((event["pid"], event["gpu"], event["command"]), (one["pid"], 0, "gpuload"))
        self.assertIn(library, event["detail"])
        return one

    def podman_id(self):
        return self.podman.call("ps", "--no-trunc", "--quiet").strip()

    def await_none(self):
        harness.wait_until(lambda: not self.outside(), what="nobody outside")

    @pytest.mark.long
    def test_the_drivers_own_file(self):
        """Beside a member, which is not reported."""
        name = self.start_box("box")
        member = self.start_in(name, ["gpuload", *HOLD])
        past = self.start_in(name, ["gpuload", "--load", REAL, *HOLD])
        one = self.found(REAL)
        self.assertEqual(len(self.machine.share(self.share)["members"]), 1)
        self.assertNotIn(one["pid"], [m["pid"] for m in self.machine.share(self.share)["members"]])
        self.restart_agent()
        self.found(REAL)
        os.kill(one["pid"], 9)
        past.communicate(timeout=harness.DEADLINE_S)
        self.await_none()
        self.assertIsNone(member.poll())

    def test_an_images_own_driver(self):
        """None of its programs has ever joined: the container is known by what it was given."""
        folder = self.machine.folder / "compat"
        folder.mkdir()
        for file in ("libcuda.so.1", "machine.toml"):
            shutil.copy(harness.SIM_DIR / file, folder)
        folder.chmod(0o755)
        name = self.start_box("compat", "--volume", f"{folder}:/usr/local/cuda/compat:ro", "--user", "1000",
                              "--env", f"LD_LIBRARY_PATH={os.path.dirname(COMPAT)}",
                              "--env", "PRORATA_SIM_STATE=/run/prorata/driver/state")
        self.start_in(name, ["gpuload", *HOLD])
        self.assertNotIn("container", self.machine.share(self.share))
        self.found(COMPAT)
        self.podman.call("kill", name)
        self.await_none()

    def test_who_is_not_of_the_container_is_not_reported(self):
        """A program of the machine's, and one in a container with another share, while one is reported."""
        other = self.create("other", "--memory", "1GiB")
        bare = self.machine.start([harness.GPULOAD, *HOLD], self.machine.bare_environment())
        harness.read_event(bare, "allocated")
        elsewhere = self.podman.start(*self.podman.run_arguments(self.named("elsewhere"), other, "--rm"),
                                      "gpuload", "--load", REAL, *HOLD)
        harness.read_event(elsewhere, "allocated")
        harness.wait_until(lambda: self.machine.share(other).get("outside"), what="the other's report")
        self.assertEqual(self.outside(), [])
        self.assertEqual(self.events(), [])


if __name__ == "__main__":
    unittest.main()
