"""A cluster with prorata's agent, device plugin and scheduler extender on the simulated GPU, as for clusters
without DRA, for tests of unittest's."""

import json
import pathlib

import cluster
import cluster_case
import harness
from cluster import NODE
from cluster_case import ClusterTestCase

DEPLOY = harness.ROOT / "deploy" / "kubernetes-resources"
COMPUTE = "prorata.dev/gpu-compute"
MEMORY = "prorata.dev/gpu-memory"
ASSIGNED = "prorata.dev/assigned-gpus"
GPUS = "prorata.dev/gpus"
UNIT = 256 << 20


def container(name, compute, gib, command=None):
    """A container that asks for hundredths of a GPU's time and GiB of its memory."""
    limits = {COMPUTE: str(compute)} if compute else {}
    if gib:
        limits[MEMORY] = str(round(gib * 4))
    return cluster_case.container(name, command, resources={"limits": limits})


def pod(name, *containers, init=(), restart="Never"):
    return cluster_case.pod(name, *containers, restart=restart, initContainers=list(init))


class PluginTestCase(ClusterTestCase):
    SCHEDULER = (DEPLOY / "scheduler-configuration.yaml").read_text()
    LOGS = ("driver", "extender")

    @classmethod
    def install(cls):
        """What deploy/ has, but for the DaemonSets: both roles run as processes, by their own rights."""
        for name in ("namespace", "rbac", "node-policy"):
            cls.cluster.kubectl("apply", "-f", DEPLOY / f"{name}.yaml")
        cls.start_extender()
        cls.start_plugin()
        cls.wait_ready()

    @classmethod
    def start_plugin(cls):
        cls.start_driver_of(cls.cluster.node, cls.machine, "device-plugin", "prorata-device-plugin")

    @classmethod
    def start_extender(cls):
        path = cls.kubeconfig("prorata-extender")
        cls.cluster.spawn("extender", [cluster.DRIVER, "extender", f"--kubeconfig={path}"])

    @classmethod
    def wait_ready(cls):
        """Until the scheduler can place pods: by the extender, and by the node's own resources."""
        units = sum(gpu["total_bytes"] // UNIT for gpu in cls.machine.gpus())

        def ready():
            node = cls.cluster.get("node", NODE)
            return (node["status"]["allocatable"].get(MEMORY) == str(units)
                    and GPUS in node["metadata"].get("annotations", {}))  # fmt: skip

        cls.cluster.wait_until(ready, "a node with GPUs for pods")

    def assert_nothing_left(self):
        self.cluster.wait_until(lambda: self.shares() == {}, "the end of all shares of pods")
        left = [path.name for path in pathlib.Path(self.cluster.folder, "cdi").iterdir()]
        self.assertEqual(left, [])

    def shares(self):
        """The agent's, of pods, by name."""
        return {share["name"]: share for share in self.machine.ps() if share["name"].startswith("pod-unit-")}

    def assigned(self, name):
        """{container: its GPUs}, as the extender wrote it."""
        return json.loads(self.cluster.pod(name)["metadata"]["annotations"][ASSIGNED])

    def share_of(self, name, of="main"):
        return self.shares()[self.mounted_share(self.cluster.pod(name), of)]

    def assert_as_assigned(self):
        """Each running container has its own share, on the GPUs and of the size that the API server says; there
        are no others."""
        shares, kept, said = self.shares(), {}, {}
        for seen in self.cluster.get("pods")["items"]:
            if seen["status"]["phase"] != "Running":
                continue
            pod_name = seen["metadata"]["name"]
            assigned = json.loads(seen["metadata"]["annotations"][ASSIGNED])
            for one in seen["spec"]["containers"]:
                limits = one["resources"].get("limits", {})
                if MEMORY not in limits:
                    continue
                name = self.mounted_share(seen, one["name"])
                gpus = len(assigned[one["name"]])
                said[name] = (pod_name, one["name"], sorted(assigned[one["name"]]),
                              int(limits[MEMORY]) * UNIT // gpus, int(limits.get(COMPUTE, 0)) / 100 / gpus)  # fmt: skip
                on = shares[name]["devices"]
                kept[name] = (pod_name, one["name"], sorted(gpu["uuid"] for gpu in on),
                              on[0]["memory_limit_bytes"], on[0]["compute_request"])  # fmt: skip
        self.assertEqual(kept, said)
        self.assertEqual(sorted(shares), sorted(said))
