"""A share is a device that podman hands to a container."""
import json
import os
import signal
import unittest

import harness
import podman
from harness import GIB, MIB

CONTEXT = 512 * MIB  # of the simulated GPU


class Device(podman.PodmanTestCase):
    def test_a_container_has_its_share(self):
        share = self.create("train", "--memory", "2GiB", "--compute", "0.3")
        name = self.named("box")
        process = self.podman.start(
            *self.podman.run_arguments(name, share, "--rm"), "gpuload", "--allocate", "128MiB",
            "--until-refused", "--hold", "600", "--announce")
        held = harness.read_event(process, "allocated")
        self.assertEqual(held["allocated_bytes"], 2 * GIB - CONTEXT)
        status = self.machine.share(share)
        self.assertEqual(status["used_bytes"], 2 * GIB)
        self.assertEqual(status["container"]["engine"], "podman")
        harness.wait_until(lambda: self.machine.share(share)["container"]["name"] == name,
                           what="the container's name")
        _, table, _ = self.prorata("ps")
        self.assertRegex(table, rf"{share} .* {name}\n")
        # A share in use is refused; with -f its programs are killed, and it is gone.
        status, _, err = self.prorata("rm", share)
        self.assertEqual(status, 1)
        self.assertIn(f"in container {name}", err)
        self.assertTrue(podman.specification(share).exists())
        status, _, err = self.prorata("rm", "-f", share)
        self.assertEqual((status, err), (0, ""))
        self.assertFalse(podman.specification(share).exists())
        process.communicate(timeout=harness.DEADLINE_S)
        harness.wait_until(lambda: self.machine.share(share) is None, what="the share's end")

    def test_every_process_is_held_whatever_its_environment(self):
        share = self.create("held", "--memory", "2GiB")
        name = self.named("box")
        self.podman.call(*self.podman.run_arguments(name, share, "--detach", "--rm"), "sleep", "600")
        refused = ["gpuload", "--allocate", "128MiB", "--until-refused"]
        private = "/run/prorata/driver"
        for options, program in (
                ([], refused),
                ([], ["env", "-i", *map(lambda p: f"/usr/bin/{p}" if p == "gpuload" else p, refused)]),
                (["--env", f"LD_LIBRARY_PATH={private}:/usr/lib"], refused),
                (["--env", "LD_PRELOAD=/usr/lib/x86_64-linux-gnu/libm.so.6"], refused),
                (["--env", "PRORATA_SHARE=/tmp", "--env", f"PRORATA_DRIVER_DIR={private}",
                  "--env", "PRORATA_SIM_STATE=/tmp"], refused),
                (["--user", "1000"], ["gpuload-setuid", *refused[1:]]),
                (["--user", "1000"], refused),
                ([], [*refused, "--load", "dlopen-dev"]),
                ([], [*refused, "--load", "/usr/lib64/libcuda.so.1"])):
            with self.subTest(options=options, program=program):
                report = self.podman.exec_json(name, program, options)
                self.assertEqual(report["allocated_bytes"], 2 * GIB - CONTEXT)

    def test_two_containers_each_have_their_own(self):
        shares = {name: self.create(name, "--memory", size, "--compute", compute)
                  for name, size, compute in (("a", "2GiB", "0.6"), ("b", "4GiB", "0.2"))}
        processes = {}
        for name, share in shares.items():
            processes[name] = self.podman.start(
                *self.podman.run_arguments(self.named(name), share, "--rm"), "gpuload",
                "--allocate", "128MiB", "--until-refused", "--hold", "600", "--announce")
        for name, size in (("a", 2 * GIB), ("b", 4 * GIB)):
            held = harness.read_event(processes[name], "allocated")
            self.assertEqual(held["allocated_bytes"], size - CONTEXT)
            self.assertEqual(self.machine.share(shares[name])["used_bytes"], size)

    def test_a_share_is_one_containers_until_that_ends(self):
        share = self.create("one", "--memory", "2GiB")
        first, second = self.named("first"), self.named("second")
        self.podman.call(*self.podman.run_arguments(first, share, "--detach", "--rm"), "sleep", "600")
        load = ["--allocate", "128MiB"]
        self.podman.exec_json(first, ["gpuload", *load])
        # The first has no program on the share now, and still is there.
        status, _, err = self.podman.run(second, share, ["gpuload", *load])
        self.assertNotEqual(status, 0)
        self.assertIn("another container has it", err)
        self.restart_agent()
        self.assertEqual(self.machine.share(share)["container"]["name"], first)
        os.kill(self.podman.pid_of(first), signal.SIGKILL)
        harness.wait_until(lambda: "container" not in self.machine.share(share),
                           what="the end of the first container")
        self.podman.run_json(second, share, load)
        kinds = [json.loads(line)["event"] for line in self.prorata(
            "events", "--json", "--no-follow", "--share", share)[1].splitlines()]
        self.assertIn("container_joined", kinds)
        self.assertIn("container_gone", kinds)

    def test_for_any_container(self):
        share = self.create("any", "--memory", "2GiB", "--any-container")
        first = self.named("first")
        self.podman.call(*self.podman.run_arguments(first, share, "--detach", "--rm"), "sleep", "600")
        self.podman.exec_json(first, ["gpuload", "--allocate", "128MiB"])
        self.podman.run_json(self.named("second"), share, ["--allocate", "128MiB"])

    def test_containers_of_all_kinds(self):
        share = self.create("kinds", "--memory", "2GiB")
        for index, options in enumerate((
                ["--read-only"],
                ["--user", "1000:1000"],
                ["--uidmap", "0:100000:65536", "--gidmap", "0:100000:65536"],
                ["--pids-limit", "8"],
                ["--memory", "128m"],
                ["--cap-drop", "all", "--security-opt", "no-new-privileges"],
                ["--pid", "host"])):
            with self.subTest(options=options):
                report = self.podman.run_json(self.named(f"kind{index}"), share,
                                              ["--allocate", "128MiB", "--until-refused"], options)
                self.assertEqual(report["allocated_bytes"], 2 * GIB - CONTEXT)
                harness.wait_until(lambda: "container" not in self.machine.share(share),
                                   what="the container's end")

    def test_by_volumes_where_devices_are_not_known(self):
        share = self.create("volumes", "--memory", "2GiB")
        _, out, _ = self.prorata("cdi", "--volumes", share)
        report = json.loads(self.podman.call(
            "run", "--rm", *out.split(), podman.IMAGE, "gpuload", "--allocate", "128MiB",
            "--until-refused").splitlines()[-1])
        self.assertEqual(report["allocated_bytes"], 2 * GIB - CONTEXT)

    def test_a_user_without_the_device_is_turned_away(self):
        """A user of a container gets in by the share that is mounted there, and by no other way."""
        share = self.create("mine", "--memory", "2GiB")
        other = self.create("other", "--memory", "2GiB")
        folder = self.machine.share(other)["directory"]
        # It has its own share's device, and the other's folder at another place.
        status, out, err = self.podman.run(
            self.named("box"), share,
            ["sh", "-c", "setsid true; exec env PRORATA_SHARE=/other gpuload --allocate 128MiB"],
            ["--user", "1000", "--volume", f"{folder}:/other:ro"])
        self.assertEqual(status, 0, out + err)
        self.assertEqual(self.machine.share(other)["used_bytes"], 0)
        # A program of the machine of another user has no device at all.
        status, out, err = self.machine.call(
            [harness.PRORATA, "run", "--name", other, "--", harness.GPULOAD, "--allocate", "1MiB"],
            user=65534)
        self.assertNotEqual(status, 0, out)

    def test_memory_is_back_when_a_container_was_killed(self):
        share = self.create("killed", "--memory", "2GiB")
        for turn in range(3):
            name = self.named(f"box{turn}")
            process = self.podman.start(
                *self.podman.run_arguments(name, share, "--rm"), "gpuload", "--allocate", "128MiB",
                "--until-refused", "--hold", "600", "--announce")
            self.assertEqual(harness.read_event(process, "allocated")["allocated_bytes"],
                             2 * GIB - CONTEXT)
            os.kill(self.podman.pid_of(name), signal.SIGKILL)
            if turn == 1:
                self.restart_agent()
            process.communicate(timeout=harness.DEADLINE_S)
            harness.wait_until(lambda: self.machine.share(share)["used_bytes"] == 0
                               and "container" not in self.machine.share(share),
                               what="the share's memory and the container's end")


if __name__ == "__main__":
    unittest.main()
