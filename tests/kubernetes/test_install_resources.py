"""docs/guide/kubernetes-resources.md, followed literally (installed.py): the device plugin, the extender and the
webhook run as pods."""

import unittest

import pytest
from cluster import NODE
from cluster_case import SLEEP
from harness import GIB
from installed import FollowsGuide, commands
from plugin import PluginTestCase, container, pod

pytestmark = pytest.mark.alone


class Installed(FollowsGuide, PluginTestCase):
    PAGE = "kubernetes-resources.md"

    @classmethod
    def install(cls):
        # As the tools that set clusters up do.
        cls.cluster.kubectl("label", "node", NODE, "node-role.kubernetes.io/control-plane=")
        super().install()
        cls.wait_ready()

    def test_two_pods_on_one_gpu(self):
        for command in commands(self.PAGE, ""):
            self.follow(command)
        self.cluster.wait_running("a", "b")
        devices = {self.share_of(name, "train")["devices"][0]["uuid"] for name in ("a", "b")}
        self.assertEqual((len(self.shares()), len(devices)), (2, 1))
        self.assert_as_assigned()

    def test_a_pod_of_hamis(self):
        self.follow("kubectl apply -f examples/kubernetes/migrate/hami.yaml")
        self.cluster.wait_running("gpu-pod")
        on = self.share_of("gpu-pod", "ubuntu-container")["devices"][0]
        self.assertEqual((on["memory_limit_bytes"], on["compute_request"]), (3 * GIB, 0.3))

    def test_who_has_what(self):
        # One whose program uses its share, and one that does not yet.
        self.cluster.apply(pod("a", container("main", 30, 2)), pod("b", container("later", 20, 1, SLEEP)))
        self.cluster.wait_running("a", "b")
        self.allocated("a")
        rows = [line.split() for line in self.follow("kubectl prorata ps").splitlines()]
        self.assertEqual([row[:4] for row in rows[1:]], [["default", "a", "main", NODE], ["default", "b", "later", NODE]])

    def test_what_is_installed_has_no_more_rights_than_it_needs(self):
        self.assert_least_rights()


if __name__ == "__main__":
    unittest.main()
