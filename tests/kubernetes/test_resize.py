"""Annotations of a running pod change the share of its claim: at once, within what the node has, and
with an event that says so."""

import json
import time
import unittest

import pytest
from cluster import NODE
from dra import CLASS, DraTestCase, claim, pod, template
from harness import GIB

pytestmark = pytest.mark.alone
SIZE = {"memory": "4Gi", "compute": "30"}
WATCH = ["gpuload", "--allocate", "1GiB", "--watch-memory", "--hold", "3600", "--announce"]
CONTEXT = 512 << 20


class Resize(DraTestCase):
    def annotate(self, name, **fields):
        """prorata.dev/FIELD=VALUE; None removes it; "_" for "-" and "__" for "."."""
        def key(field):
            return "prorata.dev/" + field.replace("__", ".").replace("_", "-")

        changes = [f"{key(field)}-" if value is None else f"{key(field)}={value}" for field, value in fields.items()]
        self.cluster.kubectl("annotate", "pod", name, "--overwrite", *changes)

    def totals(self, name):
        """(size, when in s) of each size of its GPU that the pod's program saw, in order."""
        events = [json.loads(line) for line in self.cluster.kubectl("logs", name).splitlines()]
        return [(event["total"], event["unix_ms"] / 1e3) for event in events if event["event"] == "memory"]

    def wait_total(self, name, size):
        return self.cluster.wait_until(
            lambda: (seen := self.totals(name)) and seen[-1][0] == size and seen[-1][1], f"{size} bytes in pod {name}"
        )

    def memory_offered(self):
        return self.slice()["spec"]["devices"][0]["capacity"]["memory"]["value"]

    def limits(self):
        return [share["devices"][0]["memory_limit_bytes"] for share in self.machine.ps()]

    def start_one(self, name="a", **metadata):
        made = pod(name, "share", WATCH)
        made["metadata"].update(metadata)
        self.cluster.apply(template("share", SIZE), made)
        self.cluster.wait_running(name)

    def resized_events(self, name):
        return [event for event in self.cluster.events_of(name) if event.startswith("ShareResized")]

    def test_the_running_program_sees_it_within_two_seconds(self):
        self.start_one()
        self.wait_total("a", 4 * GIB)
        pids = [member["pid"] for member in self.share_of("a")["members"]]
        for size in (8, 6):
            asked = time.time()
            self.annotate("a", memory=f"{size}Gi")
            took = self.wait_total("a", size * GIB) - asked
            print(f"resized to {size} GiB after {took:.3f} s")
            self.assertLess(took, 2)
        share = self.share_of("a")
        self.assertEqual((share["memory_limit_bytes"], share["memory_request_bytes"]), (6 * GIB, 6 * GIB))
        self.assertEqual([member["pid"] for member in share["members"]], pids)
        self.wait_event("a", "ShareResized", "the share of claim 'gpu' was resized: memory 4 GiB to 8 GiB")
        self.wait_event("a", "ShareResized", "memory 8 GiB to 6 GiB")
        self.annotate("a", memory=None)
        self.wait_total("a", 4 * GIB)
        self.assert_accounts_agree()

    def test_all_that_a_share_has(self):
        self.start_one()
        self.annotate("a", compute="50", compute_limit="80", weight="300", priority="7", on_full="wait=30s")
        self.wait_event("a", "ShareResized", "compute 30% to 50%, compute limit 100% to 80%, weight 100 to 300, "
                                             "priority 0 to 7, on full fail to wait=30s")  # fmt: skip
        share = self.share_of("a")
        self.assertEqual(
            [share[key] for key in ("compute_request", "compute_limit", "weight", "priority", "on_full")],
            [0.5, 0.8, 300, 7, "wait=30s"],
        )
        # What is changed on the node alone does not last.
        self.prorata("update", share["name"], "--weight", "400")
        self.cluster.wait_until(lambda: self.share_of("a")["weight"] == 300, "the annotation's weight")

    def test_what_it_grows_by_is_not_offered_any_more(self):
        self.start_one()
        self.assertEqual(self.memory_offered(), "16Gi")
        self.annotate("a", memory="13Gi")
        self.wait_total("a", 13 * GIB)
        self.cluster.wait_until(lambda: self.memory_offered() == "7Gi", "a slice without the 9 GiB")
        self.cluster.apply(pod("b", "share"))
        self.cluster.wait_until(lambda: self.pending_reason("b"), "a reason why pod b waits")
        self.annotate("a", memory="12Gi")
        self.cluster.wait_running("b")
        # Below its claim it frees memory of the node, and none in the scheduler's account.
        self.annotate("a", memory="2Gi")
        self.cluster.wait_until(lambda: self.memory_offered() == "16Gi", "a slice with all")
        self.annotate("b", memory="14Gi")
        self.wait_event("b", "ShareResized", "memory 4 GiB to 14 GiB")

    def test_what_cannot_be_is_said_and_changes_nothing(self):
        self.start_one()
        self.wait_total("a", 4 * GIB)
        for fields, says in (
            ({"memory": "0"}, "annotation prorata.dev/memory is '0', and must be an amount of memory above 0"),
            ({"memory": "8GiB"}, "such as 8Gi or 512Mi"),
            ({"memory": "17Gi"}, "the share asks for 17 GiB of memory"),
            ({"memory": "1Gi"}, "more than the 1 GiB asked for; it shrinks once they have freed enough"),
            ({"memory": "6Gi", "compute": "half"}, "prorata.dev/compute is 'half', and must be whole hundredths"),
            ({"memory": "6Gi", "compute_limit": "10"}, "is below the request"),
            ({"memory__other": "6Gi"}, "the pod has no claim for prorata 'other'; it has gpu"),
        ):  # fmt: skip
            with self.subTest(says):
                self.annotate("a", **fields)
                self.wait_event("a", "ShareResizeRefused", says)
                self.annotate("a", **dict.fromkeys(fields))
        self.assertEqual([size for size, _ in self.totals("a")], [4 * GIB])
        self.assertEqual(self.resized_events("a"), [])
        # And it is not beyond hope.
        self.annotate("a", memory="6Gi")
        self.wait_total("a", 6 * GIB)

    def test_what_does_not_fit_now_is_done_when_there_is_room(self):
        self.start_one()
        self.prorata("create", "host", "--memory", "10GiB")
        self.annotate("a", memory="8Gi")
        self.wait_event("a", "ShareResizeRefused", "stays as before: the share asks for 8 GiB of memory")
        self.assertEqual(self.share_of("a")["memory_limit_bytes"], 4 * GIB)
        self.prorata("rm", "host")
        self.wait_total("a", 8 * GIB)

    def test_a_pod_with_two_claims_says_which(self):
        made = pod("a", "share", WATCH)
        made["spec"]["resourceClaims"] = [{"name": name, "resourceClaimTemplateName": "share"} for name in "xy"]
        made["spec"]["containers"] = [
            {**made["spec"]["containers"][0], "name": name, "resources": {"claims": [{"name": name}]}} for name in "xy"
        ]
        self.cluster.apply(template("share", SIZE), made)
        self.cluster.wait_running("a")
        self.annotate("a", memory="6Gi")
        self.wait_event("a", "ShareResizeRefused", "the pod has several claims for prorata (x, y); say which one is "
                                                   "meant, as in prorata.dev/memory.x")  # fmt: skip
        self.annotate("a", memory=None, memory__y="6Gi")
        self.wait_event("a", "ShareResized", "the share of claim 'y' was resized: memory 4 GiB to 6 GiB")
        self.assertEqual(sorted(self.limits()), [4 * GIB, 6 * GIB])

    def test_pods_of_one_claim_agree(self):
        both = [pod(name, "both", ["sleep", "infinity"], field="resourceClaimName") for name in "ab"]
        self.cluster.apply(claim("both", capacity=SIZE), *both)
        self.cluster.wait_running("a", "b")
        self.annotate("a", memory="5Gi")
        self.wait_event("b", "ShareResized", "memory 4 GiB to 5 GiB")
        self.annotate("b", memory="6Gi")
        self.wait_event("b", "ShareResizeRefused", "pods of one claim ask for different values of prorata.dev/memory")
        self.assertEqual(self.limits(), [5 * GIB])

    def test_it_stays_over_restarts_and_is_done_once(self):
        self.start_one()
        self.annotate("a", memory="6Gi", compute="40")
        self.wait_total("a", 6 * GIB)
        self.cluster.wait_until(lambda: self.memory_offered() == "14Gi", "a slice without the 2 GiB")
        created = self.cluster.pod("a")["status"]["containerStatuses"][0]["containerID"]
        for restart in (self.restart_driver, self.restart_agent, self.restart_kubelet, self.restart_api_server):
            with self.subTest(restart.__name__):
                restart()
                share = self.cluster.wait_until(
                    lambda: (found := self.share_of("a")) and found["members"] and found, "the pod's member"
                )
                self.assertEqual((share["memory_limit_bytes"], share["compute_request"]), (6 * GIB, 0.4))
                self.cluster.wait_until(lambda: self.slice() and self.memory_offered() == "14Gi", "the same slice")
        self.assertEqual([size for size, _ in self.totals("a")], [4 * GIB, 6 * GIB])
        self.assertEqual(len(self.resized_events("a")), 1)
        self.assertEqual(self.cluster.pod("a")["status"]["containerStatuses"][0]["containerID"], created)
        # The driver follows pods again.
        self.annotate("a", memory="7Gi")
        self.wait_total("a", 7 * GIB)
        # What was asked for while it was away is done when it is back.
        self.cluster.stop("driver")
        self.annotate("a", memory="5Gi")
        self.start_driver()
        self.wait_total("a", 5 * GIB)

    def test_a_pod_that_is_annotated_before_it_runs(self):
        self.start_one(annotations={"prorata.dev/memory": "6Gi"})
        self.wait_total("a", 6 * GIB)

    # Deaths.

    def restart_driver(self):
        registered = self.cluster.log("driver").count("registered the driver")
        self.cluster.restart("driver")
        self.cluster.wait_until(
            lambda: self.cluster.log("driver").count("registered the driver") > registered, "a registration"
        )

    def restart_agent(self):
        self.machine.kill_agent()
        self.start_agent()

    def restart_kubelet(self):
        registered = self.cluster.log("driver").count("registered the driver")
        published = self.cluster.find("resourceslice", f"{NODE}-{CLASS}")["metadata"]["uid"]
        self.cluster.restart("kubelet")
        self.cluster.wait_until(
            lambda: self.cluster.log("driver").count("registered the driver") > registered, "a registration"
        )
        self.cluster.wait_until(
            lambda: (found := self.slice()) and found["metadata"]["uid"] != published, "a slice published anew"
        )

    def restart_api_server(self):
        self.cluster.restart("apiserver")
        self.cluster.wait_until(
            lambda: self.cluster.kubectl_try("get", "--raw", "/readyz")[1] == "ok", "an API server that is ready"
        )
        self.cluster.wait_until(self.cluster.node_ready, "a node that is ready")


if __name__ == "__main__":
    unittest.main()
