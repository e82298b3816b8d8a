"""`prorata debug trace`: what a GPU did, as Perfetto and Chrome open it."""
import collections
import json
import os
import re
import signal
import time
import unittest

import pytest

import harness

BUSY = ["--kernel-us", "1000", "--seconds", "3600"]
# How long is traced, and what is judged: long enough for two hundred slices.
SECONDS = 3
HELD = {"runs", "drains", "stalled"}


class Trace:
    """A trace as a reader of the Trace Event Format sees it; what it may not contain fails the test."""

    def __init__(self, test, text):
        self.whole = json.loads(text)
        self.tracks = {}     # (pid, tid): name
        self.processes = {}  # pid: name
        self.slices = collections.defaultdict(list)  # (pid, track): [(begin, end, name, args)]
        self.instants = collections.defaultdict(list)
        self.counters = collections.defaultdict(list)
        for event in self.whole["traceEvents"]:
            if event["ph"] == "M" and event["name"] == "thread_name":
                self.tracks[event["pid"], event["tid"]] = event["args"]["name"]
            elif event["ph"] == "M" and event["name"] == "process_name":
                self.processes[event["pid"]] = event["args"]["name"]
        for event in self.whole["traceEvents"]:
            if event["ph"] == "M":
                continue
            test.assertIn(event["pid"], self.processes)
            track = event["pid"], self.tracks[event["pid"], event["tid"]]
            test.assertGreaterEqual(event["ts"], 0)
            if event["ph"] == "X":
                test.assertGreater(event["dur"], 0, event)
                self.slices[track].append(
                    (event["ts"], event["ts"] + event["dur"], event["name"], event["args"]))
            elif event["ph"] == "i":
                self.instants[track].append((event["ts"], event["name"]))
            else:
                test.assertEqual(event["ph"], "C", event)
                self.counters[event["pid"], event["name"]].append(
                    (event["ts"], list(event["args"].values())[0]))
        for track, slices in self.slices.items():
            slices.sort()
            for before, after in zip(slices, slices[1:]):
                test.assertLessEqual(before[1], after[0], f"two slices at once on {track}")

    def seconds(self, share, names, pid=1):
        return sum(end - begin for begin, end, name, _ in self.slices[pid, share]
                   if name in names) / 1e6

    def of(self, share, names, pid=1):
        return [one for one in self.slices[pid, share] if one[2] in names]


class TraceCase(harness.MachineTestCase):
    DILATION = 1

    def setUp(self):
        super().setUp()
        self.agent = self.machine.start_agent("--dilation", str(self.DILATION))
        self.file = self.machine.folder / "trace.json"

    def start_busy(self, **shares):
        for name, options in shares.items():
            self.machine.start_load(["--name", name, "--memory", "1GiB", *options], BUSY)

        def all_ran():
            found = {share["name"]: share["devices"] for share in self.machine.ps()}
            return set(shares) <= set(found) and all(
                on["busy_time_ns"] > 0 for name in shares for on in found[name])
        harness.wait_until(all_ran, what="kernels of all programs")

    def command(self, *options):
        return [harness.PRORATA, "debug", "trace", *options]

    def trace(self, *options):
        status, out, err = self.machine.call(self.command(*options))
        self.assertEqual(status, 0, err)
        return Trace(self, out), err

    def wait_s(self, seconds):
        """Until the agent's charges say that so much time has passed on a device in use."""
        def charged():
            return sum(on["device_time_ns"] for s in self.machine.ps() for on in s["devices"]) / 1e9
        begin = charged()
        harness.wait_until(lambda: charged() > begin + seconds, what=f"{seconds} s of use")


