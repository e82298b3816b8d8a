"""The client library in a process, over the null driver, on a share that a fixture answers for."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD = Path(os.environ.get("PRORATA_BUILD_DIR", HERE.parents[1] / "build"))
UUID = "GPU-6e756c6c-0000-4000-8000-000000000001"  # bench/null_driver/null_driver.h
MIB = 1 << 20
LIMIT = 1024 * MIB
NO_DEVICE, OUT_OF_MEMORY, NOT_READY = 100, 2, 802


class OnFixture(unittest.TestCase):
    def setUp(self):
        for need in ("lib/libcuda.so.1", "null/libcuda.so.1", "tests/on_fixture"):
            if not (BUILD / need).exists():
                self.skipTest(f"{BUILD / need} is not built")
        scratch = tempfile.TemporaryDirectory(prefix="prorata-client-")
        self.addCleanup(scratch.cleanup)
        self.folder = scratch.name
        self.env = {k: v for k, v in os.environ.items()
                    if not k.startswith(("PRORATA_", "CUDA_", "LD_"))}
        self.env |= {"PRORATA_DRIVER_DIR": str(BUILD / "null"),
                     "GUEST_LIBRARY": str(BUILD / "lib/libcuda.so.1")}

    def guest(self, scenario, on_share=True, **env):
        command = [sys.executable, str(HERE / "guest.py"), scenario]
        if on_share:
            command = [str(BUILD / "tests/on_fixture"), self.folder, UUID, str(LIMIT), *command]
        done = subprocess.run(command, env=self.env | env, text=True, capture_output=True,
                              timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.stderr = done.stderr
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        self.usage = lines[1] if len(lines) > 1 else None
        return lines[0]

    def test_loading_does_nothing(self):
        self.assertEqual(self.guest("loading"), {"same": True, "driver_loaded": False})

    def test_without_a_share_everything_is_the_drivers(self):
        answer = self.guest("init", on_share=False)
        self.assertEqual(answer["result"], 0)
        self.assertEqual(len(self.stderr.splitlines()), 1, self.stderr)
        self.assertIn("PRORATA_SHARE is not set", self.stderr)

    def test_without_a_driver_there_is_no_device_and_one_line_says_why(self):
        answer = self.guest("init", on_share=False, PRORATA_DRIVER_DIR=self.folder)
        self.assertEqual(answer["result"], NO_DEVICE)
        self.assertEqual(len(self.stderr.splitlines()), 1, self.stderr)
        self.assertIn(self.folder, self.stderr)

    def test_a_share_that_is_not_there_is_named(self):
        missing = self.folder + "/missing"
        answer = self.guest("init", on_share=False, PRORATA_SHARE=missing)
        self.assertEqual(answer["result"], NOT_READY)
        self.assertEqual(len(self.stderr.splitlines()), 1, self.stderr)
        self.assertIn(missing, self.stderr)

    def test_an_agent_that_does_not_answer_fails_cuinit_in_two_seconds(self):
        limits = Path(self.folder, "limits")
        keep = ["sh", "-c", f"cp {limits} {limits}.kept"]
        subprocess.run([str(BUILD / "tests/on_fixture"), self.folder, UUID, str(LIMIT), *keep],
                       check=True, env=self.env)
        os.rename(f"{limits}.kept", limits)
        answer = self.guest("init", on_share=False, PRORATA_SHARE=self.folder)
        self.assertEqual(answer["result"], NOT_READY)
        self.assertLess(answer["seconds"], 120)
        self.assertGreater(answer["seconds"], 1.5)
        self.assertEqual(len(self.stderr.splitlines()), 1, self.stderr)

    def test_an_agent_that_is_only_busy_is_waited_for(self):
        # Programs could not start where the machine was so busy that the agent took over 2 s.
        answer = self.guest("init", ON_FIXTURE_WELCOME_MS="5000")
        self.assertEqual((answer["result"], self.stderr), (0, ""))
        self.assertGreater(answer["seconds"], 4)
        self.assertEqual(self.usage["joins"], 1, "asking anew only queues behind")

    def test_visible_devices_are_restored(self):
        self.assertIsNone(self.guest("init")["visible"])
        self.assertEqual(self.guest("init", CUDA_VISIBLE_DEVICES="0")["visible"], "0")

    def test_the_limit_holds_and_comes_back(self):
        answer = self.guest("memory")
        self.assertEqual(answer["count"], 8)
        self.assertEqual(answer["refusal"], OUT_OF_MEMORY)
        self.assertEqual(answer["small_when_full"], OUT_OF_MEMORY)
        self.assertEqual(answer["full"], [0, LIMIT])
        # One lies where the driver had a large block (it gives a freed address out again); the
        # other 99 share a slab.
        self.assertEqual(answer["after_small"], [LIMIT - 4 * MIB, LIMIT])
        self.assertEqual(answer["at_end"], [LIMIT, LIMIT])
        self.assertEqual(self.usage["used_bytes"], 0)

    def test_a_context_is_charged_once_and_takes_its_memory_with_it(self):
        answer = self.guest("overhead")
        self.assertEqual(answer["one"], [LIMIT - 100 * MIB, LIMIT])
        self.assertEqual(answer["two"], answer["one"])
        self.assertEqual(answer["end"], [LIMIT, LIMIT])
        self.assertEqual((self.usage["used_bytes"], self.usage["overhead_bytes"]), (0, 0))

    def test_a_context_that_does_not_fit_is_out_of_memory(self):
        self.assertEqual(self.guest("too_small"), {"result": OUT_OF_MEMORY, "active": 0})

    def test_a_context_that_another_thread_released_meanwhile_is_asked_for(self):
        # It was active when it was looked at, so nothing was reserved for retaining it.
        self.assertEqual(self.guest("too_small", NULL_RELEASED_AFTER_LOOKS="1"),
                         {"result": OUT_OF_MEMORY, "active": 0})
        self.assertEqual((self.usage["used_bytes"], self.usage["overhead_bytes"]), (0, 0))
        fits = self.guest("overhead", NULL_RELEASED_AFTER_LOOKS="1")
        self.assertEqual(fits["one"], [LIMIT - 100 * MIB, LIMIT])

    def test_a_pool_of_the_hosts_memory_is_free_of_charge(self):
        # An allocation above the limit from a pool of the device, or of a former pool's handle: refused.
        self.assertEqual(self.guest("pools"), {
            "1": [0, OUT_OF_MEMORY, 0, OUT_OF_MEMORY, True],
            "2": [0, 0, 0, 0, OUT_OF_MEMORY, True],
            "3": [0, 0, 0, 0, OUT_OF_MEMORY, True],
            "4": [0, 0, 0, 0, OUT_OF_MEMORY, True]})

    def test_however_many_pools_of_the_host_are_free_of_charge(self):
        # The 257th was taken for one of the device, and its allocations were refused.
        self.assertEqual(self.guest("many_host_pools"), [])

    def test_a_closed_lease_holds_launches_until_it_opens(self):
        self.holds("lease")

    def test_a_closed_lease_holds_decompression_until_it_opens(self):
        self.holds("lease_decompression")

    def holds(self, scenario):
        answer = self.guest(scenario)
        if answer["beats_ms"]:
            self.skipTest("the machine was too noisy: a heart that beats every 20 ms stood still for "
                          f"{answer['beats_ms']:.0f} ms and more each time")
        self.assertEqual((answer["blocked"], answer["went_on"]), (True, True))

    def test_an_unavailable_agent_stops_nobody(self):
        answer = self.guest("silent")
        self.assertEqual((answer["launched"], answer["allocated"]), (0, 0))
        self.assertGreater(answer["waited"], 0.055)  # since the last beat; it is silent after 60 ms

    def test_a_forked_child_is_left_alone_and_the_parent_goes_on(self):
        answer = self.guest("fork")
        self.assertEqual(answer["child"], {"total": 16 << 30, "threads": 1, "alloc": 0})
        self.assertEqual((answer["total"], answer["alloc"]), (LIMIT, 0))
        self.assertEqual(self.usage["joins"], 1)

    def test_lookups_find_our_forms_and_only_them(self):
        self.assertEqual(self.guest("lookups"), {
            "cuMemAlloc 12000 0": ["cuMemAlloc_v2"],
            "cuLaunchKernel 12000 0": ["cuLaunchKernel"],
            "cuLaunchKernel 12000 2": ["cuLaunchKernel_ptsz"],
            "cuGetProcAddress 11030 0": ["cuGetProcAddress"],
            "cuGetProcAddress 12000 0": ["cuGetProcAddress_v2"],
            "cuMemAlloc 99999 0": ["cuMemAlloc_v2"],
            "cuCtxGetCurrent 12000 0": "driver",
            "cuNoSuchThing 12000 0": "none 500"})

    def test_functions_that_the_spec_does_not_know_are_passed_on_and_counted(self):
        self.assertEqual(self.guest("unknown_lookups"), {"passed": [True, True, False]})
        self.assertEqual(self.usage["ungoverned_functions"], 2)

    def test_many_threads_leave_nothing_charged(self):
        self.assertEqual(self.guest("threads_hammer")["end"], [LIMIT, LIMIT])
        self.assertEqual(self.usage["used_bytes"], 0)


if __name__ == "__main__":
    unittest.main()
