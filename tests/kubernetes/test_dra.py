"""Pods that share GPUs by claims: a real Kubernetes, the simulated GPU, prorata's DRA driver."""

import json
import unittest

import harness
import pytest
from cluster import NODE
from cluster_case import CONTEXT
from dra import CLASS, DraTestCase, claim, pod, template
from harness import GIB

pytestmark = pytest.mark.alone
SIZE = {"memory": "8Gi", "compute": "30"}


class OneGpu(DraTestCase):
    @pytest.mark.main_flow
    def test_two_pods_share_and_the_third_waits_for_one_to_leave(self):
        self.cluster.apply(template("share", SIZE), pod("a", "share"), pod("b", "share"))
        self.cluster.wait_running("a", "b")
        for name in ("a", "b"):
            seen = self.allocated(name)
            self.assertEqual(seen["memory"]["device_total"], 8 * GIB)
            self.assertEqual(seen["allocated_bytes"], 8 * GIB - CONTEXT)
            share = self.share_of(name)
            self.assertEqual((share["memory_limit_bytes"], share["memory_request_bytes"]), (8 * GIB, 8 * GIB))
            self.assertEqual((share["compute_request"], share["compute_limit"]), (0.3, 1))
            self.assertEqual(self.container_of(name), f"default/{name}/main")
        self.cluster.apply(pod("c", "share"))
        reason = self.cluster.wait_until(lambda: self.pending_reason("c"), "a reason why pod c waits")
        self.assertIn("cannot allocate all claims", reason)
        self.assert_accounts_agree()
        self.cluster.delete("pod", "a")
        self.cluster.wait_running("c")
        self.assertEqual(self.allocated("c")["allocated_bytes"], 8 * GIB - CONTEXT)
        self.assert_accounts_agree()

    def container_of(self, name):
        """By the node's agent, which labels metrics with it."""
        uid = self.cluster.get("resourceclaim", self.claim_of(name))["metadata"]["uid"]
        return next(share["container"]["name"] for share in self.machine.ps() if share["name"] == f"claim-{uid}")

    def test_attributes_select(self):
        expressions = (
            'device.attributes["gpu.prorata.dev"].cudaComputeCapability.isGreaterThan(semver("{}"))',
            'device.attributes["gpu.prorata.dev"].driverVersion.compareTo(semver("570.0.0")) >= 0',
            'device.attributes["gpu.prorata.dev"].mode == "shared"',
        )
        for name, version in (("old", "5.0.0"), ("new", "99.0.0")):
            selectors = [{"cel": {"expression": each.format(version)}} for each in expressions]
            self.cluster.apply(template(name, SIZE, selectors=selectors), pod(name, name, ["sleep", "infinity"]))
        self.cluster.wait_running("old")
        reason = self.cluster.wait_until(lambda: self.pending_reason("new"), "a reason why pod new waits")
        self.assertIn("cannot allocate all claims", reason)

    def test_the_example_of_the_guide(self):
        self.cluster.kubectl("apply", "-f", harness.ROOT / "examples/kubernetes/two-pods.yaml")
        self.cluster.wait_running("a", "b")
        self.assertEqual(len(self.shares()), 2)
        self.assert_accounts_agree()

    def test_exec_is_held_to_the_same_share(self):
        self.cluster.apply(template("share", {"memory": "2Gi"}), pod("a", "share", ["sleep", "infinity"]))
        self.cluster.wait_running("a")
        # Neither the environment nor the container's first process has a part in it.
        status, out, _ = self.cluster.execute(
            "a", "env", "-i", "/usr/bin/gpuload", "--allocate", "128MiB", "--until-refused")  # fmt: skip
        report = json.loads(out.splitlines()[-1])
        self.assertEqual((status, report["allocated_bytes"]), (0, 2 * GIB - CONTEXT))
        self.assertEqual(report["refused"], "CUDA_ERROR_OUT_OF_MEMORY")

    def test_a_pod_is_told_what_it_was_refused(self):
        self.cluster.apply(template("share", {"memory": "2Gi"}), pod("a", "share"))
        self.cluster.wait_running("a")
        self.wait_event("a", "GpuMemoryRefused", "was refused 128 MiB on GPU 0: the share's limit is 2 GiB")
        # A program that tries again and again is one event.
        for _ in range(3):
            self.cluster.execute("a", "gpuload", "--allocate", "128MiB", "--until-refused")
        self.restart_agent()
        self.cluster.wait_until(lambda: len(self.machine.ps()[0]["members"]) == 1, "the pod's program on its share")
        self.cluster.execute("a", "gpuload", "--allocate", "128MiB", "--until-refused")
        told = [event for event in self.cluster.events_of("a") if event.startswith("GpuMemoryRefused")]
        self.assertEqual(len(told), 1, told)

    def test_parameters_of_a_claim(self):
        config = {"computeLimit": 30, "weight": 250, "priority": 5, "onFull": "wait=30s"}
        load = ["gpuload", "--seconds", "3", "--kernel-us", "2000"]
        self.cluster.apply(template("share", {"memory": "1Gi", "compute": "10"}, config), pod("a", "share", load))
        self.cluster.wait_until(lambda: self.cluster.phase("a") != "Pending", "pod a started")
        share = self.share_of("a")
        self.assertEqual(
            [share[key] for key in ("compute_request", "compute_limit", "weight", "priority")], [0.1, 0.3, 250, 5]
        )
        self.assertEqual(share["on_full"], "wait=30s")
        self.cluster.wait_until(lambda: self.cluster.phase("a") == "Succeeded", "pod a's end")
        report = json.loads(self.cluster.kubectl("logs", "a").splitlines()[-1])
        used = report["kernels"] * 2e-3 / report["wall_s"]
        self.assertLess(used, 0.36)

    def test_a_wrong_parameter_starts_nothing(self):
        for name, config, says in (
            ("typo", {"computelimit": 30}, "there is no field 'computelimit'"),
            ("low", {"computeLimit": 10}, "is below the request, 0.3"),
        ):
            self.cluster.apply(template(name, SIZE, config), pod(name, name))
            self.wait_event(name, "FailedPrepareDynamicResources", says)
            self.assertEqual(self.cluster.phase(name), "Pending")
        self.assertEqual(self.shares(), [])

    def test_without_an_agent_nothing_starts(self):
        self.machine.kill_agent()
        try:
            self.cluster.apply(template("share", SIZE), pod("a", "share"))
            self.wait_event("a", "FailedPrepareDynamicResources", "cannot reach the agent")
            self.assertEqual(self.cluster.phase("a"), "Pending")
        finally:
            self.start_agent()
        self.assertEqual(self.shares(), [])

    def test_a_gpu_whose_driver_hangs_takes_nothing_new(self):
        self.cluster.apply(template("share", SIZE), pod("a", "share"))
        self.cluster.wait_running("a")
        self.allocated("a")
        hang = self.machine.folder / "sim" / "nvml-hangs"
        hang.write_text("prorata")
        try:
            self.cluster.wait_until(lambda: "taints" in self.slice()["spec"]["devices"][0], "a taint")
            generation = self.slice()["spec"]["pool"]["generation"]
            self.cluster.wait_until(lambda: self.health_of("a") == "Unhealthy", "the GPU's health in the pod's status")
            self.cluster.apply(pod("b", "share"))
            self.cluster.wait_until(lambda: self.pending_reason("b"), "a reason why pod b waits")
            self.machine.call(["sleep", "6"])
            self.assertEqual(self.slice()["spec"]["pool"]["generation"], generation)
            self.assertEqual((self.cluster.phase("a"), self.cluster.phase("b")), ("Running", "Pending"))
        finally:
            hang.unlink()
        self.cluster.wait_running("b")
        self.assertNotIn("taints", self.slice()["spec"]["devices"][0])
        self.cluster.wait_until(lambda: self.health_of("a") == "Healthy", "the GPU's health in the pod's status")

    def health_of(self, name):
        """Of the pod's claim, by the kubelet."""
        container = self.cluster.pod(name)["status"]["containerStatuses"][0]
        for status in container.get("allocatedResourcesStatus", []):
            return status["resources"][0]["health"]
        return None

    def test_two_pods_of_one_claim_are_one_share(self):
        both = [pod(name, "both", field="resourceClaimName", command=["sleep", "infinity"]) for name in "ab"]
        self.cluster.apply(claim("both", capacity=SIZE), *both)
        self.cluster.wait_running("a", "b")
        self.assertEqual(len(self.shares()), 1)
        for name in "ab":
            status, out, err = self.cluster.execute(name, "gpuload", "--allocate", "1GiB")
            self.assertEqual(status, 0, out + err)
        self.cluster.delete("pod", "a")
        self.assertEqual(len(self.shares()), 1)
        status, out, err = self.cluster.execute("b", "gpuload", "--allocate", "1GiB")
        self.assertEqual(status, 0, out + err)
        self.cluster.delete("pod", "b")
        self.assert_nothing_left()

    def test_shares_outside_of_kubernetes_are_counted(self):
        def memory():
            return self.slice()["spec"]["devices"][0]["capacity"]["memory"]["value"]

        self.assertEqual(memory(), "16Gi")
        self.prorata("create", "host", "--memory", "10GiB", "--compute", "0.2")
        self.cluster.wait_until(lambda: memory() == "6Gi", "a slice with what is left")
        self.cluster.apply(template("share", SIZE), pod("a", "share"))
        self.cluster.wait_until(lambda: self.pending_reason("a"), "a reason why pod a waits")
        self.prorata("rm", "host")
        self.cluster.wait_running("a")

    def test_what_the_driver_may_do(self):
        """Its rights are those of deploy/: only the slices of its own node, and no claims."""
        kubectl = ["--kubeconfig", f"{self.cluster.folder}/prorata-dra.kubeconfig"]
        own = self.slice()
        other = {**own, "metadata": {"name": "other"}, "spec": {**own["spec"], "nodeName": "n2"}}
        foreign = {**own, "metadata": {"name": "foreign"}, "spec": {**own["spec"], "driver": "gpu.example.com"}}
        for object_, says in ((other, "may not write slices of another node"), (foreign, "of another driver")):
            status, _, err = self.cluster.kubectl_try(*kubectl, "create", "-f", "-", text=json.dumps(object_))
            self.assertNotEqual(status, 0)
            self.assertIn(says, err)
        for verb, what in (("delete", "resourceslices"), ("update", "resourceclaims"), ("update", "pods"),
                           ("get", "secrets"), ("patch", "nodes"), ("delete", "events")):  # fmt: skip
            self.assertEqual(self.cluster.kubectl_try(*kubectl, "auth", "can-i", verb, what, "-A")[1].strip(), "no")
        # And the right ones suffice.
        self.assertEqual(self.cluster.kubectl_try(*kubectl, "get", "resourceslice", f"{NODE}-{CLASS}")[0], 0)


if __name__ == "__main__":
    unittest.main()