# Who waits for what is told in parts of time. Beside other tests programs wait for a processor more than for each other,
# so the clock is slow.
@pytest.mark.pairs
class WhoRanAndWhy(TraceCase):
    DILATION = 4
    MACHINE_TOML = f"dilation = {DILATION}\n"

    def test_two_busy_shares_and_a_limited_one(self):
        self.start_busy(a=["--compute", "0.2"], b=["--compute", "0.2"],
                        limited=["--compute-limit", "0.1"])
        before = {s["name"]: s["devices"][0]["device_time_ns"] for s in self.machine.ps()}
        self.wait_s(SECONDS)
        charged = {s["name"]: (s["devices"][0]["device_time_ns"] - before[s["name"]]) / 1e9
                   for s in self.machine.ps()}
        trace, err = self.trace("--seconds", str(SECONDS))
        self.assertNotIn("missing", err)
        self.assertIn("GPU 0: ", trace.processes[1])

        # One at a time: no two slices of "runs" overlap.
        runs = sorted(one for name in charged for one in trace.of(name, {"runs"}))
        for one, other in zip(runs, runs[1:]):
            self.assertLessEqual(one[1], other[0] + 1, "two shares ran at once")
        # On a busy machine programs that want the GPU may all be kept from a processor for a moment.
        self.assertGreater(trace.seconds("how it is shared", {"scheduled"}), 0.8 * SECONDS)
        # The two busy ones alternate, and wait for their slices; the third waits for its limit.
        for name in ("a", "b"):
            self.assertGreater(len(trace.of(name, {"runs"})), 20)
            self.assertGreater(trace.seconds(name, {"waits: other shares", "waits: a drain"}), 0.5)
            self.assertEqual(trace.seconds(name, {"waits: at its limit"}), 0)
        self.assertGreater(trace.seconds("limited", {"waits: at its limit"}), 0.3 * SECONDS)
        self.assertLess(trace.seconds("limited", HELD), 0.2 * SECONDS)
        held = [args["limit_holds_until_us"] - begin
                for begin, _, _, args in trace.of("limited", {"waits: at its limit"})
                if "limit_holds_until_us" in args]
        self.assertTrue(any(us > 1000 for us in held), "until when is told")
        self.assertTrue(any(name == "revoked" for _, name in trace.instants[1, "limited"]))

        # While somebody waits a share is charged from its grant until it has drained, so those slices
        # are its GPU time: but for what a drain and the slice after it have in common, which they divide,
        # and for the two windows, which are not quite the same.
        for name, seconds in charged.items():
            held = trace.seconds(name, HELD)
            self.assertAlmostEqual(held, seconds, delta=0.1 * SECONDS, msg=name)
            told = sum(args["charged_ms"] for *_, args in trace.slices[1, name]
                       if "charged_ms" in args) / 1e3
            self.assertAlmostEqual(told, seconds, delta=0.1 * SECONDS, msg=name)
        shares = [value for (pid, name), values in trace.counters.items()
                  if name == "GPU time of limited, %" for _, value in values]
        self.assertGreater(len(shares), 10 * SECONDS / 2)
        self.assertLess(sum(shares) / len(shares), 20)
        self.assertTrue(trace.counters[1, "lag of a, ms"])

    def test_a_higher_priority(self):
        self.start_busy(low=[], high=["--priority", "5", "--compute-limit", "0.5"])
        self.wait_s(1)
        trace, _ = self.trace("--seconds", "1")
        self.assertGreater(trace.seconds("low", {"waits: higher priority"}), 0.2)
        self.assertEqual(trace.seconds("high", {"waits: higher priority"}), 0)

    def test_a_share_alone_runs_freely(self):
        self.start_busy(alone=[])
        self.wait_s(1)  # of a share alone the agent sees ten times a second what it does
        trace, _ = self.trace("--seconds", "0.4")
        self.assertAlmostEqual(trace.seconds("alone", {"runs freely"}), 0.4, delta=0.001)
        self.assertEqual([name for *_, name, _ in trace.slices[1, "how it is shared"]], ["free"])

    def test_a_name_that_is_used_again(self):
        for _ in range(2):
            self.machine.run_json(["--name", "x", "--memory", "1GiB"],
                                  ["--kernel-us", "1000", "--seconds", "1"])
            harness.wait_until(lambda: not self.machine.ps(), what="the end of the share")
        trace, _ = self.trace("--seconds", "60")
        self.assertEqual(sorted(trace.tracks.values()), ["how it is shared", "x", "x (2)"])
        for track in ("x", "x (2)"):
            names = [name for _, name in trace.instants[1, track]]
            self.assertEqual((names[0], names[-1]), ("share begins", "share ends"), names)
            self.assertIn("member_joined", names)
            # Of a share alone the agent sees ten times a second what it does.
            self.assertGreater(trace.seconds(track, {"runs freely"}), 0)


