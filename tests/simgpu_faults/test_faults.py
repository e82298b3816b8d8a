"""Every fault that the machine's file can ask for (docs/reference/simulated-gpu.md), as programs meet it."""
import json
import pathlib
import shutil
import stat
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # pylint: disable=wrong-import-position

PROBER = pathlib.Path(__file__).resolve().parent / "driver.py"
MIB = harness.MIB
DEVICES = """
[[devices]]
memory = "1GiB"
context_memory = "64MiB"
[[devices]]
memory = "1GiB"
context_memory = "64MiB"
"""
ILLEGAL_ADDRESS = 700


def answers(timed):
    return [answer for _, answer, *_ in timed]


class Case(harness.MachineTestCase):
    FAULTS = ""

    def setUp(self):
        if harness.REAL_GPU:
            self.skipTest("about the simulated GPU")
        self.MACHINE_TOML = DEVICES + self.FAULTS  # pylint: disable=invalid-name
        super().setUp()

    def probe(self, steps, program=None):
        """The answers of a process that does these steps: a list."""
        return answers(self.probe_timed(steps, program))

    def probe_timed(self, steps, program=None):
        command = [program] if program else [sys.executable, PROBER]
        status, out, err = self.machine.call([*command, *steps.split()])
        self.assertEqual(status, 0, err)
        return json.loads(out.splitlines()[-1])

    def assert_answers(self, steps, wanted, program=None):
        names = steps.split()
        self.assertEqual(list(zip(names, self.probe(steps, program))),
                         list(zip(names, wanted.split())))

    def used(self):
        return harness.Nvml(self.machine).memory()[2]


class AllocationRefused(Case):
    FAULTS = """
[[faults]]
kind = "allocation-refused"
device = 0
nth = 3
count = 2
"""

    def test_nth_allocations_are_refused_and_those_after_are_not(self):
        self.assert_answers("init ctx alloc:1 alloc:1 alloc:1 alloc:1 alloc:1",
                            "SUCCESS SUCCESS SUCCESS SUCCESS OUT_OF_MEMORY OUT_OF_MEMORY SUCCESS")

    def test_another_device_has_none_of_it(self):
        self.assert_answers("init use:1 ctx" + 4 * " alloc:1", " ".join(["SUCCESS"] * 7))


class TooLarge(Case):
    FAULTS = """
[[faults]]
kind = "allocation-refused"
above = "16MiB"
"""

    def test_what_is_larger_is_always_refused(self):
        self.assert_answers("init ctx objects alloc:17 alloc:16 pool_alloc:17 pool_alloc:4 alloc:20",
                            "SUCCESS SUCCESS SUCCESS OUT_OF_MEMORY SUCCESS OUT_OF_MEMORY SUCCESS "
                            "OUT_OF_MEMORY")


class IllegalAddress(Case):
    FAULTS = """
[[faults]]
kind = "context-error"
error = "CUDA_ERROR_ILLEGAL_ADDRESS"
launch = 3
"""

    def test_it_is_seen_after_the_kernel_and_stays_until_the_process_ends(self):
        error = " ILLEGAL_ADDRESS"
        self.assert_answers(
            "init ctx objects alloc:8 launch:1 launch:1 sync hold launch:1 record release "
            "stream_sync stream_sync stream_query event_sync event_query sync launch:1 alloc:1 "
            "free:0 info pool_alloc:1 destroy ctx",
            " ".join(["SUCCESS"] * 11) + error * 11 + " SUCCESS" + error)

    def test_queued_work_is_gone_and_who_waits_hears_at_once(self):
        # An hour of kernels is queued behind it: who waited for them would be killed before.
        timed = self.probe_timed("init ctx objects hold launch:1 launch:1 launch:1 launch:3600000000 "
                                 "host record release event_sync told")
        self.assertEqual(timed[-2][1], "ILLEGAL_ADDRESS")
        # A host function is not called after an error, the older callback gets it.
        self.assertEqual(timed[-1][1], [f"callback {ILLEGAL_ADDRESS}"])

    def test_memory_is_free_when_the_process_is_gone_and_the_next_one_is_well(self):
        self.assert_answers("init ctx alloc:64 launch:1 launch:1 launch:1 sync",
                            "SUCCESS " * 6 + "ILLEGAL_ADDRESS")
        self.assertEqual(self.used(), 0)
        self.assert_answers("init ctx alloc:64 launch:1 sync", "SUCCESS " * 5)

    def test_another_process_on_the_device_goes_on(self):
        other = self.machine.start([sys.executable, PROBER, *"init ctx launch:1 sync wait launch:1 "
                                    "sync".split()], stdin=subprocess.PIPE)
        self.assertIn("ready", harness.read_line(other))
        self.assertEqual(self.probe("init ctx launch:1 launch:1 launch:1 sync")[-1],
                         "ILLEGAL_ADDRESS")
        out, _ = other.communicate("", timeout=harness.DEADLINE_S)
        self.assertEqual(answers(json.loads(out)), ["SUCCESS"] * 7)


