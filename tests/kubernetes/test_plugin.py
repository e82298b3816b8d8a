"""Pods that share GPUs by extended resources: a real Kubernetes, the simulated GPU, prorata's device plugin and
scheduler extender."""

import json
import os
import random
import re
import unittest

import harness
import packing
import pytest
from cluster import SERVER
from cluster_case import CONTEXT, SLEEP
from harness import GIB
from plugin import ASSIGNED, GPUS, PluginTestCase, container, pod

pytestmark = pytest.mark.alone
BURST = int(os.environ.get("PRORATA_TEST_PODS", "30"))
# Hundredths of a GPU's time, of which a burst's containers have one or two: together they fill three GPUs.
UNIT = max(1, 200 // BURST)


class OneGpu(PluginTestCase):
    @pytest.mark.main_flow
    def test_two_pods_share_and_the_third_waits_for_one_to_leave(self):
        self.cluster.apply(*(pod(name, container("main", 30, 8)) for name in ("a", "b")))
        self.cluster.wait_running("a", "b")
        for name in ("a", "b"):
            seen = self.allocated(name)
            self.assertEqual(seen["memory"]["device_total"], 8 * GIB)
            self.assertEqual(seen["allocated_bytes"], 8 * GIB - CONTEXT)
            share = self.share_of(name)
            self.assertEqual([on["uuid"] for on in share["devices"]], self.assigned(name)["main"])
            on = share["devices"][0]
            self.assertEqual((on["memory_limit_bytes"], on["memory_request_bytes"]), (8 * GIB, 8 * GIB))
            self.assertEqual((on["compute_request"], on["compute_limit"]), (0.3, 1))
        self.cluster.apply(pod("c", container("main", 30, 8)))
        reason = self.cluster.wait_until(lambda: self.pending_reason("c"), "a reason why pod c waits")
        self.assertIn("GPUs without room for 8 GiB and 30% of its time", reason)
        self.assert_as_assigned()
        self.cluster.delete("pod", "a")
        self.cluster.wait_running("c")
        self.assertEqual(self.allocated("c")["allocated_bytes"], 8 * GIB - CONTEXT)
        self.assert_as_assigned()

    def test_the_example_of_the_guide(self):
        self.cluster.kubectl("apply", "-f", harness.ROOT / "examples/kubernetes/two-pods-resources.yaml")
        self.cluster.wait_running("a", "b")
        self.assertEqual(len(self.shares()), 2)
        for name in ("a", "b"):
            self.assertEqual(self.mounted_share(self.cluster.pod(name), "train"), self.share_of(name, "train")["name"])

    def test_a_pod_is_told_what_it_was_refused(self):
        self.cluster.apply(pod("a", container("main", 30, 2)), pod("b", container("main", 30, 8, SLEEP)))
        self.wait_event("a", "GpuMemoryRefused", "in container 'main' process ")
        self.wait_event("a", "GpuMemoryRefused", "was refused 128 MiB on GPU 0: the share's limit is 2 GiB")
        self.assertEqual([event for event in self.cluster.events_of("b") if event.startswith("Gpu")], [])

    def group_pod(self, name, group, size, one):
        made = pod(name, one)
        made["metadata"]["annotations"] = {"prorata.dev/group": group, "prorata.dev/group-size": str(size)}
        return made

    def test_a_group_of_pods_runs_whole_or_not_at_all(self):
        half = container("main", 30, 8, SLEEP)
        self.cluster.apply(self.group_pod("a", "train", 2, half))
        reason = self.cluster.wait_until(lambda: self.pending_reason("a"), "a reason why pod a waits")
        self.assertIn("pods of the group 'default/train' are placed together, and 1 of 2 are there", reason)
        self.cluster.apply(self.group_pod("b", "train", 2, half))
        self.cluster.wait_running("a", "b")
        self.assert_as_assigned()

    def test_of_a_group_that_does_not_fit_none_is_placed(self):
        half = container("main", 30, 8, SLEEP)
        self.cluster.apply(*(self.group_pod(name, "large", 3, half) for name in "abc"))
        # The scheduler asked for the first of them before the last was there, and asks again when something changes.
        self.cluster.wait_until(
            lambda: any("2 of 3 pods fit now" in self.pending_reason(name) for name in "abc"), "a reason why they wait"
        )
        self.assertEqual([self.cluster.phase(name) for name in "abc"], ["Pending"] * 3)
        self.cluster.apply(pod("other", half))
        self.cluster.wait_running("other")
        wrong = self.group_pod("wrong", "large", "many", half)
        self.cluster.apply(wrong)
        self.cluster.wait_until(
            lambda: "prorata.dev/group-size is 'many'" in self.pending_reason("wrong"), "a reason why pod wrong waits"
        )

    def test_a_quota_of_a_namespace(self):
        """Kubernetes' own: its controller counts extended resources."""
        self.cluster.apply({
            "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus"},
            "spec": {"hard": {"requests.prorata.dev/gpu-memory": "40", "requests.prorata.dev/gpu-compute": "100"}},
        })  # fmt: skip
        self.addCleanup(self.cluster.delete, "resourcequota", "gpus")
        self.cluster.wait_until(
            lambda: self.cluster.get("resourcequota", "gpus").get("status", {}).get("hard"), "a quota that is counted"
        )
        self.cluster.apply(pod("a", container("main", 30, 8, SLEEP)))
        status, _, err = self.cluster.kubectl_try(
            "apply", "-f", "-", text=json.dumps(pod("b", container("main", 30, 4, SLEEP)))
        )
        self.assertNotEqual(status, 0)
        self.assertIn("exceeded quota: gpus, requested: requests.prorata.dev/gpu-memory=16", err)
        self.cluster.wait_running("a")

    def test_a_pod_that_has_ended_makes_room(self):
        self.cluster.apply(pod("a", container("main", 60, 12, ["true"])))
        self.cluster.wait_until(lambda: self.cluster.phase("a") == "Succeeded", "pod a's end")
        self.cluster.apply(pod("b", container("main", 60, 12)))
        self.cluster.wait_running("b")

    def test_containers_of_a_pod_and_init_containers(self):
        """Each has a share of its own size; what an init container had is the next one's."""
        ask = ["gpuload", "--allocate", "128MiB", "--until-refused"]
        self.cluster.apply(
            pod("a", container("main", 30, 6), container("side", 0, 4), container("plain", 0, 0, SLEEP),
                init=[container("first", 30, 6, ask), container("second", 0, 2, ask)])
        )  # fmt: skip
        self.cluster.wait_running("a")
        for of, gib in (("main", 6), ("side", 4)):
            self.assertEqual(self.allocated("a", of)["allocated_bytes"], gib * GIB - CONTEXT)
        for of, gib in (("first", 6), ("second", 2)):
            report = json.loads(self.cluster.kubectl("logs", "a", "-c", of).splitlines()[-1])
            self.assertEqual(report["allocated_bytes"], gib * GIB - CONTEXT)
        self.assert_as_assigned()

    def test_a_container_that_is_started_again_keeps_its_share(self):
        self.cluster.apply(pod("a", container("main", 30, 8), restart="Always"))
        self.cluster.wait_running("a")
        self.allocated("a")
        before = self.share_of("a")["name"]
        self.machine.call(["kill", "-9", *map(str, self.pids("a"))])
        self.cluster.wait_until(lambda: self.restarts("a") == 1 and self.pids("a"), "the container's second start")
        self.assertEqual(self.allocated("a")["allocated_bytes"], 8 * GIB - CONTEXT)
        self.assertEqual(self.share_of("a")["name"], before)

    def pids(self, name):
        return self.cluster.pids_of(self.cluster.pod(name)["status"]["containerStatuses"][0]["containerID"])

    def restarts(self, name):
        return self.cluster.pod(name)["status"]["containerStatuses"][0]["restartCount"]

    def test_what_can_never_be_is_said(self):
        for name, one, says in (
            ("big", container("main", 30, 17), "no GPUs of prorata that are large enough for 17 GiB and 30% of its time"),
            ("two", container("main", 200, 16), "no GPUs of prorata that are large enough for 2 x 8 GiB"),
            ("odd", container("main", 150, 8), "write at most 100 for a part of one GPU"),
            ("bare", container("main", 30, 0), "asks for prorata.dev/gpu-compute: 30 without memory"),
        ):  # fmt: skip
            self.cluster.apply(pod(name, one))
            reason = self.cluster.wait_until(lambda name=name: self.pending_reason(name), f"a reason for pod {name}")
            self.assertIn(says, reason)
        self.assertEqual(self.shares(), {})

    def test_a_pod_that_the_extender_did_not_bind_starts_nothing(self):
        made = pod("a", container("main", 30, 8))
        made["spec"]["nodeName"] = "n1"
        self.cluster.apply(made)
        self.wait_event("a", "Failed", "was not bound by prorata's scheduler extender")
        self.assertEqual(self.cluster.phase("a"), "Pending")
        self.assertEqual(self.shares(), {})

    def test_an_assignment_of_the_pods_own_making_is_overwritten(self):
        made = pod("a", container("main", 30, 8))
        made["metadata"]["annotations"] = {ASSIGNED: '{"main": ["GPU-of-another"]}'}
        self.cluster.apply(made)
        self.cluster.wait_running("a")
        self.assertEqual(self.assigned("a")["main"], [self.machine.gpus()[0]["uuid"]])

    def test_without_an_agent_nothing_starts(self):
        self.machine.kill_agent()
        try:
            self.cluster.apply(pod("a", container("main", 30, 8)))
            self.wait_event("a", "Failed", "cannot reach the agent")
            self.assertEqual(self.cluster.phase("a"), "Pending")
        finally:
            self.start_agent()
        self.cluster.wait_running("a")
        self.assert_as_assigned()

    def test_shares_outside_of_kubernetes_are_counted(self):
        def units():
            annotation = self.cluster.get("node", "n1")["metadata"]["annotations"][GPUS]
            return json.loads(annotation)[0]["memory"]

        self.assertEqual(units(), 64)
        self.prorata("create", "host", "--memory", "10GiB", "--compute", "0.2")
        self.cluster.wait_until(lambda: units() == 24, "a node with what is left")
        self.cluster.apply(pod("a", container("main", 30, 8)))
        self.cluster.wait_until(lambda: self.pending_reason("a"), "a reason why pod a waits")
        self.prorata("rm", "host")
        self.cluster.wait_until(lambda: units() == 64, "a node with all")
        self.cluster.wait_running("a")

    def test_what_the_roles_may_do(self):
        """Their rights are those of deploy/: the plugin writes one annotation of its own node."""
        def as_(account, *arguments):
            return self.cluster.kubectl_try("--kubeconfig", f"{self.cluster.folder}/{account}.kubeconfig", *arguments)

        plugin = "prorata-device-plugin"
        self.cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n2"}})
        self.addCleanup(self.cluster.delete, "node", "n2")
        for node, patch, says in (
            ("n2", {"metadata": {"annotations": {GPUS: "[]"}}}, "may change no other node"),
            ("n1", {"metadata": {"labels": {"a": "b"}}}, "may change nothing of a node but its annotation"),
            ("n1", {"metadata": {"annotations": {"a": "b"}}}, "may change nothing of a node but its annotation"),
            ("n1", {"spec": {"unschedulable": True}}, "may change nothing of a node but its annotation"),
        ):
            self.assertIn(says, self.patch_node(plugin, node, patch))
        own = self.cluster.get("node", "n1")["metadata"]["annotations"][GPUS]
        self.assertNotIn("Failure", self.patch_node(plugin, "n1", {"metadata": {"annotations": {GPUS: own}}}))
        for account, verb, what in ((plugin, "create", "pods"), (plugin, "update", "pods"), (plugin, "get", "secrets"),
                                    ("prorata-extender", "update", "pods"), ("prorata-extender", "patch", "nodes"),
                                    ("prorata-extender", "get", "secrets")):  # fmt: skip
            self.assertEqual(as_(account, "auth", "can-i", verb, what, "-A")[1].strip(), "no")

    def patch_node(self, account, node, patch):
        """What the API server says. (kubectl patch would read the node first.)"""
        token = (self.cluster.folder / f"{account}.kubeconfig").read_text().rpartition("token: ")[2].split("}")[0]
        return self.cluster.call(
            ["curl", "-sk", "-X", "PATCH", f"{SERVER}/api/v1/nodes/{node}", "-H", f"Authorization: Bearer {token}",
             "-H", "Content-Type: application/merge-patch+json", "-d", json.dumps(patch)]
        )[1]  # fmt: skip


