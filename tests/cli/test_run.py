"""`prorata run` as a way to run a program: status, signals, environment, the agent it starts."""
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import time
import unittest

import pytest

import harness

pytestmark = [pytest.mark.asan_ubsan, pytest.mark.tsan]


class Status(harness.MachineTestCase):
    def run_shell(self, script):
        return self.machine.call([harness.PRORATA, "run", "--", "sh", "-c", script])

    def test_exit_status_is_the_programs(self):
        self.assertEqual(self.run_shell("exit 0")[0], 0)
        self.assertEqual(self.run_shell("exit 41")[0], 41)
        self.assertEqual(self.run_shell("exit 127")[0], 127)

    def test_death_by_signal_is_the_programs(self):
        self.assertEqual(self.run_shell("kill -TERM $$")[0], -signal.SIGTERM)
        self.assertEqual(self.run_shell("kill -KILL $$")[0], -signal.SIGKILL)
        self.assertEqual(self.run_shell("kill -SEGV $$")[0], -signal.SIGSEGV)

    def test_streams_and_environment_pass(self):
        process = self.machine.start(
            [harness.PRORATA, "run", "--name", "me", "--", "sh", "-c",
             'cat; echo "$PRORATA_SHARE $LD_PRELOAD" >&2'], stdin=subprocess.PIPE,
            environment={"LD_LIBRARY_PATH": "/some/where"})
        out, err = process.communicate("hello\n", timeout=harness.DEADLINE_S)
        self.assertEqual(out, "hello\n")
        share, preload = err.split()
        self.assertEqual(os.path.basename(share), "me")
        self.assertTrue(preload.endswith("/libcuda.so.1"))

    def test_signals_reach_the_program(self):
        for name in ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2"):
            process = self.machine.start(
                [harness.PRORATA, "run", "--", "sh", "-c",
                 f"trap 'echo caught; exit 9' {name}; echo ready; while :; do sleep 0.02; done"])
            self.assertEqual(harness.read_line(process), "ready\n")
            process.send_signal(getattr(signal, "SIG" + name))
            out, _ = process.communicate(timeout=harness.DEADLINE_S)
            self.assertEqual((process.returncode, out), (9, "caught\n"), name)

    def test_share_is_gone_after_the_program(self):
        self.machine.start_agent()
        self.run_shell("exit 0")
        harness.wait_until(lambda: self.machine.ps() == [], what="an empty ps")

    def test_share_is_gone_after_the_program_was_killed(self):
        self.machine.start_agent()
        process = self.machine.start(self.machine.command(["--name", "x"], ["sleep", "600"]))
        harness.wait_until(lambda: self.machine.share("x"), what="the share")
        process.kill()
        harness.wait_until(lambda: self.machine.ps() == [], what="an empty ps")

    def test_its_name_can_be_taken_again_at_once(self):
        # Its memory may be on the device for a moment longer; the next run waits for that.
        for _ in range(20):
            self.machine.run_json(["--name", "again", "--memory", "1GiB"], ["--allocate", "64MiB"])

    def test_who_joins_while_the_machine_stands_still(self):
        """A machine that was suspended: its time goes on, and nobody had a processor."""
        agent = self.machine.start_agent()
        load = self.machine.start(self.machine.command(["--name", "x", "--memory", "1GiB"], [
            "sh", "-c", 'read go; exec "$@"', "sh", harness.GPULOAD, "--allocate", "64MiB"]), stdin=subprocess.PIPE)
        harness.wait_until(lambda: self.machine.share("x"), what="the share")
        agent.send_signal(signal.SIGSTOP)
        self.addCleanup(agent.send_signal, signal.SIGCONT)
        load.stdin.write("\n")
        load.stdin.flush()
        fds = pathlib.Path(f"/proc/{load.pid}/fd")

        def asks_to_join():
            with contextlib.suppress(FileNotFoundError):  # a descriptor that is closed meanwhile
                return any(os.readlink(fd).startswith("socket:") for fd in fds.iterdir())
        harness.wait_until(asks_to_join, what="a program that asks to join")
        load.send_signal(signal.SIGSTOP)
        time.sleep(2.5)  # longer than an agent is waited for
        load.send_signal(signal.SIGCONT)
        time.sleep(0.1)  # the agent is the second to get one
        agent.send_signal(signal.SIGCONT)
        out, err = load.communicate(timeout=harness.DEADLINE_S)
        self.assertEqual(load.returncode, 0, out + err)

    def test_run_becomes_the_program(self):
        # No process stands between: what is sent to prorata is sent to the program.
        process = self.machine.start([harness.PRORATA, "run", "--", "sh", "-c", "echo $$"])
        self.assertEqual(int(process.communicate(timeout=harness.DEADLINE_S)[0]), process.pid)