class HowFarItReaches(TraceCase):
    def test_a_young_agent_says_since_when(self):
        trace, err = self.trace("--seconds", "3600")
        self.assertRegex(err, r"^prorata: GPU 0: the trace has the last [\d.]+ s, not 3600\.0 s: this "
                              r"agent started then\n$")
        about = trace.whole["otherData"]["gpu 0"]
        self.assertEqual(about["recorded_since_us"], 0)

    def test_an_agent_after_another(self):
        self.start_busy(a=[], b=["--compute", "0.5"])
        self.machine.kill_agent()
        self.machine.start_agent()
        self.wait_s(0.5)
        trace, err = self.trace("--seconds", "600")
        self.assertIn("this agent started then", err)
        self.assertGreater(trace.seconds("a", {"runs"}), 0)
        self.assertGreater(trace.seconds("b", {"runs"}), 0)


    def test_an_agent_that_was_stopped(self):
        self.start_busy(a=["--compute", "0.5"], b=[])
        self.agent.send_signal(signal.SIGSTOP)
        time.sleep(0.3)  # five times what loses the heartbeat
        self.agent.send_signal(signal.SIGCONT)

        def told():
            trace, _ = self.trace("--seconds", "60")
            names = [name for _, name in trace.instants[1, "how it is shared"]]
            return "agent was unavailable: leases begin anew" in names
        harness.wait_until(told, what="the outage in the trace")


class TwoGpus(TraceCase):
    MACHINE_TOML = "[[devices]]\n[[devices]]\n"

    def test_a_process_for_each(self):
        self.start_busy(one=["--gpu", "1"])
        self.wait_s(1)
        trace, _ = self.trace("--seconds", "0.2")
        self.assertEqual({pid: name[:6] for pid, name in trace.processes.items()},
                         {1: "GPU 0:", 2: "GPU 1:"})
        self.assertAlmostEqual(trace.seconds("one", {"runs freely"}, pid=2), 0.2, delta=0.001)
        self.assertEqual(trace.tracks, {(1, 1): "how it is shared", (2, 1): "how it is shared",
                                        (2, 2): "one"})
        uuid = self.machine.gpus()[1]["uuid"]
        for gpu in ("1", uuid):
            only, _ = self.trace("--seconds", "0.2", "--gpu", gpu)
            self.assertEqual(list(only.processes), [2])


    def test_a_gang_waits_for_all_its_gpus(self):
        self.start_busy(beside=["--gpu", "1", "--compute", "0.5"])
        for device in (0, 1):  # two programs of one share: each has work on one of its GPUs
            options = [*BUSY, "--device", str(device)]
            if device == 0:
                self.machine.start_load(["--name", "gang", "--gpu", "0,1", "--gang", "always",
                                         "--memory", "1GiB"], options)
                share = harness.wait_until(lambda: self.machine.share("gang"), what="the share")
            else:
                self.machine.start([harness.GPULOAD, *options], {
                    "PRORATA_SHARE": share["directory"], "LD_LIBRARY_PATH": str(harness.LIB_DIR),
                    "LD_PRELOAD": str(harness.LIB_DIR / "libcuda.so.1")})

        def both_ran():
            gang = next(s for s in self.machine.ps() if s["name"] == "gang")
            return all(on["busy_time_ns"] > 5e8 for on in gang["devices"])
        harness.wait_until(both_ran, what="kernels of the gang on both GPUs")
        trace, _ = self.trace("--seconds", "0.5")
        for pid in (1, 2):
            self.assertTrue(any(args.get("gang") for *_, args in trace.slices[pid, "gang"]))
        # GPU 0 is free for it, and it waits there until it can run on GPU 1, too.
        waits = trace.seconds("gang", {"waits: its other GPUs", "waits: other shares", "drains"}, pid=1)
        self.assertGreater(waits, 0.05)
        self.assertGreater(trace.seconds("gang", {"waits: its other GPUs"}, pid=1), 0)


