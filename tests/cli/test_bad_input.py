"""Bad input gets one clear line and a non-zero exit, and changes nothing."""
import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import time
import unittest

import pytest

import harness

pytestmark = [pytest.mark.asan_ubsan, pytest.mark.tsan]

REFUSED, USAGE, NOT_EXECUTABLE, NOT_FOUND = 1, 2, 126, 127


class BadInput(harness.MachineTestCase):
    def setUp(self):
        super().setUp()
        self.machine.start_agent()
        self.before = self.machine.ps()
        self.mark = self.machine.folder / "it-ran"

    def refused(self, options, status, *words, command=None):
        """`run` with these options ends with `status`, says one line with `words`, runs nothing."""
        command = ["touch", self.mark] if command is None else command
        got, out, err = self.machine.call([harness.PRORATA, "run", *options, "--", *command])
        self.assertEqual(got, status, err)
        self.assertEqual(out, "")
        self.assertEqual(err.count("\n"), 1, err)
        self.assertTrue(err.startswith("prorata: ") and err.endswith("\n"), err)
        for word in words:
            self.assertIn(word, err)
        self.assertFalse(self.mark.exists())
        self.assertEqual([s["name"] for s in self.machine.ps()], [s["name"] for s in self.before])

    def test_unknown_gpu(self):
        self.refused(["--gpu", "7"], REFUSED, "7")
        self.refused(["--gpu", "GPU-no-such"], REFUSED, "GPU-no-such")
        self.refused(["--gpu", "-1"], REFUSED, "-1")
        self.refused(["--gpu", 3000 * "7"], USAGE, "--gpu", "3000 characters", "at most 256")

    def test_sizes(self):
        for size in ("-1", "4Gib", "0", "", "GiB", "1e9", "99999999TiB", "0.0000001KiB"):
            self.refused(["--memory", size], USAGE, "--memory", f"'{size}'")

    def test_requests_above_one(self):
        self.refused(["--compute", "1.01"], USAGE, "--compute", "1.01")
        self.refused(["--compute", "130%"], USAGE, "--compute", "130%")
        self.refused(["--compute-limit", "2"], USAGE, "--compute-limit", "2")

    def test_limit_below_request(self):
        self.refused(["--compute", "0.5", "--compute-limit", "0.4"], USAGE, "0.5", "0.4")

    def test_no_command(self):
        for arguments in (["run"], ["run", "--"], ["run", "--memory", "1GiB"]):
            status, out, err = self.machine.call([harness.PRORATA, *arguments])
            self.assertEqual((status, out, err.count("\n")), (USAGE, "", 1), err)
            self.assertIn("no command", err)

    def test_command_that_does_not_exist(self):
        self.refused([], NOT_FOUND, "no-such-command", command=["no-such-command"])
        self.refused([], NOT_FOUND, "/no/such", command=["/no/such"])
        plain = self.machine.folder / "plain"
        plain.write_text("")
        self.refused([], NOT_EXECUTABLE, str(plain), command=[plain])

    def test_more_memory_than_the_device_has(self):
        total = self.machine.gpus()[0]["total_bytes"]
        self.refused(["--memory", str(total + 1)], REFUSED, "memory")

    def holding(self, *options):
        """A share that stays for the length of the test."""
        process = self.machine.start(self.machine.command(options, ["sleep", "600"]))
        harness.wait_until(lambda: len(self.machine.ps()) > len(self.before), what="the share")
        self.before = self.machine.ps()
        return process

    def test_a_name_in_use(self):
        self.holding("--name", "taken", "--memory", "1GiB")
        self.refused(["--name", "taken", "--memory", "1GiB"], REFUSED, "taken")

    def test_requests_that_add_up_to_more_than_is_left(self):
        self.holding("--memory", "1GiB", "--compute", "0.7")
        self.refused(["--memory", "1GiB", "--compute", "0.4"], REFUSED, "0.4", "0.3")

    def test_memory_that_adds_up_to_more_than_is_left(self):
        total = self.machine.gpus()[0]["total_bytes"]
        self.holding("--memory", str(total - (1 << 30)))
        self.refused(["--memory", "2GiB"], REFUSED, "2 GiB")

    def test_no_memory_left_for_a_share_without_a_limit(self):
        self.holding()
        self.refused([], REFUSED, "memory")


