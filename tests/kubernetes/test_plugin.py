"""Pods that share GPUs by extended resources: a real Kubernetes, the simulated GPU, prorata's device plugin and
scheduler extender."""

import unittest

import pytest
from harness import GIB
from plugin import CONTEXT, PluginTestCase, container, pod

pytestmark = pytest.mark.alone


class OneGpu(PluginTestCase):
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
        self.cluster.delete("pod", "a")
        self.cluster.wait_running("c")
        self.assertEqual(self.allocated("c")["allocated_bytes"], 8 * GIB - CONTEXT)


if __name__ == "__main__":
    unittest.main()
