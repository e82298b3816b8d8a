"""Pods with shares by the device plugin, while what serves them dies and comes back: none of them notices, and
nothing is granted twice, left over or lost."""

import os
import signal
import time
import unittest

import pytest
from plugin import PluginTestCase, container, pod

pytestmark = pytest.mark.alone
# For how long there is no API server.
AWAY_S = int(os.environ.get("PRORATA_TEST_API_AWAY_S", "60"))


class Restarts(PluginTestCase):
    def snapshot(self):
        """What must not change of the pods a and b."""
        found = {}
        for name in ("a", "b"):
            status = self.cluster.pod(name)["status"]["containerStatuses"][0]
            share = self.share_of(name)
            found[name] = (status["containerID"], status["restartCount"], share["name"], share["created_unix_s"],
                           [member["pid"] for member in share["members"]])  # fmt: skip
        return found

    def registrations(self):
        return self.cluster.log("driver").count("the kubelet registered")

    def wait_registered(self, before):
        self.cluster.wait_until(lambda: self.registrations() > before, "a registration")
        self.wait_ready()

    def restart_kubelet(self):
        before = self.registrations()
        self.cluster.restart("kubelet")
        self.wait_registered(before)

    def restart_plugin(self):
        before = self.registrations()
        self.cluster.restart("driver")
        self.wait_registered(before)

    def upgrade_plugin(self):
        before = self.registrations()
        self.cluster.stop("driver")
        folder = self.cluster.folder / "kubelet" / "device-plugins"
        self.assertEqual(list(folder.glob("prorata*")), [])
        self.start_plugin()
        self.wait_registered(before)

    def restart_extender(self):
        before = self.cluster.log("extender").count("pods with GPUs")
        self.cluster.restart("extender")
        self.cluster.wait_until(
            lambda: self.cluster.log("extender").count("pods with GPUs") > before, "an extender that has read the pods"
        )
        self.assertIn("2 pods with GPUs on 1 nodes", self.cluster.log("extender").splitlines()[-1])

    def restart_api_server(self):
        """A minute without one, in which the agent and the plugin die, too."""
        before = {name: [member["pid"] for member in share["members"]] for name, share in self.shares().items()}
        self.cluster.stop("apiserver", signal.SIGKILL)
        end = time.monotonic() + AWAY_S
        self.cluster.wait_until(
            lambda: "cannot follow the pods of node n1" in self.cluster.log("driver"),
            "a plugin that misses the API server",
        )
        self.restart_agent()
        self.cluster.restart("driver")

        def as_before():
            now = self.shares().items()
            return {name: [member["pid"] for member in share["members"]] for name, share in now} == before

        while time.monotonic() < end:
            self.cluster.wait_until(as_before, "both shares, with their processes")
            time.sleep(1)
        self.start_api_server()

    def members_are_back(self):
        return all(len(self.share_of(name)["members"]) == 1 for name in ("a", "b"))

    def test_pods_stay_as_they_are(self):
        self.cluster.apply(*(pod(name, container("main", 30, 8)) for name in ("a", "b")))
        self.cluster.wait_running("a", "b")
        self.cluster.apply(pod("c", container("main", 30, 8)))
        for name in ("a", "b"):
            self.allocated(name)
        before = self.snapshot()
        for restart in (self.restart_kubelet, self.restart_agent, self.restart_plugin, self.upgrade_plugin,
                        self.restart_extender, self.restart_api_server):  # fmt: skip
            with self.subTest(restart.__name__):
                restart()
                self.cluster.wait_until(self.members_are_back, "both members")
                self.assertEqual(self.snapshot(), before)
                self.assertEqual(self.cluster.phase("c"), "Pending")
                self.assert_as_assigned()
        self.cluster.delete("pod", "a")
        self.cluster.wait_running("c")
        self.assert_as_assigned()

    def test_a_container_starts_again_while_the_api_server_is_away(self):
        self.cluster.apply(pod("a", container("main", 30, 8), restart="Always"))
        self.cluster.wait_running("a")
        self.allocated("a")
        share = self.share_of("a")
        self.cluster.stop("apiserver", signal.SIGKILL)
        self.machine.call(["kill", "-9", *(str(member["pid"]) for member in share["members"])])

        def started_again():
            now = self.shares()[share["name"]]["members"]
            return now and now != share["members"]

        self.cluster.wait_until(started_again, "the container's second start")
        self.start_api_server()

    def test_a_pod_that_went_while_the_plugin_was_away(self):
        self.cluster.apply(pod("a", container("main", 30, 8)), pod("b", container("main", 30, 8)))
        self.cluster.wait_running("a", "b")
        self.cluster.stop("driver", signal.SIGKILL)
        self.cluster.kubectl("delete", "pod", "a", "--grace-period=1")
        self.assertEqual(len(self.shares()), 2)
        self.start_plugin()
        self.cluster.wait_until(lambda: len(self.shares()) == 1, "the end of the share of pod a")
        self.assert_as_assigned()

    def test_an_operators_own_share_of_a_similar_name_stays(self):
        self.prorata("create", "pod-unit-of-mine", "--memory", "1GiB")
        self.restart_plugin()
        self.cluster.apply(pod("a", container("main", 30, 8)))
        self.cluster.wait_running("a")
        self.cluster.delete("pod", "a")
        self.cluster.wait_until(lambda: list(self.shares()) == ["pod-unit-of-mine"], "the end of the share of pod a")
        self.prorata("rm", "pod-unit-of-mine")


if __name__ == "__main__":
    unittest.main()
