"""Two real nodes, each with a kubelet, a containerd and an agent of its own: pods go where there is room, and each is
held to its share by its own node."""

import os
import random
import unittest

import cluster_case
import dra
import harness
import plugin
import pytest
from cluster_case import SLEEP

pytestmark = pytest.mark.alone
SECOND = "n2"
GIB = 1 << 30


class TwoNodes(cluster_case.ClusterTestCase):
    """What the tests of both kinds of cluster share."""

    ROLE = ACCOUNT = None
    second = None  # its machine

    @classmethod
    def setUpClass(cls):
        # Before the cluster, so that it closes after it.
        cls.second = harness.Machine(f'[[devices]]\nuuid = "GPU-{"2" * 8}-2222-2222-2222-{"2" * 12}"\n')
        cls.addClassCleanup(cls.second.close)
        super().setUpClass()

    @classmethod
    def install(cls):
        super().install()
        node = cls.cluster.add_node(SECOND)
        cls.start_agent_of(node, cls.second)
        cls.start_driver_of(node, cls.second, cls.ROLE, cls.ACCOUNT)

    def machines(self):
        return {self.cluster.node.name: self.machine, SECOND: self.second}

    def specifications(self):
        return [path.name for node in self.cluster.nodes for path in (node.folder / "cdi").iterdir()]

    def node_of(self, name):
        return self.cluster.pod(name)["spec"].get("nodeName")

    def part(self, name, hundredths, gib, command=SLEEP):
        """Makes a pod with a part of a GPU."""
        raise NotImplementedError

    def assert_held_by_its_node(self, name):
        """A running pod's share is its own node's."""
        machine = self.machines()[self.node_of(name)]
        folder = self.mounted_folder(self.cluster.pod(name), "main")
        self.assertIn(machine.folder.name, folder)
        self.assertIn(folder.rpartition("/")[2], [share["name"] for share in machine.ps()])

    def test_one_that_does_not_fit_on_a_node_is_on_the_other(self):
        for name in "ab":
            self.part(name, 60, 9, cluster_case.HOLD)
            self.cluster.wait_running(name)
        self.assertEqual({self.node_of("a"), self.node_of("b")}, set(self.machines()))
        self.part("c", 60, 9)
        reason = self.cluster.wait_until(lambda: self.pending_reason("c"), "a reason why pod c waits")
        self.assertIn("0/2 nodes are available", reason)
        for name in "ab":
            self.assertEqual(self.allocated(name)["allocated_bytes"], 9 * GIB - cluster_case.CONTEXT)
            self.assert_held_by_its_node(name)
        freed = self.node_of("b")
        self.cluster.delete("pod", "b")
        self.cluster.wait_running("c")
        self.assertEqual(self.node_of("c"), freed)
        self.assert_held_by_its_node("c")

    def test_none_is_placed_on_a_node_that_takes_none(self):
        for away, there in ((SECOND, "n1"), ("n1", SECOND)):
            self.cluster.kubectl("cordon", away)
            try:
                self.part(f"on-{there}", 30, 4)
                self.cluster.wait_running(f"on-{there}")
            finally:
                self.cluster.kubectl("uncordon", away)
            self.assertEqual(self.node_of(f"on-{there}"), there)
            self.assert_held_by_its_node(f"on-{there}")

    def kill_one(self):
        """A process of the second node that may be killed while pods start."""
        self.second.kill_agent()
        self.start_agent_of(self.cluster.nodes[1], self.second)

    def test_a_process_of_one_node_is_killed_while_pods_start_on_both(self):
        seed = int(os.environ.get("PRORATA_TEST_SEED", random.randrange(1 << 30)))
        print(f"PRORATA_TEST_SEED={seed}")
        chance = random.Random(seed)
        names = [f"p{number}" for number in range(16)]
        for name in names:
            self.part(name, 10, 1)
            if chance.random() < 0.3:
                self.kill_one()
        self.wait_all_running(names, 180)
        for name in names:
            self.assert_held_by_its_node(name)
        shares = [share for machine in self.machines().values() for share in machine.ps()]
        self.assertEqual(len(shares), len(names))


class ByPlugin(TwoNodes, plugin.PluginTestCase):
    ROLE, ACCOUNT = "device-plugin", "prorata-device-plugin"
    LOGS = ("driver", f"driver-{SECOND}", "extender")

    @classmethod
    def install(cls):
        super().install()
        cls.cluster.wait_until(
            lambda: plugin.MEMORY in cls.cluster.get("node", SECOND)["status"]["allocatable"], "GPUs of the second node"
        )
        cls.cluster.wait_until(
            lambda: plugin.GPUS in cls.cluster.get("node", SECOND)["metadata"].get("annotations", {}), "their list"
        )

    def part(self, name, hundredths, gib, command=SLEEP):
        self.cluster.apply(plugin.pod(name, plugin.container("main", hundredths, gib, command)))

    def shares(self):
        return {(node, share["name"]): share for node, machine in self.machines().items() for share in machine.ps()}

    def assert_nothing_left(self):
        super().assert_nothing_left()
        self.assertEqual(self.specifications(), [])


class ByClaims(TwoNodes, dra.DraTestCase):
    ROLE, ACCOUNT = "dra", "prorata-dra"
    LOGS = ("driver", f"driver-{SECOND}")

    @classmethod
    def install(cls):
        super().install()
        cls.cluster.wait_until(
            lambda: cls.cluster.find("resourceslice", f"{SECOND}-{dra.CLASS}"), "the second node's ResourceSlice"
        )

    def part(self, name, hundredths, gib, command=SLEEP):
        size = {"memory": f"{gib}Gi", "compute": str(hundredths)}
        of = f"of-{hundredths}-{gib}"
        self.cluster.apply(dra.template(of, size), dra.pod(name, of, command))

    def kill_one(self):
        super().kill_one()
        self.cluster.restart(f"driver-{SECOND}")

    def shares(self):
        return sorted(share["name"] for machine in self.machines().values() for share in machine.ps())


del TwoNodes  # for unittest it would be a case of its own


if __name__ == "__main__":
    unittest.main()
