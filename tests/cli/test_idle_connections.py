"""Connections that say nothing keep nobody else from the agent: not from its control socket, and not
from a share's."""
import json
import os
import resource
import socket
import statistics
import subprocess
import time
import unittest

import pytest

import harness
import quiet

pytestmark = pytest.mark.alone

IDLE = 1000
WITHIN_S = 0.1
OTHER_USER = 65534
# Holds so many connections, as another user where one is given, until its standard input ends.
HOLDER = """
import os, socket, sys
path, count, user = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if user:
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
held = []
for _ in range(count):
    held.append(socket.socket(socket.AF_UNIX))
    held[-1].connect(path)
print(len(held), flush=True)
sys.stdin.read()
"""


class IdleConnections(harness.MachineTestCase):
    def setUp(self):
        super().setUp()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard < IDLE + 100:
            self.skipTest(f"a process may open {hard} files here, too few")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, IDLE + 100), hard))
        self.machine.start_agent()
        self.owner = self.machine.start_load(
            ["--name", "keeper", "--memory", "4GiB"],
            ["--allocate", "64MiB", "--hold", "600", "--announce"])
        harness.wait_until(lambda: (self.machine.share("keeper") or {}).get("members"),
                           what="a member")
        self.control = self.machine.runtime_dir / "control"
        self.member = self.machine.runtime_dir / "shares" / "keeper" / "socket"

    def hold(self, path, user=0):
        holder = self.machine.start(["python3", "-c", HOLDER, path, IDLE, user],
                                    stdin=subprocess.PIPE)
        self.assertEqual(harness.read_line(holder).strip(), str(IDLE))
        return holder

    def timed(self, command):
        begun = time.monotonic()
        status, out, err = self.machine.call(command)
        took = time.monotonic() - begun
        self.assertEqual((status, err), (0, ""), command)
        return took, out

    def check_served(self):
        """All of it works, at once and again, in a tenth of a second."""
        commands = {"ps": [harness.PRORATA, "ps", "--json"],
                    "run": self.machine.command(["--memory", "64MiB"], ["true"])}
        with quiet.Watch() as watch:
            took = {name: statistics.median(self.timed(command)[0] for _ in range(5))
                    for name, command in commands.items()}
        watch.judge(self, max(took.values()) <= WITHIN_S,
                    f"with {IDLE} idle connections: {took} s, not within {WITHIN_S} s")
        names = [share["name"] for share in json.loads(self.timed(commands["ps"])[1])]
        self.assertIn("keeper", names)

    def check_joins(self):
        """A process joins the share whose socket is held, and is served there."""
        environment = {"PRORATA_SHARE": str(self.member.parent),
                       "LD_LIBRARY_PATH": str(harness.LIB_DIR),
                       "LD_PRELOAD": str(harness.LIB_DIR / "libcuda.so.1")}
        status, out, err = self.machine.call([harness.GPULOAD, "--allocate", "64MiB"],
                                             environment=environment)
        self.assertEqual((status, err), (0, ""), out)

    def users(self):
        return (0, OTHER_USER) if os.geteuid() == 0 else (0,)

    def test_on_the_control_socket(self):
        for user in self.users():
            with self.subTest(user=user or os.geteuid()):
                holder = self.hold(self.control, user)
                self.check_served()
                self.check_joins()
                holder.kill()
                holder.wait()

    def test_on_the_socket_of_a_share(self):
        for user in self.users():
            with self.subTest(user=user or os.geteuid()):
                holder = self.hold(self.member, user)
                self.check_joins()
                self.check_served()
                holder.kill()
                holder.wait()

    def test_what_says_nothing_is_closed_and_told_why(self):
        with socket.socket(socket.AF_UNIX) as silent:
            silent.settimeout(harness.DEADLINE_S)
            silent.connect(str(self.control))
            answer = b""
            while data := silent.recv(4096):
                answer += data
        error = json.loads(answer[8:])["error"]
        self.assertEqual(error["code"], "timed_out")
        self.assertIn("no request came", error["message"])


if __name__ == "__main__":
    unittest.main()
