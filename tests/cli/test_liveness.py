"""What may hang does not stop the agent: the driver (NVML), the disk. And one agent a device."""
import contextlib
import fcntl
import json
import os
import pathlib
import resource
import signal
import subprocess
import time
import unittest

import pytest

import harness
import quiet

pytestmark = pytest.mark.pairs

SIM_USAGE = harness.BUILD / "tests" / "sim_usage"
DILATION = 4
HANG_S = 5
SLOW_DISK_MS = 1500
NOBODY = 65534


class Case(harness.MachineTestCase):
    MACHINE_TOML = f"dilation = {DILATION}.0\n[[devices]]\nmemory = \"16GiB\"\n"

    def setUp(self):
        if harness.REAL_GPU:
            self.skipTest("about faults of the simulated GPU")
        super().setUp()

    @property
    def hang_file(self):
        return self.machine.folder / "sim" / "nvml-hangs"

    def hang(self):
        """From now on no call of NVML comes back to the agent."""
        self.hang_file.write_text("prorata")

    @contextlib.contextmanager
    def hanging(self):
        self.hang()
        try:
            yield
        finally:
            self.hang_file.unlink()

    def start_agent(self, *options):
        return self.machine.start_agent("--dilation", str(DILATION), *options)

    def start_busy(self, *share_options, seconds=60):
        load = self.machine.start_load(
            share_options, ["--seconds", seconds, "--kernel-us", 1000, "--announce",
                            "--dilation", DILATION])
        harness.read_event(load, "kernels")
        return load

    def busy_ns(self, usage):
        """{pid: its device time}, and the time, on the machine's clock."""
        usage.stdin.write("0\n")
        usage.stdin.flush()
        seen = json.loads(harness.read_line(usage))
        return seen["processes"], seen["now_ns"]

    def parts_over(self, seconds, programs):
        """Each program's part of the device time that they had together; and that time's part."""
        usage = self.machine.start([SIM_USAGE], stdin=subprocess.PIPE)
        harness.read_line(usage)
        before, begin_ns = self.busy_ns(usage)
        time.sleep(seconds)
        after, end_ns = self.busy_ns(usage)
        had = [after[str(p.pid)] - before[str(p.pid)] for p in programs]
        return [h / sum(had) for h in had], sum(had) / (end_ns - begin_ns)

    def events(self, kind):
        status, out, err = self.machine.call([harness.PRORATA, "events", "--json", "--no-follow"])
        self.assertEqual(status, 0, err)
        return [e for e in map(json.loads, out.splitlines()) if e["event"] == kind]

    def await_unavailable(self):
        return harness.wait_until(lambda: self.machine.gpus()[0]["driver_unresponsive_ms"],
                                  what="a driver that is known to be silent")