class Undisturbed(harness.MachineTestCase):
    """Whatever is asked and sent, a share beside it goes on, and the log is not filled."""

    JOIN = 1

    def setUp(self):
        super().setUp()
        self.machine.start_agent()
        self.holder = self.machine.start_load(
            ["--name", "holder", "--memory", "1GiB"],
            ["--stress", "--threads", "2", "--seconds", "600", "--announce"])
        harness.read_event(self.holder, "stress")
        self.before = self.machine.promises()

    def tearDown(self):
        # All its calls were answered as they should be, and its limits are what they were.
        self.assertEqual(self.machine.promises(), self.before)
        self.holder.terminate()
        out, err = self.holder.communicate(timeout=harness.DEADLINE_S)
        self.assertEqual(self.holder.returncode, 0, err)
        self.assertGreater(json.loads(out.splitlines()[-1])["stress"]["allocations"], 0)
        super().tearDown()

    def test_limits_of_nothing_and_beyond_the_device(self):
        total = self.machine.gpus()[0]["total_bytes"]
        for _ in range(3):
            for command in (["run", "--memory", "0", "--", "true"],
                            ["run", "--memory", total + 1, "--", "true"],
                            ["update", "holder", "--memory", "0"],
                            ["update", "holder", "--memory", total + 1],
                            ["update", "gone", "--memory", "1GiB"]):
                status, out, err = self.machine.call([harness.PRORATA, *command])
                self.assertIn(status, (REFUSED, USAGE), command)
                self.assertEqual((out, err.count("\n")), ("", 1), err)

    def join(self, descriptor):
        """What the agent answers to who joins the holder's share with this for its usage memory."""
        body = struct.pack("<IIQQ", 1, 0, 1, (1 << 64) - 1)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(harness.DEADLINE_S)
            connection.connect(str(self.machine.runtime_dir / "shares" / "holder" / "socket"))
            socket.send_fds(connection, [struct.pack("<IHH", len(body), self.JOIN, 1) + body],
                            [descriptor])
            return connection.recv(8)[4]

    def memory(self, size, seals):
        descriptor = os.memfd_create("usage", os.MFD_ALLOW_SEALING)
        self.addCleanup(os.close, descriptor)
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        return descriptor

    def test_usage_memory_of_a_false_size(self):
        sealed = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        refused, begun = 11, time.monotonic()
        for _ in range(5):
            for size, seals in ((0, sealed), (1, sealed), (4096, sealed), (1 << 30, sealed),
                                (8192, 0), (8192, fcntl.F_SEAL_SHRINK)):
                self.assertEqual(self.join(self.memory(size, seals)), refused, (size, seals))
        # Told once; on a machine that takes longer for it, again after ten seconds, with a count.
        told = [line for line in self.machine.agent_log().splitlines()
                if f"process {os.getpid()} " in line]
        self.assertIn("turned away", told[0])
        self.assertLessEqual(len(told), 1 + (time.monotonic() - begun) // 10)


class ForeignAgent(harness.MachineTestCase):
    """Who else's socket it is, nothing is asked of it and nothing is started."""

    OTHER_USER = 65534

    def setUp(self):
        super().setUp()
        if os.geteuid() != 0:
            self.skipTest("needs root, to act as another user")

    def refused(self, *words):
        for arguments in (["run", "--", "true"], ["ps"], ["gpus"]):
            status, out, err = self.machine.call([harness.PRORATA, *arguments])
            self.assertEqual((status, out, err.count("\n")), (REFUSED, "", 1), err)
            for word in words:
                self.assertIn(word, err)
        self.assertEqual(self.machine.agent_pids(), [])

    def test_folder_of_another_user(self):
        os.chown(self.machine.runtime_dir, self.OTHER_USER, self.OTHER_USER)
        self.refused("65534", str(self.machine.runtime_dir))

    def test_socket_of_another_user(self):
        # The control socket's name is what a real agent leaves.
        self.machine.start_agent()
        self.machine.kill_agent()
        sockets = [p for p in self.machine.runtime_dir.iterdir() if p.is_socket()]
        self.assertEqual(len(sockets), 1, list(self.machine.runtime_dir.iterdir()))
        path = sockets[0]
        path.unlink()
        reader, writer = os.pipe()
        listener = os.fork()
        if listener == 0:
            os.chmod(self.machine.runtime_dir, 0o777)
            os.setuid(self.OTHER_USER)
            server = socket.socket(socket.AF_UNIX)
            server.bind(str(path))
            os.chmod(path, 0o777)
            server.listen()
            os.write(writer, b"x")
            signal.pause()
        try:
            os.read(reader, 1)
            self.refused("65534", "agent")
        finally:
            os.kill(listener, signal.SIGKILL)
            os.waitpid(listener, 0)
            os.close(reader)
            os.close(writer)


class NoAgent(harness.MachineTestCase):
    def test_ps_without_an_agent_is_empty(self):
        status, out, err = self.machine.call([harness.PRORATA, "ps", "--json"])
        self.assertEqual((status, out.strip()), (0, "[]"))
        self.assertEqual(err.count("\n"), 1, err)
        status, out, err = self.machine.call([harness.PRORATA, "ps"])
        self.assertEqual(status, 0)
        self.assertEqual(out.split()[0], "NAME")
        self.assertEqual(self.machine.agent_pids(), [])

    def test_a_folder_that_cannot_be_made(self):
        shutil.rmtree(self.machine.runtime_dir)
        self.machine.runtime_dir.write_text("a file")
        status, out, err = self.machine.call([harness.PRORATA, "run", "--", "true"])
        self.assertEqual((status, out, err.count("\n")), (REFUSED, "", 1), err)
        self.assertIn(str(self.machine.runtime_dir), err)

    def test_a_command_that_does_not_exist_starts_no_agent(self):
        status, _, _ = self.machine.call([harness.PRORATA, "run", "--", "no-such-command"])
        self.assertEqual(status, NOT_FOUND)
        self.assertEqual(self.machine.agent_pids(), [])


if __name__ == "__main__":
    unittest.main()