class Assert(Case):
    FAULTS = """
[[faults]]
kind = "context-error"
error = "CUDA_ERROR_ASSERT"
"""

    def test_the_context_is_lost_and_another_can_be_made(self):
        self.assert_answers("init ctx alloc:8 launch:10 sync alloc:1 destroy ctx alloc:8 launch:10 "
                            "sync",
                            "SUCCESS SUCCESS SUCCESS SUCCESS ASSERT ASSERT SUCCESS SUCCESS SUCCESS "
                            "SUCCESS SUCCESS")


class OtherErrors(Case):
    def test_each_error_of_a_kernel_is_the_one_that_the_file_names(self):
        for error in ("ECC_UNCORRECTABLE", "LAUNCH_TIMEOUT", "LAUNCH_FAILED",
                      "HARDWARE_STACK_ERROR"):
            with self.subTest(error):
                fault = f'[[faults]]\nkind = "context-error"\nerror = "CUDA_ERROR_{error}"\n'
                machine = harness.Machine(DEVICES + fault)
                self.addCleanup(machine.close)
                status, out, err = machine.call(
                    [sys.executable, PROBER, *"init ctx launch:1 sync ctx".split()])
                self.assertEqual(status, 0, err)
                self.assertEqual(answers(json.loads(out)), ["SUCCESS"] * 3 + [error] * 2)

    def test_an_error_that_no_kernel_has_is_refused_with_its_place(self):
        fault = '[[faults]]\nkind = "context-error"\nerror = "CUDA_ERROR_NOT_FOUND"\n'
        machine = harness.Machine(DEVICES + fault)
        self.addCleanup(machine.close)
        _, out, err = machine.call([sys.executable, PROBER, "init"])
        self.assertEqual(json.loads(out)[0][1], "SYSTEM_NOT_READY")
        self.assertIn('faults[0].error: "CUDA_ERROR_NOT_FOUND" is not an error that a kernel', err)


class DeviceLost(Case):
    FAULTS = """
[[faults]]
kind = "device-lost"
device = 0
launch = 2
process = "loser"
"""

    def setUp(self):
        super().setUp()
        # A program whose file has the name: faults of others are not its own.
        self.loser = self.machine.folder / "loser"
        shutil.copy(pathlib.Path(sys.executable).resolve(), self.loser)
        self.loser.chmod(self.loser.stat().st_mode | stat.S_IXUSR)

    def lose(self, steps):
        status, out, err = self.machine.call(
            [self.loser, PROBER, *steps.split()],
            environment={"PYTHONHOME": f"{sys.base_prefix}:{sys.base_exec_prefix}"})
        self.assertEqual(status, 0, err)
        return answers(json.loads(out.splitlines()[-1]))

    def test_all_calls_of_all_processes_answer_and_nvml_says_it_is_lost(self):
        other = self.machine.start(
            [sys.executable, PROBER, *("init ctx objects alloc:8 launch:3600000000 record wait "
                                       "event_sync sync alloc:1 stream_query").split()],
            stdin=subprocess.PIPE)
        self.assertIn("ready", harness.read_line(other))
        lost = self.lose("init ctx alloc:8 launch:10 sync launch:10 sync alloc:1 info destroy ctx")
        self.assertEqual(lost, ["SUCCESS"] * 6 + ["UNKNOWN"] * 3 + ["SUCCESS", "UNKNOWN"])
        out, err = other.communicate("", timeout=harness.DEADLINE_S)
        self.assertEqual(answers(json.loads(out)), ["SUCCESS"] * 7 + ["UNKNOWN"] * 4, err)
        with self.assertRaisesRegex(RuntimeError, "NVML error 15"):  # NVML_ERROR_GPU_IS_LOST
            harness.Nvml(self.machine)

    def test_the_other_device_and_other_programs_launches_are_well(self):
        self.assert_answers("init ctx launch:1 launch:1 launch:1 sync", "SUCCESS " * 6)
        self.assertEqual(self.lose("init ctx launch:1 launch:1 sync")[-1], "UNKNOWN")
        self.assert_answers("init use:1 ctx launch:1 launch:1 launch:1 sync", "SUCCESS " * 7)