class DriverHangs(Case):
    def test_busy_shares_keep_their_parts(self):
        self.start_agent()
        programs = [self.start_busy("--name", name, "--memory", "4GiB", "--compute", "0.5")
                    for name in "ab"]
        time.sleep(1)
        with self.hanging():
            parts, use = self.parts_over(HANG_S, programs)
            self.assertGreater(self.machine.gpus()[0]["driver_unresponsive_ms"], 2000)
            status, out, _ = self.machine.call([harness.PRORATA, "gpus"])
            self.assertEqual(status, 0)
            self.assertIn("has not answered for", out)
        print(parts, use)
        for part in parts:
            self.assertAlmostEqual(part, 0.5, delta=0.03)
        self.assertGreater(use, 0.8)
        self.assertEqual(len(self.events("driver_slow")), 1)
        harness.wait_until(lambda: self.events("driver_slow_over"), what="driver_slow_over")
        self.assertEqual(self.machine.gpus()[0]["driver_unresponsive_ms"], 0)

    def test_while_an_audit_is_under_way_a_limit_holds(self):
        self.start_agent()
        program = self.start_busy("--name", "a", "--compute-limit", "0.3")
        with self.hanging():
            self.await_unavailable()  # the audit's call it is: once a second
            for _ in range(3):
                with quiet.Watch() as watch:
                    _, use = self.parts_over(3, [program])
                # A machine that stood still meanwhile, its simulated GPU did not.
                if watch.noise["late_max_us"] < quiet.MOST_LATE_US:
                    break
        self.assertAlmostEqual(use, 0.3, delta=0.03, msg=watch.figures)

    def test_programs_join(self):
        self.start_agent()
        with self.hanging():
            self.await_unavailable()
            begin_s = time.monotonic()
            report = self.machine.run_json(["--memory", "1GiB"],
                                           ["--kernels", 5, "--allocate", "128MiB"])
            self.assertLess(time.monotonic() - begin_s, 8)
            self.assertEqual(report["allocated_bytes"], 128 * harness.MIB)

    def test_at_the_agents_start(self):
        self.start_agent()
        program = self.start_busy("--name", "a", "--compute", "0.1", "--compute-limit", "0.3")
        self.machine.kill_agent()
        with self.hanging():
            log = open(self.machine.folder / "agent.log", "a")
            agent = self.machine.start([harness.PRORATA, "agent", "--dilation", DILATION],
                                       stdout=log, stderr=log)
            log.close()
            harness.wait_until(lambda: "has not answered yet" in self.machine.agent_log(),
                               what="a warning")
            _, use = self.parts_over(2, [program])
            self.assertGreater(use, 0.15, "it was stopped")
            self.assertLess(use, 0.3 + 0.09)
            self.assertIsNone(agent.poll())
        harness.wait_until(self.machine.agent_answers, what="the agent")
        self.assertEqual(len(self.machine.share("a")["members"]), 1)

    def test_an_agent_that_is_starting_is_not_called_absent(self):
        with self.hanging():
            agent = self.machine.start([harness.PRORATA, "agent"])
            harness.wait_until(lambda: "is starting" in self.machine.call([harness.PRORATA, "ps"])[2],
                               what="an agent that holds its folder")
            for command in (["ps"], ["gpus"], ["events", "--no-follow"], ["inspect", "x"], ["rm", "x"],
                            ["update", "x", "--memory", "1GiB"], ["debug", "trace"]):
                with self.subTest(command):
                    _, _, err = self.machine.call([harness.PRORATA, *command])
                    self.assertRegex(err, r"\Aprorata: the agent at '.*' does not listen: it is starting.*\n\Z")
            self.assertIsNone(agent.poll())

    def test_for_ever(self):
        agent = self.start_agent()
        self.hang()
        self.await_unavailable()
        begin_s = time.monotonic()
        agent.send_signal(signal.SIGTERM)
        self.assertEqual(agent.wait(harness.DEADLINE_S), 0)
        self.assertLess(time.monotonic() - begin_s, 5)
        self.assertIn("still does not answer", self.machine.agent_log())


class AnAgentThatDoesNotAnswer(Case):
    def test_commands_say_so_once_and_go_on_waiting(self):
        agent = self.start_agent()
        agent.send_signal(signal.SIGSTOP)
        self.addCleanup(agent.send_signal, signal.SIGCONT)
        commands = {("ps",): 0, ("gpus",): 0, ("rm", "x"): 1, ("update", "x", "--weight", "2"): 1,
                    ("events", "--no-follow"): 0, ("run", "--memory", "1GiB", "--", "true"): 0,
                    ("run", "--wait", "--memory", "1GiB", "--", "true"): 0}
        waiting = {command: self.machine.start([harness.PRORATA, *command]) for command in commands}
        for command, process in waiting.items():
            with self.subTest(command):
                self.assertRegex(harness.read_error(process, 30),
                                 rf"\Aprorata: the agent at '.*' \(process {agent.pid}\) does not "
                                 rf"answer; still waiting.*kill -CONT {agent.pid}.*\n\Z")
                self.assertIsNone(process.poll())
        agent.send_signal(signal.SIGCONT)
        for command, process in waiting.items():
            with self.subTest(command):
                _, err = process.communicate(timeout=harness.DEADLINE_S)
                self.assertEqual(process.returncode, commands[command], err)
                self.assertNotIn("does not answer", err)

    def test_who_waits_for_anothers_start_is_told_why(self):
        lock = open(self.machine.runtime_dir / "start.lock", "w", encoding="utf-8")
        self.addCleanup(lock.close)
        fcntl.flock(lock, fcntl.LOCK_EX)
        run = self.machine.start([harness.PRORATA, "run", "--memory", "1GiB", "--", "true"])
        self.assertRegex(harness.read_error(run, 30),
                         r"\Aprorata: no agent answers at '.*' yet; still waiting.*another prorata.*\n\Z")
        fcntl.flock(lock, fcntl.LOCK_UN)
        _, err = run.communicate(timeout=harness.DEADLINE_S)
        self.assertEqual((run.returncode, err), (0, ""))

    def test_it_listens_again_where_its_socket_was_removed(self):
        agent = self.start_agent()
        (self.machine.runtime_dir / "control").unlink()
        harness.wait_until(self.machine.agent_answers, 30, "an answer")
        self.assertEqual(self.machine.agent_pids(), [agent.pid])
        self.assertIn("was removed; the agent listens there again", self.machine.agent_log())


