"""A share in containers of all kinds: the program joins, sees its share's size, is refused beyond it, and
so does nvidia-smi where it is to be had."""
import json
import os
import pathlib
import shutil
import unittest

import harness
import podman
import pytest
import quiet
from harness import GIB, MIB

CONTEXT = 512 * MIB  # of the simulated GPU
SMI = pathlib.Path(os.environ.get("PRORATA_NVIDIA_SMI", harness.BUILD / "nvidia-smi" / "nvidia-smi"))
LOAD = "gpuload --allocate 128MiB --until-refused"
QUERY = "nvidia-smi --query-gpu=memory.total --format=csv,noheader"
# Kilobytes that a container may have for what a share adds to a program's need: the client library,
# its share's files, its thread.
ADDED_KIB = 1024


class Kinds(podman.PodmanTestCase):
    PROGRAMS = [(pathlib.Path(shutil.which("unshare")).resolve(), "usr/bin/unshare", 0o755)]

    def setUp(self):
        if SMI.exists():
            self.PROGRAMS = [*Kinds.PROGRAMS, (SMI.resolve(), "usr/bin/nvidia-smi", 0o755)]
        super().setUp()
        self.share = self.create("kind", "--memory", "2GiB")
        self.turn = 0

    def in_container(self, script, *options):
        """The lines that a shell's script in a new container prints."""
        self.turn += 1
        status, out, err = self.podman.run(self.named(f"kind{self.turn}"), self.share,
                                           ["sh", "-c", script], options)
        self.assertEqual(status, 0, out + err)
        return out.splitlines()

    def check(self, *options, program=LOAD):
        script = f"set -e; {program}"
        if SMI.exists():
            script += f"; {QUERY}"
        with self.subTest(options=options, program=program):
            lines = self.in_container(script, *options)
            report = json.loads(lines[0])
            self.assertEqual(report["allocated_bytes"], 2 * GIB - CONTEXT)
            if SMI.exists():
                self.assertEqual(lines[1], "2048 MiB")
            harness.wait_until(lambda: self.machine.share(self.share)["used_bytes"] == 0
                               and "container" not in self.machine.share(self.share),
                               what="the container's end")

    def test_roots_and_users(self):
        self.check("--read-only")
        self.check("--read-only", "--read-only-tmpfs=false")
        self.check("--user", "1000:1000")
        self.check("--read-only", "--user", "4711:4711", "--cap-drop", "all",
                   "--security-opt", "no-new-privileges")
        self.check("--uidmap", "0:100000:65536", "--gidmap", "0:100000:65536")
        self.check("--uidmap", "0:100000:65536", "--gidmap", "0:100000:65536", "--user", "1000")

    def test_namespaces(self):
        self.check("--pid", "host")
        self.check("--network", "none", "--ipc", "private", "--uts", "private")
        self.check("--network", "host", "--ipc", "host", "--uts", "host", "--pid", "host")
        self.check("--ipc", "none", "--cgroupns", "private")
        self.check("--network", "none", "--pid", "private", "--uidmap", "0:100000:65536")

    def test_system_calls_are_filtered(self):
        """By the engine's own filter (seccomp), which is in force."""
        filters = self.in_container("cat /proc/self/status")
        self.assertIn("Seccomp:\t2", filters, "the engine's own filter is not in force")
        self.check()
        self.check("--cap-drop", "all", "--security-opt", "no-new-privileges")

    def test_few_processes(self):
        # Room for the shell, the program, its thread and the client library's. The rest is taken up in the
        # container, for the engine's own start, in Go, may need more.
        taken = "for i in 1 2 3 4 5 6 7 8 9 10 11; do sleep 1000 & done"
        self.check("--pids-limit", "16", program=f"{taken}; {LOAD}")

    @pytest.mark.pairs
    def test_another_time(self):
        """A program whose clocks are eleven days ahead of the agent's."""
        ahead = "unshare --time --fork --monotonic 1000000 --boottime 1000000"
        rights = ("--cap-add", "SYS_ADMIN", "--cap-add", "SYS_TIME")
        self.check(*rights, program=f"{ahead} {LOAD}")
        share = self.create("late", "--memory", "1GiB", "--compute-limit", "0.3")
        name = self.named("late")
        load = self.podman.start(*self.podman.run_arguments(name, share, "--rm", *rights),
                                 *ahead.split(), *"gpuload --seconds 60 --kernel-us 500 --announce".split())
        harness.read_event(load, "kernels")

        with quiet.Watch() as watch:
            before = self.machine.usage()  # the device's own account: nobody else runs there
            harness.wait_until(lambda: self.machine.usage()["busy_ns"] - before["busy_ns"] > 0.9e9, what="GPU time",
                               step_s=0.05)
            part = self.machine.busy_since(before)
        watch.judge(self, abs(part - 0.3) < 0.05, f"a limit of 0.3 is {part:.3f} in a time of its own")

    def test_memory_near_the_programs_own_need(self):
        """What a program without a share can just live with, it can with one, and little more."""
        def lives(kib, share):
            options = ["--memory", f"{kib}k", "--memory-swap", f"{kib}k"]
            if share is None:
                options += self.bare_options()
            arguments = ["run", "--rm", *options, podman.IMAGE] if share is None else \
                self.podman.run_arguments(self.named(f"m{kib}"), share, "--rm", *options)
            return self.podman.try_call(*arguments, *LOAD.split())[0] == 0

        def need(share):
            too_little, enough = 1024, 32768
            while enough - too_little > 256:
                middle = (too_little + enough) // 2
                if lives(middle, share):
                    enough = middle
                else:
                    too_little = middle
            return enough

        without, with_one = need(None), need(self.share)
        message = f"it needs {without} KiB without a share, {with_one} KiB with one"
        print(message)
        self.assertLessEqual(with_one, without + ADDED_KIB, message)

    def bare_options(self):
        """Mounts by which a container has the simulated driver itself, and no share."""
        place = "/usr/lib/x86_64-linux-gnu"
        mounts = [(harness.SIM_DIR / name, f"{place}/{name}") for name in ("libcuda.so.1", "libnvidia-ml.so.1")]
        mounts.append((harness.SIM_DIR / "machine.toml", f"{place}/machine.toml"))
        volumes = [f"--volume={source.resolve()}:{target}:ro" for source, target in mounts]
        state = self.machine.environment["PRORATA_SIM_STATE"]
        return [*volumes, f"--volume={state}:/sim", "--env=PRORATA_SIM_STATE=/sim"]


if __name__ == "__main__":
    unittest.main()
