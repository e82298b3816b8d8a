"""Pods that KAI places on parts of a GPU, held to them by prorata's NRI plugin: a real Kubernetes and containerd, and the
simulated GPU. KAI itself is stood in for (kai.py)."""

import json
import os
import signal
import unittest

import cluster_case
import harness
import pytest
from cluster_case import CONTEXT, SLEEP
from harness import GIB
from kai import KaiTestCase, container

pytestmark = pytest.mark.alone
REQUIRED = "required-plugins.noderesource.dev"


class KaiPods(KaiTestCase):
    def terms_of(self, name):
        share = self.share_of(name)
        on = share["devices"][0]
        self.assertEqual([device["uuid"] for device in share["devices"]], [self.gpu])
        self.assertEqual(on["memory_limit_bytes"], on["memory_request_bytes"])
        return on["memory_limit_bytes"], on["compute_request"], on["compute_limit"]

    def execute(self, name, *command):
        status, out, err = self.cluster.execute(name, *command)
        self.assertEqual(status, 0, err)
        return out

    def test_two_pods_are_held_to_their_parts(self):
        self.kai.place("a", self.gpu, {"gpu-fraction": "0.5"})
        self.kai.place("b", self.gpu, {"gpu-fraction": "0.25"}, container("main", SLEEP))
        self.cluster.wait_running("a", "b")
        seen = self.allocated("a")
        self.assertEqual(seen["memory"]["device_total"], 8 * GIB)
        self.assertEqual(seen["allocated_bytes"], 8 * GIB - CONTEXT)
        self.assertEqual((self.terms_of("a"), self.terms_of("b")), ((8 * GIB, 0.5, 1), (4 * GIB, 0.25, 1)))
        # By `kubectl exec`, too, whatever the environment.
        asked = ["env", "-i", "/usr/bin/gpuload", "--allocate", "128MiB", "--until-refused"]
        report = json.loads(self.execute("b", *asked).splitlines()[-1])
        self.assertEqual(report["allocated_bytes"], 4 * GIB - CONTEXT)
        self.assertEqual(report["refused"], "CUDA_ERROR_OUT_OF_MEMORY")
        # NVIDIA's own runtime adds nothing.
        variables = dict(line.partition("=")[::2] for line in self.execute("b", "cat", "/proc/1/environ").split("\0"))
        self.assertEqual((variables["NVIDIA_VISIBLE_DEVICES"], variables["GPU_PORTION"]), ("void", "0.25"))
        self.cluster.delete("pod", "a")
        self.cluster.wait_until(lambda: len(self.shares()) == 1, "the end of the share of pod a")
        self.assertEqual(self.terms_of("b"), (4 * GIB, 0.25, 1))

    def test_all_parts_of_a_gpu(self):
        for name, fraction in (("a", "0.5"), ("b", "0.3"), ("c", "0.2")):
            self.kai.place(name, self.gpu, {"gpu-fraction": fraction}, container("main", SLEEP))
        self.cluster.wait_running("a", "b", "c")
        self.assertEqual([self.terms_of(name)[1] for name in "abc"], [0.5, 0.3, 0.2])
        self.assertLessEqual(sum(self.terms_of(name)[0] for name in "abc"), 16 * GIB)

    def test_memory_and_a_named_container(self):
        self.kai.place("a", self.gpu, {"gpu-memory": "4096", "gpu-fraction-container-name": "main"},
                       container("side", SLEEP), container("main"), portion="0.26",
                       devices=f"k8s.device-plugin.nvidia.com/gpu={self.gpu}")  # fmt: skip
        self.cluster.wait_running("a")
        self.assertEqual(self.allocated("a")["allocated_bytes"], 4 * GIB - CONTEXT)
        self.assertEqual(self.terms_of("a"), (4 * GIB, 0.25, 1))
        with self.assertRaises(StopIteration):
            self.mounted_share(self.cluster.pod("a"), "side")

    def test_an_init_container(self):
        ask = ["gpuload", "--allocate", "128MiB", "--until-refused"]
        self.kai.place("a", self.gpu, {"gpu-fraction": "0.5", "gpu-fraction-container-name": "first"},
                       container("main", SLEEP), init=[container("first", ask)])  # fmt: skip
        self.cluster.wait_running("a")
        report = json.loads(self.cluster.kubectl("logs", "a", "-c", "first").splitlines()[-1])
        self.assertEqual(report["allocated_bytes"], 8 * GIB - CONTEXT)

    def test_other_pods_are_left_alone(self):
        self.cluster.apply(cluster_case.pod("plain", container("main", SLEEP)))
        own = cluster_case.pod("own", container("main", SLEEP, env=[{"name": "GPU_PORTION", "value": "0.5"}]))
        self.cluster.apply(own)
        self.cluster.wait_running("plain", "own")
        self.assertEqual(self.shares(), {})

    def test_a_pod_that_has_ended_has_no_share(self):
        self.kai.place("a", self.gpu, {"gpu-fraction": "0.9"}, container("main", ["true"]))
        self.cluster.wait_until(lambda: self.cluster.phase("a") == "Succeeded", "pod a's end")
        self.cluster.wait_until(lambda: self.shares() == {}, "the end of the share of pod a, which is there still")
        self.kai.place("b", self.gpu, {"gpu-fraction": "0.9"}, container("main", SLEEP))
        self.cluster.wait_running("b")

    def test_a_container_that_is_started_again_keeps_its_share(self):
        self.kai.place("a", self.gpu, {"gpu-fraction": "0.5"}, restart="Always")
        self.cluster.wait_running("a")
        self.allocated("a")
        before = self.share_of("a")
        self.machine.call(["kill", "-9", *(str(member["pid"]) for member in before["members"])])

        def started_again():
            members = self.shares()[before["name"]]["members"]
            return members and members != before["members"]

        self.cluster.wait_until(started_again, "the container's second start")
        self.assertEqual(self.share_of("a")["created_unix_s"], before["created_unix_s"])
        self.cluster.wait_until(lambda: self.announced("a"), "memory in pod a")
        self.assertEqual(self.announced("a")["allocated_bytes"], 8 * GIB - CONTEXT)

    def test_wrong_annotations_start_nothing(self):
        for name, annotations, says in (
            ("zero", {"gpu-fraction": "0"}, "the annotation gpu-fraction of pod default/zero is '0': it must be a number above 0"),
            ("much", {"gpu-fraction": "1.5"}, "is '1.5': it must be a number above 0 and below 1, for example"),
            ("word", {"gpu-memory": "4Gi"}, "is '4Gi': it must be a whole number of MiB above 0"),
            ("both", {"gpu-fraction": "0.5", "gpu-memory": "4096"}, "the pod has gpu-memory as well; leave one of them out"),
            ("more", {"gpu-fraction": "0.9"}, "KAI bound the pod with 0.50 of a GPU; delete the pod"),
        ):  # fmt: skip
            self.kai.place(name, self.gpu, annotations, portion="0.50")
            self.wait_event(name, "Failed", says)
        self.kai.place("all", self.gpu, {"gpu-fraction": "0.5"}, devices="all")
        self.wait_event("all", "Failed", "is 'all' and does not name GPUs by their UUIDs")
        self.kai.place("gone", self.gpu, {"gpu-fraction": "0.5"}, devices="GPU-of-another")
        self.wait_event("gone", "Failed", "part of GPU-of-another, which is no GPU of prorata's agent on this node")
        self.assertEqual({one["status"]["phase"] for one in self.cluster.get("pods")["items"]}, {"Pending"})
        self.assertEqual(self.shares(), {})

    def test_what_does_not_fit_waits(self):
        """KAI knows nothing of what `prorata create` has."""
        self.prorata("create", "host", "--memory", "10GiB")
        self.addCleanup(self.machine.call, [harness.PRORATA, "rm", "host"])
        self.kai.place("a", self.gpu, {"gpu-fraction": "0.5"})
        self.wait_event("a", "Failed", "the share asks for 8 GiB of memory, but")
        self.assertEqual(self.cluster.phase("a"), "Pending")
        self.prorata("rm", "host")
        self.cluster.wait_running("a")

    # What serves them dies and comes back.

    def two_pods(self):
        for name in ("a", "b"):
            self.kai.place(name, self.gpu, {"gpu-fraction": "0.25"})
        self.cluster.wait_running("a", "b")
        for name in ("a", "b"):
            self.allocated(name)

    def snapshot(self, *names):
        found = {}
        for name in names:
            status = self.cluster.pod(name)["status"]["containerStatuses"][0]
            share = self.share_of(name)
            found[name] = (status["containerID"], status["restartCount"], share["created_unix_s"],
                           [member["pid"] for member in share["members"]])  # fmt: skip
        return found

    def test_the_plugin_is_killed(self):
        self.two_pods()
        before = self.snapshot("a")
        self.cluster.stop("driver", signal.SIGKILL)
        self.cluster.delete("pod", "b", "--grace-period=1")
        self.assertEqual(len(self.shares()), 2)
        logged = len(self.cluster.log("driver"))
        self.start_plugin()
        self.cluster.wait_until(lambda: len(self.shares()) == 1, "the end of the share of pod b")
        self.assertEqual(self.snapshot("a"), before)
        self.kai.place("c", self.gpu, {"gpu-fraction": "0.5"}, container("main", SLEEP))
        self.cluster.wait_running("c")
        self.assertEqual(self.terms_of("c"), (8 * GIB, 0.5, 1))
        self.assertEqual(self.snapshot("a"), before)
        self.assertNotIn("is not held to it", self.cluster.log("driver")[logged:])

    def test_two_plugins_while_it_is_upgraded(self):
        """The next one is connected before the last one ends; what one adds, the other does not."""
        before = self.connected()
        first = self.cluster.processes.pop("driver")
        self.addCleanup(first.kill)
        self.start_plugin()
        self.assertEqual(self.connected(), before + 1)
        self.kai.place("a", self.gpu, {"gpu-fraction": "0.5"}, container("main", SLEEP))
        self.cluster.wait_running("a")
        self.assertEqual(self.terms_of("a"), (8 * GIB, 0.5, 1))
        self.assertEqual([event for event in self.cluster.events_of("a") if event.startswith("Failed")], [])
        first.terminate()
        first.wait()
        self.kai.place("b", self.gpu, {"gpu-fraction": "0.5"}, container("main", SLEEP))
        self.cluster.wait_running("b")
        self.assertEqual(self.terms_of("b"), (8 * GIB, 0.5, 1))

    def test_containerd_is_killed(self):
        self.two_pods()
        before, connected = self.snapshot("a", "b"), self.connected()
        self.cluster.restart("containerd")
        self.wait_connected(connected)
        self.cluster.wait_until(self.cluster.node_ready, "a node that is ready")
        self.assertEqual(self.snapshot("a", "b"), before)
        self.kai.place("c", self.gpu, {"gpu-fraction": "0.5"}, container("main", SLEEP))
        self.cluster.wait_running("c")
        self.assertEqual(self.terms_of("c"), (8 * GIB, 0.5, 1))
        self.cluster.delete("pod", "a")
        self.cluster.wait_until(lambda: len(self.shares()) == 2, "the end of the share of pod a")

    def test_the_agent_is_killed(self):
        self.two_pods()
        before = self.snapshot("a", "b")
        self.machine.kill_agent()
        self.kai.place("c", self.gpu, {"gpu-fraction": "0.5"}, container("main", SLEEP))
        self.wait_event("c", "Failed", "cannot reach the agent")
        self.assertEqual(self.cluster.phase("c"), "Pending")
        # The end of a pod is not forgotten meanwhile.
        self.cluster.delete("pod", "b", "--grace-period=1")
        self.start_agent()
        self.cluster.wait_running("c")
        self.cluster.wait_until(lambda: len(self.shares()) == 2, "the end of the share of pod b")
        self.cluster.wait_until(lambda: self.share_of("a")["members"], "the program of pod a on its share")
        self.assertEqual(self.snapshot("a"), {"a": before["a"]})

    def test_an_agent_that_does_not_answer(self):
        """The runtime would make the container without the plugin if that did not answer in time."""
        connected = self.connected()
        pids = self.machine.agent_pids()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            self.kai.place("a", self.gpu, {"gpu-fraction": "0.5"}, container("main", SLEEP))
            self.wait_event("a", "Failed", "did not answer in time")
            self.assertEqual(self.cluster.phase("a"), "Pending")
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        self.cluster.wait_running("a")
        self.assertEqual(self.terms_of("a"), (8 * GIB, 0.5, 1))
        self.assertEqual(self.connected(), connected, "the runtime closed the plugin's connection")

    def test_without_the_plugin(self):
        """A pod starts without limits, which is reported later; one that requires the plugin does not start."""
        self.cluster.stop("driver", signal.SIGKILL)
        try:
            self.kai.place("a", self.gpu, {"gpu-fraction": "0.5", REQUIRED: "[prorata]"}, container("main", SLEEP))
            self.kai.place("b", self.gpu, {"gpu-fraction": "0.25"}, container("main", SLEEP))
            self.wait_event("a", "Failed", 'required plugin "prorata" not present')
            self.cluster.wait_running("b")
        finally:
            self.start_plugin()
        self.cluster.wait_running("a")
        self.assertEqual(self.terms_of("a"), (8 * GIB, 0.5, 1))
        self.cluster.wait_until(
            lambda: "container default/b/main has part of a GPU by KAI and is not held to it" in self.cluster.log("driver"),
            "a report of the container that started without limits",
        )


if __name__ == "__main__":
    unittest.main()
