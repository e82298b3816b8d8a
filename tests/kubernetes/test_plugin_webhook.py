"""Pods in the names of older systems, and bad ones, in a cluster without DRA: the webhook has them ask by the device
plugin's names, and their options and choices of GPUs are kept."""

import unittest

import pytest
from harness import GIB
from plugin import ASSIGNED, PluginTestCase
from webhook import WithWebhook, plain_pod

pytestmark = pytest.mark.alone
TWO_MODELS = """
[[devices]]
name = "Simulated V100"
memory = "16GiB"
[[devices]]
name = "Simulated A100"
memory = "16GiB"
"""


class PluginWebhook(WithWebhook, PluginTestCase):
    MACHINE_TOML = TWO_MODELS

    def share_of_container(self, name, container):
        return self.share_of(name, container)

    def assert_accounts(self):
        self.assert_as_assigned()

    def model_of(self, name):
        uuid = self.share_of(name)["devices"][0]["uuid"]
        return next(gpu["name"] for gpu in self.machine.gpus() if gpu["uuid"] == uuid)

    def test_a_part_of_the_memory_and_whole_gpus(self):
        self.cluster.apply(plain_pod("part", {"nvidia.com/gpumem-percentage": "25"}))
        self.cluster.wait_running("part")
        self.assertEqual(self.terms("part"), [4 * GIB, 0, 1])
        self.cluster.delete("pod", "part")
        self.cluster.apply(plain_pod("whole", {"tencent.com/vcuda-core": "200"}))
        self.cluster.wait_running("whole")
        self.assertEqual(self.terms("whole"), [16 * GIB, 1, 1])
        self.assertEqual(len(self.share_of("whole")["devices"]), 2)
        self.assert_as_assigned()

    def test_models_are_chosen(self):
        hami = {"nvidia.com/gpumem": "1024"}
        self.cluster.apply(
            plain_pod("a", hami, {"nvidia.com/use-gputype": "a100"}),
            plain_pod("b", hami, {"nvidia.com/nouse-gputype": "A100"}),
            plain_pod("c", labels={"sharedgpu/gpu_request": "0.2", "sharedgpu/gpu_limit": "1.0",
                                   "sharedgpu/gpu_model": "Simulated-A100"}),
            plain_pod("d", {"prorata.dev/gpu-memory": "4"}, {"prorata.dev/gpu-model": "V100"}),
            plain_pod("e", hami, {"nvidia.com/use-gputype": "H100"}),
        )  # fmt: skip
        for name in "abcd":
            self.cluster.wait_running(name)
        self.assertEqual([self.model_of(name)[-4:] for name in "abcd"], ["A100", "V100", "A100", "V100"])
        self.cluster.wait_until(lambda: self.pending_reason("e"), "a reason why pod e waits")
        self.assertIn("no GPUs of prorata that are as chosen and large enough for 1 GiB (of model H100)",
                      self.pending_reason("e"))  # fmt: skip
        self.assert_as_assigned()

    def test_options_are_kept_and_change_while_it_runs(self):
        limits = {"prorata.dev/gpu-memory": "8", "prorata.dev/gpu-compute": "20"}
        self.cluster.apply(plain_pod("a", limits, {"prorata.dev/compute-limit": "50", "prorata.dev/priority": "3"}))
        self.cluster.wait_running("a")
        self.assertEqual(self.terms("a"), [2 * GIB, 0.2, 0.5])
        self.assertEqual(self.share_of("a")["devices"][0]["priority"], 3)
        self.cluster.kubectl("annotate", "pod", "a", "--overwrite", "prorata.dev/compute-limit=70")
        self.cluster.wait_until(lambda: self.terms("a") == [2 * GIB, 0.2, 0.7], "a limit of 0.7")
        status, _, err = self.cluster.kubectl_try("annotate", "pod", "a", "--overwrite", "prorata.dev/priority=often")
        self.assertNotEqual(status, 0)
        self.assertIn("annotation prorata.dev/priority is 'often'", err)
        status, _, err = self.cluster.kubectl_try("annotate", "pod", "a", "--overwrite", f"{ASSIGNED}={{}}")
        self.assertNotEqual(status, 0)
        self.assertIn(f"annotation {ASSIGNED} says which GPUs the scheduler's extender gave the pod", err)

    def test_a_group_of_kubeshares_is_placed_together(self):
        labels = {"sharedgpu/gpu_request": "0.6", "sharedgpu/gpu_limit": "1.0", "sharedgpu/group_name": "train",
                  "sharedgpu/group_headcount": "2", "sharedgpu/group_threshold": "1.0"}  # fmt: skip
        self.cluster.apply(plain_pod("a", labels=labels))
        self.cluster.wait_until(lambda: "1 of 2 are there" in self.pending_reason("a"), "a pod that waits for another")
        self.cluster.apply(plain_pod("b", labels=labels))
        for name in "ab":
            self.cluster.wait_running(name)
        self.assert_as_assigned()

    def test_bad_pods_are_refused(self):
        own = {"prorata.dev/gpu-memory": "4"}
        privileged = plain_pod("a", own)
        privileged["spec"]["containers"][0]["securityContext"] = {"privileged": True}
        for made, says in (
            (plain_pod("a", {"nvidia.com/gpumem": "0"}), "container 'main' asks for 0 of nvidia.com/gpumem"),
            (plain_pod("a", {"nvidia.com/gpumem": "17000"}), "the cluster's largest GPU has 16 GiB"),
            (plain_pod("a", {"nvidia.com/gpumem": "1000", "nvidia.com/gpu": "2"}),
             "container 'main' asks for parts of 2 GPUs, and in a cluster without DRA it can have a part of one"),
            (plain_pod("a", {"prorata.dev/gpu-compute": "30"}), "container 'main' asks for prorata.dev/gpu-compute: 30 "
                                                                "without memory"),
            (plain_pod("a", own, {"prorata.dev/gpu-model": "A100,"}), "annotation prorata.dev/gpu-model is 'A100,'"),
            (plain_pod("a", own, {"prorata.dev/weight": "-1"}), "annotation prorata.dev/weight is '-1'"),
            (privileged, "container 'main' is privileged and would see all GPUs of its node"),
        ):  # fmt: skip
            with self.subTest(says):
                self.assertIn(says, self.refusal(made))
        self.assertEqual(self.cluster.get("pods")["items"], [])

    def test_a_copy_of_a_pod_that_runs_is_placed_anew(self):
        self.cluster.apply(plain_pod("a", {"nvidia.com/gpumem": "1024"}))
        self.cluster.wait_running("a")
        copy = self.cluster.pod("a")
        made = plain_pod("b", copy["spec"]["containers"][0]["resources"]["limits"], copy["metadata"]["annotations"])
        self.cluster.apply(made)
        self.cluster.wait_running("b")
        self.assert_as_assigned()


if __name__ == "__main__":
    unittest.main()
