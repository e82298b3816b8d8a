"""The pairs of tests of limits_suite (limits.h), each suite on a share of its own."""
import json
import re

import pytest

import harness

pytestmark = [pytest.mark.limits, pytest.mark.asan_ubsan, pytest.mark.tsan]

PROGRAM = harness.BUILD / "tests" / "limits_suite"
TIMEOUT_S = 240


class LimitsCase(harness.MachineTestCase):
    SHARE = ["--memory", "3GiB"]

    def run_suite(self, suite, test="*"):
        self.machine.start_agent()
        status, out, err = self.machine.call(
            self.machine.command([*self.SHARE, "--name", suite.lower()],
                                 [PROGRAM, f"--gtest_filter={suite}.{test}"]), TIMEOUT_S)
        print(out)
        self.assertEqual(status, 0, out[-12000:] + err[-4000:])
        ran = int(re.search(r"\[=+\] (\d+) tests? from \d+ test suites? ran", out)[1])
        self.assertGreater(ran, 0, f"{suite} has no test")
        if "[  PASSED  ] 0 tests" in out:
            self.skipTest(re.search(r"Skipped\n(.*)", out)[1])


class LimitsOfSeveral(LimitsCase):
    MACHINE_TOML = 2 * "[[devices]]\nmemory = \"4GiB\"\n"
    SHARE = ["--gpus", "2", "--memory", "1GiB"]

    def test_managed_limits(self):
        if harness.REAL_GPU:
            self.machine.start_agent()
            if len(self.machine.gpus()) < 2:
                self.skipTest("this machine has no second GPU")
            self.machine.kill_agent()
        self.run_suite("ManagedLimits")


class WhereFreedMemoryIsUsed(LimitsCase):
    """As it may be on a GPU: a pool counts what is freed behind work as used (docs/reports/gpu.md, Memory)."""
    MACHINE_TOML = 'broken_rules = ["freed-is-unused"]\n'

    def test_what_is_freed_behind_work_is_not_refused(self):
        self.run_suite("PoolLimits", "MemAllocAsyncGetsWhatIsFreedBehindWork")


class Limits(LimitsCase):
    # Code has a size, so that its charge can be judged.
    MACHINE_TOML = "[[devices]]\nmodule_memory = \"6MiB\"\nmulticast = true\n"

    def test_every_suite_has_a_method(self):
        methods = {name.removeprefix("test_").replace("_", "").lower()
                   for case in (Limits, LimitsOfSeveral) for name in dir(case)
                   if name.startswith("test_") and name.endswith("_limits")}
        status, out, err = self.machine.call([PROGRAM, "--gtest_list_tests"])
        self.assertEqual(status, 0, err)
        suites = re.findall(r"^(\w+)\.", out, re.M)
        self.assertEqual({suite.lower() for suite in suites}, methods)

    def test_context_limits(self):
        self.run_suite("ContextLimits")

    def test_external_limits(self):
        self.run_suite("ExternalLimits")

    def test_graph_limits(self):
        self.run_suite("GraphLimits")

    def test_code_limits(self):
        self.run_suite("CodeLimits")

    def test_lazy_code_limits(self):
        self.run_suite("LazyCodeLimits")

    def test_array_limits(self):
        self.run_suite("ArrayLimits")

    def test_linear_limits(self):
        self.run_suite("LinearLimits")

    def test_physical_limits(self):
        self.run_suite("PhysicalLimits")

    def test_pool_limits(self):
        self.run_suite("PoolLimits")

    def test_what_is_freed_behind_work_is_not_refused(self):
        # Not at its first try either: a refusal that the program never sees must not be reported.
        self.run_suite("PoolLimits", "MemAllocAsyncGetsWhatIsFreedBehindWork")
        status, out, err = self.machine.call(
            [harness.PRORATA, "events", "--all", "--no-follow", "--json"])
        self.assertEqual(status, 0, err)
        events = [json.loads(line)["event"] for line in out.splitlines()]
        self.assertIn("member_joined", events)
        self.assertNotIn("refusal", events)

    def test_multicast_limits(self):
        self.run_suite("MulticastLimits")

    def test_sparse_limits(self):
        self.run_suite("SparseLimits")

    def test_sharing_limits(self):
        self.run_suite("SharingLimits")