class FourGpus(PluginTestCase):
    MACHINE_TOML = '[[devices]]\nmemory = "32GiB"\n' * 4

    def test_a_burst(self):
        """Pods of equal and unequal sizes, at once: every container is on the GPU that was chosen for it."""
        seed = int(os.environ.get("PRORATA_TEST_SEED", random.randrange(1 << 30)))
        print(f"PRORATA_TEST_SEED={seed}")
        chance = random.Random(seed)
        pods, shares = [], {}
        for number in range(BURST):
            least = (UNIT, 0.25 * UNIT)
            sizes = [(UNIT * chance.choice((1, 2)), UNIT * chance.choice((0.25, 0.5)))] if number % 2 else [least]
            sizes += [least] if number % 5 == 0 else []
            containers = [container(name, *size, SLEEP) for name, size in zip(("main", "side"), sizes)]
            init = [container("first", *least, ["true"])] if number % 7 == 0 else []
            pods.append(pod(f"p{number}", *containers, init=init))
            shares[f"p{number}"] = [(compute, int(gib * 1024)) for compute, gib in sorted(sizes, reverse=True)]
        self.cluster.apply(*pods)
        names = [one["metadata"]["name"] for one in pods]
        self.wait_all_running(names, 60 + 5 * BURST)
        self.assert_as_assigned()
        # A pod that was placed twice has the place of the last time.
        placed = re.findall(r"placing pod default/(p\d+) on", self.cluster.log("extender"))
        order = list(dict.fromkeys(reversed(placed)))[::-1]
        self.assertEqual(sorted(order), sorted(shares))
        packing.check(self, [share for name in order for share in shares[name]], 4, 32, "extender")

    def test_several_whole_gpus(self):
        self.cluster.apply(pod("two", container("main", 200, 32, SLEEP)), pod("part", container("main", 10, 1, SLEEP)))
        self.cluster.wait_running("two", "part")
        self.assertEqual(len(self.assigned("two")["main"]), 2)
        self.assertNotIn(self.assigned("part")["main"][0], self.assigned("two")["main"])
        self.assert_as_assigned()
        self.cluster.apply(pod("more", container("main", 200, 32, SLEEP)))
        self.cluster.wait_until(lambda: self.pending_reason("more"), "a reason why pod more waits")
        self.cluster.delete("pod", "part")
        self.cluster.wait_running("more")


if __name__ == "__main__":
    unittest.main()
