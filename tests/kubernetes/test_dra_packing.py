"""Nodes that are filled one after another: prorata's extender prioritizes nodes of pods with claims. The nodes are
made up, each with a slice as the driver writes it: pods are bound there and never run."""

import json
import unittest

import cluster
import harness
import pytest
from dra import DraTestCase, pod, template

pytestmark = pytest.mark.alone
PACKING = harness.ROOT / "deploy" / "kubernetes-packing"
NODES = ("made-up-1", "made-up-2", "made-up-3")
HOST = "kubernetes.io/hostname"


def node(name):
    return {
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {HOST: name, "made-up": "true"}},
        "status": {"allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110"},
                   "capacity": {"cpu": "8", "memory": "32Gi", "pods": "110"}},
    }  # fmt: skip


def resource_slice(name):
    device = {
        "name": "gpu-of-" + name,
        "allowMultipleAllocations": True,
        "attributes": {"model": {"string": "Made up"}},
        "capacity": {"memory": {"value": "16Gi"}, "compute": {"value": "100"}},
    }
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name},
        "spec": {"driver": "gpu.prorata.dev", "nodeName": name, "devices": [device],
                 "pool": {"name": name, "generation": 1, "resourceSliceCount": 1}},
    }  # fmt: skip


def pod_for(name, **selector):
    made = pod(name, "third", ["sleep", "infinity"])
    # The control plane sees no kubelet on these nodes.
    made["spec"] |= {"nodeSelector": {"made-up": "true", **selector}, "tolerations": [{"operator": "Exists"}]}
    return made


class Packing(DraTestCase):
    SCHEDULER = (PACKING / "scheduler-configuration.yaml").read_text()
    LOGS = ("driver", "extender")

    @classmethod
    def install(cls):
        super().install()
        cls.cluster.kubectl("apply", "-f", PACKING / "rbac.yaml")
        cls.start_extender()
        for name in NODES:
            cls.cluster.apply(node(name), resource_slice(name))
            cls.cluster.kubectl("patch", "node", name, "--subresource=status", "--type=merge",
                                "-p", json.dumps({"status": node(name)["status"]}))  # fmt: skip

    @classmethod
    def start_extender(cls):
        path = cls.kubeconfig("prorata-packing")
        said = cls.cluster.log("extender").count("claims for GPUs on")
        cls.cluster.spawn("extender", [cluster.DRIVER, "extender", "--claims", "--port=8788", f"--kubeconfig={path}"])
        cls.cluster.wait_until(
            lambda: cls.cluster.log("extender").count("claims for GPUs on") > said, "an extender that has read"
        )

    def remove_all(self):
        # No kubelet ends them.
        self.cluster.kubectl("delete", "pods", "--all", "--force", "--grace-period=0")
        self.cluster.wait_until(lambda: not self.cluster.get("resourceclaims")["items"], "the end of all claims")
        super().remove_all()

    def node_of(self, name):
        return self.cluster.wait_until(lambda: self.cluster.pod(name)["spec"].get("nodeName"), f"a node for pod {name}")

    def place(self, name, **selector):
        self.cluster.apply(pod_for(name, **selector))
        return self.node_of(name)

    def test_a_node_is_filled_before_the_next(self):
        self.cluster.apply(template("third", {"memory": "4Gi", "compute": "30"}))
        for round_, first in enumerate((NODES[1], NODES[2])):
            names = [f"{round_}-{number}" for number in range(5)]
            self.assertEqual(self.place(names[0], **{HOST: first}), first)
            self.assertEqual([self.place(name) for name in names[1:3]], [first, first])
            # It is full.
            second = self.place(names[3])
            self.assertNotEqual(second, first)
            self.assertEqual(self.place(names[4]), second)
            self.cluster.kubectl("delete", "pods", "--all", "--force", "--grace-period=0")
            self.cluster.wait_until(lambda: not self.cluster.get("resourceclaims")["items"], "the end of all claims")

    def test_pods_are_placed_while_it_is_away(self):
        self.cluster.apply(template("third", {"memory": "4Gi", "compute": "30"}))
        self.cluster.stop("extender")
        try:
            self.assertIn(self.place("a"), NODES)
        finally:
            self.start_extender()


if __name__ == "__main__":
    unittest.main()