class WhereItGoes(TraceCase):
    def test_a_file(self):
        status, out, err = self.machine.call(self.command("--seconds", "0.001", "-o", self.file))
        self.assertEqual((status, out), (0, ""))
        self.assertEqual(err, f"prorata: wrote {self.file}; open it at "
                              "https://ui.perfetto.dev\n")
        Trace(self, self.file.read_text())

    def test_a_terminal_gets_a_file_in_this_folder(self):
        main, other = os.openpty()
        folder = self.machine.folder / "here"
        folder.mkdir()
        try:
            status, _, err = self.machine.call(self.command("--seconds", "0.1"), stdout=other,
                                               cwd=folder)
        finally:
            os.close(main)
            os.close(other)
        self.assertEqual(status, 0, err)
        made, = folder.iterdir()
        self.assertRegex(made.name, r"^prorata-trace-\d{8}-\d{6}\.json$")
        self.assertIn(f"wrote {made.name};", err)
        Trace(self, made.read_text())

    def refused(self, status, *options):
        got, out, err = self.machine.call([harness.PRORATA, "debug", *options])
        self.assertEqual((got, out, err.count("\n")), (status, "", 1), err)
        self.assertTrue(err.startswith("prorata: "), err)
        return err

    def test_what_cannot_be_written(self):
        err = self.refused(1, "trace", "-o", "/dev/full")
        self.assertRegex(err, r"cannot write the trace to '/dev/full': No space left on device; 0 of "
                              r"its \d+ bytes were written; write it elsewhere with --output")
        err = self.refused(1, "trace", "-o", self.machine.folder / "no" / "such")
        self.assertIn("No such file or directory; name another file with --output", err)
        self.assertIn("Is a directory", self.refused(1, "trace", "-o", self.machine.folder))
        with open("/dev/full", "w", encoding="utf-8") as full:
            status, _, err = self.machine.call(self.command(), stdout=full)
        self.assertEqual(status, 1)
        self.assertIn("cannot write the trace to 'standard output': No space left", err)

    def test_a_full_disk_leaves_no_half_a_trace(self):
        def small_files():
            import resource  # pylint: disable=import-outside-toplevel
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        status, _, err = self.machine.call(self.command("-o", self.file), preexec_fn=small_files)
        self.assertEqual(status, 1)
        self.assertRegex(err, r": File too large; 100 of its \d+ bytes were written, and are removed "
                              r"again;")
        self.assertFalse(self.file.exists())

    def test_bad_arguments(self):
        for seconds in ("0", "-1", "3601", "nan", "x", "1s"):
            self.assertIn(f"'{seconds}' is not a number of seconds",
                          self.refused(2, "trace", f"--seconds={seconds}"))
        self.assertIn("'7'", self.refused(1, "trace", "--gpu", "7"))
        self.assertIn("`prorata gpus`", self.refused(1, "trace", "--gpu", "GPU-x"))
        self.assertIn("--seconds", self.refused(2, "trace", "--seconds="))
        self.assertIn("nonsense", self.refused(2, "nonsense"))
        self.assertIn("nonsense", self.refused(2, "trace", "nonsense"))

    def test_debug_alone_is_its_help(self):
        status, out, err = self.machine.call([harness.PRORATA, "debug"])
        self.assertEqual((status, err), (0, ""))
        self.assertIn("Usage: prorata debug", out)
        self.assertRegex(out, r"\n  trace +Write which shares ran")

    def test_without_an_agent(self):
        self.machine.kill_agent()
        self.assertIn("no agent runs", self.refused(1, "trace"))


@unittest.skipIf(os.geteuid() != 0, "only root can be another user")
class OtherUsers(TraceCase):
    def test_no_more_than_ps_shows(self):
        """Who ran and who waited is for all; what a share is owed, for those who may use it."""
        self.start_busy(mine=["--compute", "0.3"], allowed=["--allow-users", "1234"])
        self.wait_s(0.5)
        status, out, err = self.machine.call(self.command("--seconds", "0.4"), user=1234)
        self.assertEqual(status, 0, err)
        trace = Trace(self, out)
        self.assertGreater(trace.seconds("mine", {"runs"}), 0)
        counters = {re.sub(r" of .*", "", name) + " of " + share
                    for _, name in trace.counters for share in ("mine", "allowed")
                    if f"of {share}," in name}
        self.assertEqual(counters, {"GPU time of mine", "GPU time of allowed", "lag of allowed"})
        self.assertFalse([args for *_, args in trace.slices[1, "mine"] if "lag_begin_ms" in args])


if __name__ == "__main__":
    unittest.main()