class OutOfDescriptors(Case):
    def test_a_share_is_refused_or_stays(self):
        """With any number of free ones: no share ends while the process that has it lives."""
        agent = self.start_agent()
        before = resource.prlimit(agent.pid, resource.RLIMIT_NOFILE)
        fds = {int(fd.name) for fd in pathlib.Path(f"/proc/{agent.pid}/fd").iterdir()}
        refused, running = 0, []
        for free in range(2, 10):
            # One is the connection of who asks.
            few = next(n for n in range(max(fds) + 99) if len(set(range(n)) - fds) == free)
            resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, (few, before[1]))
            run = self.machine.start(self.machine.command(
                ["--name", f"free-{free}", "--memory", "128MiB"], ["sh", "-c", "echo on; read x"]),
                stdin=subprocess.PIPE)
            line = run.stdout.readline()
            resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, before)
            if line:
                running.append(run)
                time.sleep(0.3)  # an agent that took it for dead would have ended it
                self.assertIsNotNone(self.machine.share(f"free-{free}"))
                run.stdin.close()
                run.wait(harness.DEADLINE_S)
            else:
                refused += 1
                self.assertEqual(run.wait(harness.DEADLINE_S), 1)
                self.assertRegex(run.stderr.read(), "Too many open files|no descriptors left")
            harness.wait_until(lambda: self.machine.ps() == [], what="the share's end")
        self.assertTrue(refused and running, (refused, running))


class SlowDisk(Case):
    def test_joining_waits_for_none(self):
        self.start_agent()
        load = ["--kernels", 1]
        begin_s = time.monotonic()
        self.machine.run_json(["--name", "fast"], load)
        fast_s = time.monotonic() - begin_s
        self.machine.kill_agent()
        self.start_agent("--slow-disk-ms", SLOW_DISK_MS)
        begin_s = time.monotonic()
        self.machine.run_json(["--name", "slow"], load)
        slow_s = time.monotonic() - begin_s
        # The share is on the disk before anybody hears of it; nothing after that waits.
        self.assertGreater(slow_s, SLOW_DISK_MS / 1000)
        self.assertLess(slow_s, fast_s + 1.6 * SLOW_DISK_MS / 1000)


class OneAgentADevice(Case):
    def start_second(self, **options):
        folder = self.machine.folder / "second"
        folder.mkdir(exist_ok=True)
        if "user" in options:
            os.chown(folder, options["user"], options["user"])
        return self.machine.start([harness.PRORATA, "agent"],
                                  environment={"PRORATA_DIR": str(folder)}, **options)

    def check_refused(self, first, second):
        _, err = second.communicate(timeout=harness.DEADLINE_S)
        self.assertEqual(second.returncode, 1, err)
        self.assertIn("GPU 0 (GPU-", err)
        self.assertIn("is shared out by another agent already", err)
        self.assertIn(f"process {first.pid} ('prorata') of user", err)
        self.assertIn(f"kill {first.pid}", err)

    def test_the_second_is_refused(self):
        first = self.start_agent()
        self.check_refused(first, self.start_second())

    @unittest.skipUnless(os.geteuid() == 0, "becomes another user")
    def test_the_second_of_another_user_is_refused(self):
        first = self.start_agent()
        for path in (self.machine.folder / "sim", *(self.machine.folder / "sim").iterdir()):
            path.chmod(0o777)
        self.check_refused(first, self.start_second(user=NOBODY, group=NOBODY))

    def test_a_killed_agent_holds_nothing(self):
        self.start_agent()
        self.machine.kill_agent()
        second = self.start_second()
        harness.wait_until(lambda: (self.machine.folder / "second" / "control").exists() or
                           second.poll() is not None, what="the second agent")
        self.assertIsNone(second.poll())

    def test_another_simulated_machine_is_another(self):
        self.start_agent()
        other = harness.Machine(self.MACHINE_TOML)
        self.addCleanup(other.close)
        other.start_agent()


if __name__ == "__main__":
    unittest.main()
