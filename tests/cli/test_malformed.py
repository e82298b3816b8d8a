"""Whatever comes on a socket of the agent, it changes nothing and the agent goes on."""
import json
import os
import random
import socket
import struct
import time
import unittest

import pytest

import harness

pytestmark = [pytest.mark.asan_ubsan, pytest.mark.tsan]

CONTROL_JSON = 64
MEMBER_TYPES = range(1, 12)


def frame(kind, body, version=1, length=None):
    return struct.pack("<IHH", len(body) if length is None else length, kind, version) + body


def request(value):
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return frame(CONTROL_JSON, text)


class Malformed(harness.MachineTestCase):
    def setUp(self):
        super().setUp()
        self.machine.start_agent()
        self.holder = self.machine.start(self.machine.command(
            ["--name", "holder", "--memory", "1GiB", "--compute", "0.5"], ["sleep", "600"]))
        harness.wait_until(lambda: self.machine.share("holder"), what="the share")
        self.before = self.machine.promises()
        seed = int(os.environ.get("PRORATA_TEST_SEED", time.time()))
        print(f"seed: PRORATA_TEST_SEED={seed}")
        self.rng = random.Random(seed)

    def send(self, path, *chunks):
        """What the agent answers before it closes or is silent for a moment."""
        answer = b""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(0.2)
            connection.connect(str(path))
            try:
                for chunk in chunks:
                    connection.sendall(chunk)
                while data := connection.recv(65536):
                    answer += data
            except (TimeoutError, ConnectionError):
                pass
        return answer

    def check_unchanged(self):
        self.assertEqual(self.machine.promises(), self.before)

    def control(self):
        return self.machine.runtime_dir / "control"

    def member(self):
        return self.machine.runtime_dir / "shares" / "holder" / "socket"

    def garbage(self):
        return self.rng.randbytes(self.rng.randrange(1, 2000))

    def test_garbage(self):
        for path in (self.control(), self.member()):
            for _ in range(10):
                self.send(path, self.garbage())
        self.check_unchanged()

    def test_lengths(self):
        for path, kind in ((self.control(), CONTROL_JSON), (self.member(), 1)):
            for length in (0xFFFFFFFF, 0x7FFFFFFF, (1 << 20) + 1, 257):
                self.send(path, frame(kind, b"x" * 64, length=length))
            self.send(path, frame(kind, b""))
            self.send(path, frame(kind, b"x")[:3])
        self.check_unchanged()

    def test_control_requests(self):
        share = {"op": "create_share", "share": {}}
        for bad in (
                b"", b"[]", b"{", b"nul", b"\xff\xfe", b"[" * 100_000, b'{"op":' * 5_000,
                {}, {"op": 3}, {"op": "no_such"}, {"op": "create_share", "share": []},
                {"op": "create_share", "extra": 1}, {"op": "list_shares", "name": "x"},
                {"op": "remove_share"}, {"op": "remove_share", "name": "../holder"},
                {**share, "share": {"memory_bytes": -1}}, {**share, "share": {"memory_bytes": 0}},
                {**share, "share": {"memory_bytes": 1.5}},
                {**share, "share": {"memory_bytes": 1 << 63}},
                {**share, "share": {"memory_byte": 1}}, {**share, "share": {"name": "a/../b"}},
                {**share, "share": {"name": "n" * 64}}, {**share, "share": {"name": "a\0b"}},
                {**share, "share": {"compute_request": 2}},
                {**share, "share": {"compute_request": "0.3"}},
                {**share, "share": {"compute_request": 0.4, "compute_limit": 0.3}},
                {**share, "share": {"compute_limit": 0}}, {**share, "share": {"weight": 0}},
                {**share, "share": {"gpu": "GPU-none"}},
                {**share, "share": {"name": "holder", "memory_bytes": 1 << 20}}):
            with self.subTest(bad=str(bad)[:80]):
                answer = self.send(self.control(), request(bad))
                if answer:
                    self.assertIn("message", json.loads(answer[8:])["error"])
        self.check_unchanged()

    def test_member_messages(self):
        for kind in (*MEMBER_TYPES, 0, CONTROL_JSON, 65535):
            for size in (0, 1, 7, 24, 256):
                self.send(self.member(), frame(kind, self.rng.randbytes(size)))
            self.send(self.member(), frame(kind, bytes(64), version=99))
        self.check_unchanged()

    def test_connections_that_say_nothing(self):
        silent = []
        for path in (self.control(), self.member()):
            for _ in range(40):
                connection = socket.socket(socket.AF_UNIX)
                connection.connect(str(path))
                silent.append(connection)
        self.check_unchanged()
        for connection in silent:
            connection.close()
        self.check_unchanged()


if __name__ == "__main__":
    unittest.main()
