"""gpu-facts measures what is there: on the simulated GPU it finds the machine's configuration."""
import json
import unittest

import pytest

import harness
import quiet

pytestmark = [pytest.mark.alone, pytest.mark.gpu]

GPU_FACTS = harness.BUILD / "bin" / "gpu-facts"
SECTIONS = {"context_memory", "allocation", "pool", "events", "launches", "kernel_gap", "time_slice",
            "copies"}
# sim/core/config.h, DeviceConfig: what the simulated GPU is made of by default.
CONTEXT_BYTES = 512 * harness.MIB
SLAB_BYTES = 2 * harness.MIB
POOL_CHUNK_BYTES = 32 * harness.MIB
TIME_SLICE_US = 2000
SWITCH_COST_US = 100


class FactsTest(unittest.TestCase):
    MACHINE_TOML = None

    def setUp(self):
        for path in [GPU_FACTS] + ([] if harness.REAL_GPU else [harness.SIM_DIR / "libcuda.so.1"]):
            if not path.exists():
                self.skipTest(f"{path} is not built")
        self.machine = harness.Machine(self.MACHINE_TOML)
        self.addCleanup(self.machine.close)

    def facts(self, *options):
        status, out, err = self.machine.call([GPU_FACTS, *options], timeout_s=600)
        self.assertEqual(status, 0, err + out)
        return json.loads(out)

    def assert_figure(self, figure, unit):
        self.assertEqual(figure["unit"], unit)
        self.assertGreater(figure["samples"], 0, figure)
        self.assertLessEqual(figure["min"], figure["p10"])
        self.assertLessEqual(figure["p10"], figure["median"])
        self.assertLessEqual(figure["median"], figure["p90"])


class EverySubject(FactsTest):
    def test_is_measured_with_unit_samples_and_spread(self):
        with quiet.Watch() as watch:
            facts = self.facts("--seconds", "500")  # a busy machine takes longer, and leaves none out
        self.assertEqual(set(facts), SECTIONS | {"device", "seconds"})
        self.assertEqual(facts["device"]["simulated"], not harness.REAL_GPU)
        self.assertRegex(facts["device"]["uuid"], r"^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
        try:
            self.check_figures(facts)
        except AssertionError as error:  # held up, it may find nothing pending, or no turn to its end
            watch.judge(self, False, str(error))
        watch.judge(self, facts["seconds"] < 70, f"all of it took {facts['seconds']} s")

    def check_figures(self, facts):
        for name in ("record", "record_with_timing", "query_done", "query_pending",
                     "synchronize_done"):
            self.assert_figure(facts["events"][name], "ns")
        self.assert_figure(facts["launches"]["launch"], "ns")
        self.assert_figure(facts["launches"]["round_trip"], "us")
        self.assert_figure(facts["kernel_gap"]["one_block"], "ns")
        for name in ("run", "gap", "turn"):
            self.assert_figure(facts["time_slice"][name], "us")
        for name in ("to_device", "to_host", "on_device"):
            self.assert_figure(facts["copies"][name], "GB/s")
        self.assert_figure(facts["copies"]["overlap"]["together_to_longer"], "ratio")


class Simulated(FactsTest):
    def setUp(self):
        if harness.REAL_GPU:
            self.skipTest("compares with the simulated GPU's configuration")
        super().setUp()

    def test_a_context_takes_what_the_machine_says(self):
        context = self.facts("--only", "context_memory")["context_memory"]["context"]
        for name in ("by_device", "by_process"):
            self.assert_figure(context[name], "bytes")
            self.assertEqual(context[name]["min"], CONTEXT_BYTES, name)
            self.assertEqual(context[name]["p90"], CONTEXT_BYTES, name)

    def test_memory_is_handed_out_in_slabs_that_small_allocations_share(self):
        allocation = self.facts("--only", "allocation")["allocation"]
        # Absent where the driver has no virtual memory management.
        self.assertEqual(allocation.get("vmm_granularity", SLAB_BYTES), SLAB_BYTES)
        for size in allocation["sizes"]:
            slabs = -(-size["asked"] // SLAB_BYTES)
            self.assertEqual(size["first"], slabs * SLAB_BYTES, size)
            self.assertEqual(size["lost_together"] % SLAB_BYTES, 0, size)
            self.assertGreaterEqual(size["lost_together"], size["asked"] * size["count"])
        smallest = allocation["sizes"][0]
        self.assertEqual(smallest["lost_together"], SLAB_BYTES, "16 single bytes share a slab")

    def test_a_pool_grows_by_its_chunk(self):
        pool = self.facts("--only", "pool")["pool"]
        for size in pool["sizes"]:
            self.assert_figure(size["step"], "bytes")
            chunks = -(-size["asked"] // POOL_CHUNK_BYTES)
            self.assertEqual(size["step"]["min"], chunks * POOL_CHUNK_BYTES, size)


class TimeSlice(FactsTest):
    # Noise of the machine weighs a tenth: a slice then takes 20 ms of real time.
    MACHINE_TOML = "dilation = 10.0\n"

    def test_is_found_within_a_factor_of_two(self):
        if harness.REAL_GPU:
            self.skipTest("compares with the simulated GPU's configuration")
        with quiet.Watch() as watch:
            facts = self.facts("--only", "time_slice", "--slice-seconds", "2")["time_slice"]
        # Noise cuts turns short, but never a switch: that part is judged in any case.
        if facts["gap"]["samples"]:
            self.assertGreaterEqual(facts["gap"]["min"], SWITCH_COST_US * 0.99, facts)
        well = (facts["turn"]["samples"] > 10 and
                TIME_SLICE_US / 2 < facts["turn"]["median"] < (TIME_SLICE_US + SWITCH_COST_US) * 2)
        watch.judge(self, well, f"{facts}")


if __name__ == "__main__":
    unittest.main()
