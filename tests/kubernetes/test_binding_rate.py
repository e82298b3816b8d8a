"""How many pods a second the scheduler binds where our extender chooses their GPUs, beside how many it binds without us.

The kubelet is stopped meanwhile, for what it does for each pod would take the processors; and the scheduler starts when
all pods are there, so that not the rate at which they were made is measured."""

import os
import signal
import statistics
import subprocess
import time
import unittest

import pytest
from cluster import KUBERNETES, NODE
from cluster_case import SLEEP
from plugin import PluginTestCase, container, pod

pytestmark = pytest.mark.alone
PODS = int(os.environ.get("PRORATA_TEST_PODS", "200"))
ROUNDS = 3


class BindingRate(PluginTestCase):
    MACHINE_TOML = '[[devices]]\nmemory = "32GiB"\n' * 4

    def watch(self):
        """A process that prints the name and the node of each pod whenever it changes."""
        columns = "custom-columns=NAME:.metadata.name,NODE:.spec.nodeName"
        command = [KUBERNETES / "kubectl", f"--kubeconfig={self.cluster.folder}/kubeconfig", "get", "pods", "--watch-only",
                   "--no-headers", "-o", columns]  # fmt: skip
        watch = subprocess.Popen(self.cluster.node.namespace.inside(command), stdout=subprocess.PIPE, text=True)
        self.addCleanup(watch.wait)
        self.addCleanup(watch.kill)
        return watch

    def rate(self, compute, gib):
        """Pods bound a second, from the first to the last."""
        pods = [pod(f"p{number}", container("main", compute, gib, SLEEP)) for number in range(PODS)]
        kubelet = self.cluster.processes["kubelet"]
        self.cluster.stop("scheduler")
        kubelet.send_signal(signal.SIGSTOP)
        try:
            self.cluster.apply(*pods)
            watch = self.watch()
            begin = time.monotonic()
            self.cluster.spawn("scheduler", *self.cluster._commands["scheduler"])
            bound = {}
            while len(bound) < PODS:
                name, node = watch.stdout.readline().split()
                if node == NODE:
                    bound.setdefault(name, time.monotonic())
            self.assertLess(time.monotonic() - begin, 35, "the node may have been taken for lost")
            self.cluster.kubectl("delete", "pods", "--all", "--force", "--grace-period=0")
            return (PODS - 1) / (max(bound.values()) - min(bound.values()))
        finally:
            kubelet.send_signal(signal.SIGCONT)
            self.assert_nothing_left()
            self.cluster.wait_until(self.cluster.node_ready, "a node that is ready")

    def test_not_below_the_scheduler_without_us(self):
        rates = [(self.rate(0, 0), self.rate(1, 0.25)) for _ in range(ROUNDS)]
        ratio = statistics.median(ours / plain for plain, ours in rates)
        text = "; ".join(f"{plain:.1f} without, {ours:.1f} with" for plain, ours in rates)
        print(f"pods bound a second, of {PODS}: {text}; {ratio:.2f} times as many")
        self.assertGreaterEqual(ratio, 1, text)


if __name__ == "__main__":
    unittest.main()