class Agent(harness.MachineTestCase):
    def one_agent(self):
        """The agents, when those that found another one there have ended."""
        return harness.wait_until(lambda: len(found := self.machine.agent_pids()) == 1 and found,
                                  what="one agent")

    def test_run_starts_an_agent_which_ends_after_its_last_share(self):
        process = self.machine.start([harness.PRORATA, "run", "--", "sh", "-c", "echo on; read x"],
                                     stdin=subprocess.PIPE)
        self.assertEqual(harness.read_line(process), "on\n")
        agents = self.one_agent()
        self.assertEqual(len(self.machine.ps()), 1)
        # In a session of its own: what a terminal sends to the program does not end it.
        self.assertNotEqual(os.getsid(agents[0]), os.getsid(process.pid))
        process.stdin.write("\n")
        process.stdin.close()
        self.assertEqual(process.wait(timeout=harness.DEADLINE_S), 0)
        harness.wait_until(lambda: not self.machine.agent_pids(), what="the end of the agent")

    def test_many_runs_at_once_start_one_agent(self):
        processes = [self.machine.start(self.machine.command(
            ["--name", f"n{i}", "--memory", "256MiB"],
            ["sh", "-c", "echo on; read x"]), stdin=subprocess.PIPE) for i in range(6)]
        for process in processes:
            self.assertEqual(harness.read_line(process), "on\n")
        self.one_agent()
        self.assertEqual({share["name"] for share in self.machine.ps()},
                         {f"n{i}" for i in range(6)})
        for process in processes:
            process.stdin.close()
            self.assertNotEqual(process.wait(timeout=harness.DEADLINE_S), None)

    def test_one_run_after_another_never_meets_an_ending_agent(self):
        # The agent ends a second after its last share: the next run comes at any moment of that.
        for i in range(16):
            status, _, err = self.machine.call([harness.PRORATA, "run", "--", "true"])
            self.assertEqual((status, err), (0, ""))
            time.sleep(0.92 + 0.01 * i)

    def test_no_driver_is_said_in_one_line(self):
        status, out, err = self.machine.call(
            [harness.PRORATA, "run", "--", "true"],
            environment={"PRORATA_DRIVER_DIR": str(self.machine.folder)})
        self.assertEqual((status, out, err.count("\n")), (1, "", 1), err)
        self.assertIn(str(self.machine.folder), err)

    def test_a_hangup_ends_it_in_order(self):
        agent = self.machine.start_agent()
        agent.send_signal(signal.SIGHUP)
        self.assertEqual(agent.wait(harness.DEADLINE_S), 0)
        self.assertIn("the agent ends", self.machine.agent_log())
        self.assertFalse((self.machine.runtime_dir / "control").exists())

    def test_under_nohup_a_hangup_does_not_end_it(self):
        program = self.machine.folder / "under-nohup"
        program.write_text(f"#!/bin/sh\nexec nohup {harness.PRORATA} \"$@\"\n")
        program.chmod(0o755)
        agent = self.machine.start_agent(program=program)
        agent.send_signal(signal.SIGHUP)
        for _ in range(3):
            self.assertTrue(self.machine.agent_answers())
        self.assertIsNone(agent.poll())

    def test_second_agent_is_refused(self):
        self.machine.start_agent()
        status, _, err = self.machine.call([harness.PRORATA, "agent"])
        self.assertEqual(status, 1)
        self.assertIn(str(self.machine.runtime_dir), err)
        self.assertTrue(self.machine.agent_answers())


class Tables(harness.MachineTestCase):
    def test_ps_and_gpus(self):
        self.machine.start_agent()
        load = self.machine.start_load(
            ["--name", "shown", "--memory", "2GiB", "--compute", "0.25", "--compute-limit", "0.75"],
            ["--allocate", "64MiB", "--hold", "600", "--announce"])
        harness.read_event(load, "allocated")
        share = self.machine.share("shown")
        self.assertEqual(share["memory_limit_bytes"], 2 * harness.GIB)
        self.assertEqual(share["used_bytes"] - share["overhead_bytes"],
                         64 * harness.MIB)
        self.assertEqual(share["compute_request"], 0.25)
        self.assertEqual(share["compute_limit"], 0.75)
        self.assertEqual(len(share["members"]), 1)
        status, out, err = self.machine.call([harness.PRORATA, "ps"])
        self.assertEqual((status, err), (0, ""))
        header, row = out.splitlines()
        self.assertEqual(header.split()[0], "NAME")
        self.assertIn("shown", row)
        self.assertIn("25%-75%", row)
        gpu = self.machine.gpus()[0]
        self.assertEqual(gpu["promised_bytes"], 2 * harness.GIB)
        self.assertEqual(gpu["promised_request"], 0.25)
        status, out, err = self.machine.call([harness.PRORATA, "gpus"])
        self.assertEqual((status, err), (0, ""))
        self.assertIn(gpu["uuid"], out)

    def test_gpu_by_index_and_uuid(self):
        self.machine.start_agent()
        gpu = self.machine.gpus()[0]
        for name in ("0", gpu["uuid"]):
            status, out, err = self.machine.call(self.machine.command(
                ["--gpu", name, "--memory", "1GiB"], [harness.GPULOAD]))
            self.assertEqual(status, 0, err)
            self.assertEqual(json.loads(out)["uuid"], gpu["uuid"])


if __name__ == "__main__":
    unittest.main()
