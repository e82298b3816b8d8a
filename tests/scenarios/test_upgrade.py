"""The agent is replaced by another build under contention, in real processes: nothing stops, limits hold,
and one that speaks another version is refused in words. Polled at as test_agent_unavailable.py does.
"""
import contextlib
import json
import pathlib
import shutil
import socket
import struct
import sys
import threading
import unittest

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import test_agent_unavailable  # pylint: disable=wrong-import-position
from processes import harness  # pylint: disable=wrong-import-position

pytestmark = pytest.mark.alone

# Of src/wire/messages.h.
REFUSED, REFUSED_FOR_VERSION, WIRE_VERSION = 11, 2, 1


def other_build(folder):
    """prorata at another path, as an upgrade puts it there."""
    copied = folder / "other" / "bin" / "prorata"
    copied.parent.mkdir(parents=True)
    shutil.copy2(harness.PRORATA, copied)
    return copied


class OfAnotherVersion:
    """Stands where an agent would, and refuses whoever joins for its version."""

    def __init__(self, runtime_dir):
        self.refused = 0
        self._servers = []
        for path in runtime_dir.glob("shares/*/socket"):
            path.unlink()
            server = socket.socket(socket.AF_UNIX)
            server.bind(str(path))
            server.listen(100)
            self._servers.append(server)
            threading.Thread(target=self._serve, args=(server,), daemon=True).start()

    def _serve(self, server):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(struct.pack("<IHHII", 8, REFUSED, WIRE_VERSION,
                                                   REFUSED_FOR_VERSION, 0))
                    self.refused += 1

    def close(self):
        for server in self._servers:
            server.shutdown(socket.SHUT_RDWR)
            server.close()


class Upgrade(test_agent_unavailable.HeartbeatWatch):
    def test_another_build_takes_over(self):
        def replace(run):
            run.agent.terminate()
            run.agent.wait()
            run.agent = run.machine.start_agent("--dilation", str(run.dilation),
                                                program=other_build(run.machine.folder))

        def check(run):
            running = pathlib.Path(f"/proc/{run.agent.pid}/exe").resolve()
            self.assertEqual(running, run.machine.folder / "other" / "bin" / "prorata")
            self.assertEqual({s["name"]: len(s["members"]) for s in run.machine.ps()},
                             {"two": 2, "elastic": 1})

        self.check(replace, check)

    def test_one_whose_state_is_of_another_version_is_refused(self):
        def replace(run):
            run.machine.kill_agent()
            state = run.machine.runtime_dir / "state.json"
            self.kept = state.read_text()
            state.write_text(json.dumps({**json.loads(self.kept), "version": 2}))
            status, _, err = run.machine.call([other_build(run.machine.folder), "agent"])
            self.assertEqual(status, 1)
            self.assertIn(f"cannot use the agent's state '{state}': it is of another version of prorata",
                          err)

        def end(run):
            (run.machine.runtime_dir / "state.json").write_text(self.kept)
            self.restart(run)

        self.check(replace, end)

    def test_one_that_refuses_for_its_version(self):
        def replace(run):
            run.machine.kill_agent()
            self.other = OfAnotherVersion(run.machine.runtime_dir)
            # Neither joins: a new program says why, those that run go on.
            load = run.machine.start([harness.GPULOAD, "--kernels", "1"], environment={
                "PRORATA_SHARE": str(next(run.machine.runtime_dir.glob("shares/*"))),
                "LD_LIBRARY_PATH": str(harness.LIB_DIR)})
            _, err = load.communicate(timeout=harness.DEADLINE_S)
            self.assertNotEqual(load.returncode, 0)
            self.assertIn("this client library and the agent are of different versions", err)

        def end(run):
            self.assertGreater(self.other.refused, 1, "no member tried to join again")
            self.other.close()
            self.restart(run)

        self.check(replace, end)


class Memory(harness.MachineTestCase):
    def test_no_byte_of_a_limit_is_lost(self):
        agent = self.machine.start_agent("--cdi-dir", self.machine.folder / "cdi")
        status, _, err = self.machine.call([harness.PRORATA, "create", "a", "--memory", "4GiB"])
        self.assertEqual(status, 0, err)
        load = self.machine.start_load(["--name", "a"],
                                       ["--allocate", "2GiB", "--announce", "--hold", "600"])
        harness.read_event(load, "allocated")
        builds = [other_build(self.machine.folder), harness.PRORATA]
        for number in range(4):
            agent.terminate()
            agent.wait(harness.DEADLINE_S)
            agent = self.machine.start_agent("--cdi-dir", self.machine.folder / "cdi",
                                             program=builds[number % 2])
            # Each context takes 512 MiB of the share.
            report = self.machine.run_json(["--name", "a"],
                                           ["--allocate", "128MiB", "--until-refused"])
            self.assertEqual(report["allocated_bytes"], harness.GIB)
        self.assertIsNone(load.poll())
        self.assertEqual(self.machine.usage()["peak_bytes"], 4 * harness.GIB)


# Only those of this file.
for name in [name for name in dir(test_agent_unavailable.HeartbeatWatch) if name.startswith("test_")]:
    setattr(Upgrade, name, None)


if __name__ == "__main__":
    unittest.main()
