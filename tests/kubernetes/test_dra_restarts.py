"""Pods with claims while what serves them dies and comes back: nobody of them notices, and nothing is
granted twice, left over or lost."""

import itertools
import os
import random
import signal
import time
import unittest
import uuid

import pytest
from dra import DraTestCase, pod, template

pytestmark = pytest.mark.alone
SIZE = {"memory": "8Gi", "compute": "30"}
# For how long there is no API server.
AWAY_S = int(os.environ.get("PRORATA_TEST_API_AWAY_S", "60"))
PODS = int(os.environ.get("PRORATA_TEST_PODS", "30"))


class Restarts(DraTestCase):
    def snapshot(self):
        """What must not change of the pods a and b."""
        found = {}
        for name in ("a", "b"):
            status = self.cluster.pod(name)["status"]["containerStatuses"][0]
            share = self.share_of(name)
            found[name] = (status["containerID"], status["restartCount"], share["name"],
                           share["memory_limit_bytes"], share["compute_request"],
                           [member["pid"] for member in share["members"]])  # fmt: skip
        return found

    def kept(self):
        """What the agent has for claims, with their processes."""
        return {share["name"]: (share["devices"][0]["memory_limit_bytes"], share["devices"][0]["compute_request"],
                                [member["pid"] for member in share["members"]])
                for share in self.machine.ps() if share["name"].startswith("claim-")}  # fmt: skip

    def members_are_back(self):
        return all(len(self.share_of(name)["members"]) == 1 for name in ("a", "b"))

    def restart_kubelet(self):
        registered = self.cluster.log("driver").count("registered the driver")
        published = self.slice()["metadata"]["uid"]
        self.cluster.restart("kubelet")
        self.cluster.wait_until(
            lambda: self.cluster.log("driver").count("registered the driver") > registered, "a registration"
        )
        # A kubelet drops the slices of its node when it starts.
        self.cluster.wait_until(
            lambda: (found := self.slice()) and found["metadata"]["uid"] != published, "a slice published anew"
        )

    def restart_driver(self):
        registered = self.cluster.log("driver").count("registered the driver")
        self.cluster.restart("driver")
        self.cluster.wait_until(
            lambda: self.cluster.log("driver").count("registered the driver") > registered, "a registration"
        )

    def upgrade_driver(self):
        registered = self.cluster.log("driver").count("registered the driver")
        self.cluster.stop("driver")
        sockets = [self.cluster.folder / "kubelet" / path for path in (
            "plugins/gpu.prorata.dev/dra.sock", "plugins_registry/gpu.prorata.dev-reg.sock")]  # fmt: skip
        self.assertEqual([path for path in sockets if path.exists()], [])
        self.start_driver()
        self.cluster.wait_until(
            lambda: self.cluster.log("driver").count("registered the driver") > registered, "a registration"
        )

    def restart_api_server(self):
        """A minute without one, in which the agent and the driver die, too."""
        before = self.kept()
        self.cluster.stop("apiserver", signal.SIGKILL)
        end = time.monotonic() + AWAY_S
        self.cluster.wait_until(
            lambda: "cannot follow the node's ResourceSlice" in self.cluster.log("driver"), "a driver that misses the API server"
        )
        self.restart_agent()
        self.cluster.restart("driver")
        while time.monotonic() < end:
            self.cluster.wait_until(lambda: self.kept() == before, "both shares, with their processes")
            time.sleep(1)
        self.start_api_server()

    @pytest.mark.main_flow
    def test_pods_stay_as_they_are(self):
        self.cluster.apply(template("share", SIZE), pod("a", "share"), pod("b", "share"))
        self.cluster.wait_running("a", "b")
        self.cluster.apply(pod("c", "share"))
        for name in ("a", "b"):
            self.allocated(name)
        before = self.snapshot()
        for restart in (self.restart_kubelet, self.restart_agent, self.restart_driver, self.upgrade_driver,
                        self.restart_api_server):  # fmt: skip
            with self.subTest(restart.__name__):
                restart()
                self.cluster.wait_until(self.members_are_back, "both members")
                self.cluster.wait_until(self.slice, "the node's ResourceSlice")
                self.assertEqual(self.snapshot(), before)
                self.assertEqual(self.cluster.phase("c"), "Pending")
                self.assert_accounts_agree()
        self.cluster.delete("pod", "a")
        self.cluster.wait_until(self.runs_when_looked_at("c"), "pod c Running")
        self.assert_accounts_agree()

    def runs_when_looked_at(self, name):
        """A scheduler that has just lost its API server may list the claims anew instead of following them. That one
        of them is gone does not make it try a pod again (dynamicresources.go, EventsToRegister): five minutes do, or
        a changed DeviceClass."""
        looks = itertools.count()

        def look():
            number = next(looks)
            if number % 50 == 0:
                self.cluster.kubectl("annotate", "deviceclass", "--all", "--overwrite", f"example.com/look={number}")
            return self.cluster.phase(name) == "Running"

        return look

    def test_a_share_of_no_claim_is_removed_when_the_driver_starts(self):
        stale, mine = f"claim-{uuid.uuid4()}", "claim-of-mine"
        for name in (stale, mine):
            self.prorata("create", name, "--memory", "1GiB")
        self.restart_driver()
        self.cluster.wait_until(lambda: self.shares() == [mine], "the end of the stale share")
        self.prorata("rm", mine)

    def test_a_claim_that_the_kubelet_forgot(self):
        self.cluster.apply(template("share", SIZE), pod("a", "share"))
        self.cluster.wait_running("a")
        self.cluster.stop("kubelet", signal.SIGKILL)
        self.cluster.kubectl("delete", "pod", "a", "--force", "--grace-period=0")
        self.cluster.wait_until(lambda: not self.cluster.get("resourceclaims")["items"], "the claim's end")
        self.assertEqual(len(self.shares()), 1)
        (self.cluster.folder / "kubelet" / "dra_manager_state").unlink()
        self.cluster.spawn("kubelet", self.cluster._commands["kubelet"][0])
        self.assert_nothing_left()

    def test_a_kubelet_killed_at_random(self):
        """While pods start and end; in the end nothing is left of any."""
        seed = int(os.environ.get("PRORATA_TEST_SEED", random.randrange(1 << 30)))
        print(f"PRORATA_TEST_SEED={seed}")
        chance = random.Random(seed)
        self.cluster.apply(template("share", {"memory": "1Gi", "compute": "5"}))
        names = [f"p{number}" for number in range(PODS)]
        alive = []
        for name in names:
            made = pod(name, "share", ["sleep", "infinity"])
            # A container that was made and not started when the kubelet died is never run with "Never".
            made["spec"]["restartPolicy"] = "Always"
            self.cluster.apply(made)
            alive.append(name)
            if len(alive) > 6:
                gone = alive.pop(chance.randrange(len(alive)))
                self.cluster.kubectl("delete", "pod", gone, "--grace-period=1", "--wait=false")
            if chance.random() < 0.2:
                self.machine.call(["sleep", f"{chance.random() * 0.8:.2f}"])
                self.cluster.restart("kubelet")
        for name in alive:
            # One that failed its preparation is tried again after a minute and more.
            try:
                self.cluster.wait_running(name)
            except AssertionError as error:
                raise AssertionError(f"{error}; its status: "
                                     f"{self.cluster.pod(name)['status']} {self.cluster.events_of(name)}") from None
        # Those that were deleted may be on their way still: their shares go first, then their claims.
        self.cluster.wait_until(
            lambda: len(self.cluster.get("resourceclaims")["items"]) == len(alive), "the deleted pods' end"
        )
        self.assert_accounts_agree()


if __name__ == "__main__":
    unittest.main()
