"""Programs around stream captures, waits and copies (stream_cases.cc) do the same in a share as without: every
call has the same answer, and they end."""
import contextlib
import pathlib
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import harness  # pylint: disable=wrong-import-position

STREAM_CASES = harness.BUILD / "tests" / "stream_cases"
KERNELS = harness.BUILD / "tests" / "conformance_kernels.so"
MACHINE = 'dilation = 1\ndevices = [{ context_memory = "64MiB" }]\n'
STILL_S = 20  # for so long none of its kernels ends: it hangs


class StreamCases(unittest.TestCase):
    def end_of(self, process, progress, where):
        """What it wrote; fails when it stands still."""
        seen, since_s = None, time.monotonic()
        while process.poll() is None:
            now = progress.read_bytes()[:8] if progress.exists() else None
            if now != seen:
                seen, since_s = now, time.monotonic()
            elif time.monotonic() - since_s > STILL_S:
                self.fail(f"{where} it hangs")
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
        return process.communicate()

    def run_once(self, mode, rounds, share=None):
        """In a share with these terms, or without prorata. Answers how long it took, and what it wrote."""
        where = "bare" if share is None else "in a share"
        machine = harness.Machine(MACHINE)
        self.addCleanup(machine.close)
        command = [STREAM_CASES, mode, "--kernels", KERNELS, "--progress", machine.folder / "progress",
                   "--rounds", rounds]
        since_s = time.monotonic()
        if share is None:
            process = machine.start(command, machine.bare_environment())
        else:
            machine.start_agent()
            process = machine.start(machine.command(["--memory", "1GiB", *share], command))
        out, err = self.end_of(process, machine.folder / "progress", where)
        self.assertEqual(process.returncode, 0, f"{where}: {out} {err}")
        took_s = time.monotonic() - since_s
        machine.close()
        return took_s, out

    def run_mode(self, mode, rounds, share=("--compute-limit", "0.5")):
        """The same program without prorata and in a share. Answers how long each took."""
        return [self.run_once(mode, rounds, terms)[0] for terms in (None, share)]

    def test_work_beside_a_capture_is_known_to_be_done(self):
        # 13 kernels of 100 us a round, at half of the device.
        self.run_mode("work-beside-a-capture", 4000)

    def test_a_launch_does_not_invalidate_a_capture(self):
        self.run_mode("legacy-launch", 3000)

    def test_a_wait_does_not_invalidate_a_capture(self):
        self.run_mode("legacy-wait", 3000)

    def test_a_capture_that_is_lost_with_its_context_counts_no_more(self):
        self.run_mode("lost-with-its-context", 1500)

    def test_only_the_capture_of_a_destroyed_stream_is_invalid(self):
        self.run_mode("joined-stream-destroyed", 300)

    def test_legacy_work_is_never_fenced_behind_a_wait(self):
        self.run_mode("legacy-before-a-wait", 25000, ("--compute-limit", "0.9"))

    def test_what_waits_in_the_legacy_stream_is_not_charged(self):
        # Its kernels take 0.06 of the device.
        bare_s, share_s = self.run_mode("legacy-waits", 200, ("--compute-limit", "0.2"))
        self.assertLess(share_s, 1.5 * bare_s)

    def test_what_waits_for_a_host_function_is_not_charged(self):
        # The kernels of each take 0.05 of the device.
        for mode in ("legacy-host-function", "beside-a-host-function"):
            with self.subTest(mode):
                bare_s, share_s = self.run_mode(mode, 100, ("--compute-limit", "0.2"))
                self.assertLess(share_s, 1.5 * bare_s)

    def test_copies_from_the_host_are_not_charged(self):
        # Its kernels have 0.11 of the device, the copies before them nine times as much of the bus.
        bare_s, share_s = self.run_mode("long-copies", 60, ("--compute-limit", "0.2"))
        self.assertLess(share_s, 1.5 * bare_s)

    def test_who_leaves_a_call_by_a_jump_is_governed_as_before(self):
        # 500 kernels of 1 ms at 0.2 of the device.
        out_of_memory, rounds = 2, 500
        _, out = self.run_once("left-by-a-jump", rounds)
        self.assertEqual(out, "allocating: 0\n")
        share_s, out = self.run_once("left-by-a-jump", rounds, ("--compute-limit", "0.2"))
        self.assertEqual(out, f"allocating: {out_of_memory}\n")
        self.assertGreater(share_s, 0.9 * rounds * 0.001 / 0.2)

    def test_who_leaves_a_launch_by_a_jump_is_charged_for_what_it_runs(self):
        # 0.2 s of kernels, and then one of 1 ms in 21.
        bare_s, share_s = self.run_mode("left-by-a-jump-between-kernels", 100, ("--compute-limit", "0.2"))
        self.assertLess(share_s, 1.5 * bare_s)


if __name__ == "__main__":
    unittest.main()
