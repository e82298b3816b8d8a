"""docs/guide/kai.md, followed literally (installed.py): the NRI plugin runs as a pod, and pods with KAI's annotations
require it."""

import pathlib
import unittest

import pytest
from cluster import NODE
from cluster_case import CONTEXT, NAMESPACE, SLEEP
from harness import GIB
from installed import FollowsGuide
from kai import KaiTestCase, container

pytestmark = pytest.mark.alone


class Installed(FollowsGuide, KaiTestCase):
    PAGE = "kai.md"
    NRI = KaiTestCase.NRI.replace("/nri.sock", "/nri/nri.sock")

    @classmethod
    def put_agent(cls):
        super().put_agent()
        # So does the runtime's socket lie in the cluster's namespace, and not at this machine's path.
        place = pathlib.Path("/var/run/nri")
        if not place.exists():
            place.mkdir()
            cls.addClassCleanup(place.rmdir)
        status, _, err = cls.cluster.call(["mount", "--bind", cls.cluster.folder / "nri", place])
        assert status == 0, err

    @classmethod
    def install(cls):
        cls.begin()
        super().install()
        cls.wait_connected(0)

    def test_a_pod_is_held_to_its_part(self):
        self.kai.place("a", self.gpu, {"gpu-fraction": "0.5"})
        self.cluster.wait_running("a")
        self.assertEqual(self.allocated("a")["allocated_bytes"], 8 * GIB - CONTEXT)
        self.assertEqual(self.share_of("a")["devices"][0]["compute_request"], 0.5)
        rows = [line.split() for line in self.follow("kubectl prorata ps").splitlines()]
        self.assertEqual(rows[1][:4], ["default", "a", "main", NODE])

    def test_a_pod_waits_for_the_plugin(self):
        """As the policy of the guide has it."""
        before = self.connected()
        self.follow(f"kubectl -n {NAMESPACE} rollout restart daemonset/prorata-nri")
        self.follow(f"kubectl -n {NAMESPACE} rollout status --timeout=120s daemonset/prorata-nri")
        self.wait_connected(before)
        self.follow("kubectl label node $NODE prorata.dev/agent-")
        self.cluster.wait_until(lambda: not self.cluster.get("pods", "-n", NAMESPACE)["items"], "no plugin")
        try:
            self.kai.place("a", self.gpu, {"gpu-fraction": "0.5"}, container("main", SLEEP))
            self.wait_event("a", "Failed", 'required plugin "prorata" not present')
        finally:
            self.follow("kubectl label node $NODE prorata.dev/agent=true")
        self.cluster.wait_running("a")
        self.assertEqual(self.share_of("a")["devices"][0]["memory_limit_bytes"], 8 * GIB)

    def test_what_is_installed_has_no_more_rights_than_it_needs(self):
        self.assert_least_rights()
        plugin = self.cluster.get("pods", "-n", NAMESPACE)["items"][0]
        self.assertEqual({volume["name"] for volume in plugin["spec"]["volumes"]}, {"nri", "agent"}, "and no token")


if __name__ == "__main__":
    unittest.main()