class Slow(Case):
    FAULTS = """
[[faults]]
kind = "slow"
device = 0
factor = 10
nth_process = 2
"""

    def test_the_second_process_is_so_many_times_as_slow(self):
        # By the device's own clock: how late this machine is does not matter.
        steps = "init ctx objects stamped stamp:20000 stream_sync times"
        for wanted in (20, 200, 20):
            (begin, end), = self.probe(steps)[-1]
            self.assertAlmostEqual(end - begin, wanted, places=3)


class Stall(Case):
    FAULTS = """
[[faults]]
kind = "stall"
device = 0
launch = 2
for_ms = 300
"""

    def test_a_launch_waits_until_the_device_goes_on(self):
        timed = self.probe_timed("init ctx launch:10 sync launch:10 sync launch:10 sync")
        self.assertEqual(answers(timed), ["SUCCESS"] * 8)
        self.assertGreaterEqual(timed[5][3] - timed[4][2], 299)

    def test_it_stalls_once(self):
        # The third kernel is queued before the second may begin: the device's own clock says whether
        # it came right behind.
        said = self.probe("init ctx objects stamped stamp:10 stream_sync hold stamp:10 stamp:10 "
                          "release stream_sync times")
        _, second, third = said[-1]
        self.assertAlmostEqual(third[0], second[1], places=3)


class Hang(Case):
    FAULTS = """
[[faults]]
kind = "hang"
launch = 2
for_ms = 1000
"""

    def test_the_launch_returns_late_and_so_does_a_query_beside_it(self):
        timed = self.probe_timed("init ctx objects record launch:1 beside:1 launch:1 sync")
        self.assertEqual([answer for step, answer, *_ in timed if not step.startswith("beside")],
                         ["SUCCESS"] * 7)
        took_ms = {step: end - begin for step, _, begin, end in timed}
        self.assertGreaterEqual(took_ms["beside:1"], 1000)
        self.assertGreater(timed[5][1], 0.5, "the longest query")


class LateLaunch(Case):
    FAULTS = Hang.FAULTS.replace("hang", "late-launch")

    def test_the_launch_returns_late_and_a_query_beside_it_does_not(self):
        timed = self.probe_timed("init ctx objects record launch:1 beside:1 launch:1 sync")
        took_ms = {step: end - begin for step, _, begin, end in timed}
        self.assertGreaterEqual(took_ms["beside:1"], 1000)
        self.assertLess(timed[5][1], 0.5, "the longest query")


class BlockingLaunches(Case):
    def test_a_launch_returns_when_its_kernel_has_ended(self):
        for blocking in ("1", "0"):
            status, out, err = self.machine.call(
                [sys.executable, PROBER, *"init ctx objects launch:1 launch:2000000 stream_query".split()],
                environment={"CUDA_LAUNCH_BLOCKING": blocking})
            self.assertEqual(status, 0, err)
            self.assertEqual(answers(json.loads(out))[-1], "SUCCESS" if blocking == "1" else "NOT_READY")


class PlaceholderFill(Case):
    """cuDNN (9.x) records the fills of a plan before their memory is known, and sets it later."""

    def test_a_placeholder_is_refused_in_a_stream_and_taken_by_a_capture(self):
        self.assert_answers(
            "init ctx objects alloc:1 fill:0x10000 capture fill:0x10000 captured aim replay stream_sync",
            "SUCCESS SUCCESS SUCCESS SUCCESS INVALID_VALUE SUCCESS SUCCESS SUCCESS SUCCESS SUCCESS "
            "SUCCESS")

    def test_a_graph_that_fills_a_placeholder_faults_when_it_runs(self):
        self.assert_answers(
            "init ctx objects capture fill:0x10000 captured replay stream_sync alloc:1",
            "SUCCESS SUCCESS SUCCESS SUCCESS SUCCESS SUCCESS SUCCESS ILLEGAL_ADDRESS "
            "ILLEGAL_ADDRESS")


class InitFails(Case):
    FAULTS = """
[[faults]]
kind = "init-fails"
error = "CUDA_ERROR_NO_DEVICE"
nth_process = 2
count = 2
"""

    def test_the_second_process_fails_twice_and_then_starts(self):
        self.assert_answers("init ctx", "SUCCESS SUCCESS")
        self.assert_answers("init ctx init init ctx alloc:1",
                            "NO_DEVICE NOT_INITIALIZED NO_DEVICE SUCCESS SUCCESS SUCCESS")
        self.assert_answers("init ctx", "SUCCESS SUCCESS")
