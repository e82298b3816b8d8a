"""A cluster with prorata's agent, device plugin and scheduler extender on the simulated GPU, as for clusters
without DRA, for tests of unittest's."""

import json
import os
import pathlib
import unittest

import cluster
import harness
from cluster import IMAGE, NODE, SERVER

DEPLOY = harness.ROOT / "deploy" / "kubernetes-resources"
NAMESPACE = "prorata-system"
COMPUTE = "prorata.dev/gpu-compute"
MEMORY = "prorata.dev/gpu-memory"
ASSIGNED = "prorata.dev/assigned-gpus"
GPUS = "prorata.dev/gpus"
UNIT = 256 << 20
HOLD = ["gpuload", "--allocate", "128MiB", "--until-refused", "--hold", "3600", "--announce"]
SLEEP = ["sleep", "infinity"]
CONTEXT = 512 << 20


def container(name, compute, gib, command=None):
    """A container that asks for hundredths of a GPU's time and GiB of its memory."""
    limits = {COMPUTE: str(compute)} if compute else {}
    if gib:
        limits[MEMORY] = str(round(gib * 4))
    return {"name": name, "image": IMAGE, "imagePullPolicy": "Never", "command": command or HOLD,
            "resources": {"limits": limits}}  # fmt: skip


def pod(name, *containers, init=(), restart="Never"):
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "dnsPolicy": "Default",
            "restartPolicy": restart,
            "terminationGracePeriodSeconds": 1,
            "initContainers": list(init),
            "containers": list(containers),
        },
    }


class PluginTestCase(unittest.TestCase):
    """One cluster for the class; what a test made in it is gone after the test."""

    MACHINE_TOML = None
    cluster = machine = None

    @classmethod
    def setUpClass(cls):
        if reason := cluster.why_not():
            raise unittest.SkipTest("NEEDS KUBERNETES: " + reason)
        cls.machine = harness.Machine(cls.MACHINE_TOML)
        cls.addClassCleanup(cls.machine.close)
        cls.cluster = cluster.Cluster(
            (DEPLOY / "scheduler-configuration.yaml").read_text()
        )
        cls.addClassCleanup(cls.cluster.close)
        cls.cluster.start()
        cls.start_agent()
        cls.install()

    @classmethod
    def start_agent(cls):
        before = os.umask(0)
        try:
            cls.machine.start_agent("--cdi-dir", cls.cluster.folder / "cdi")
        finally:
            os.umask(before)

    @classmethod
    def install(cls):
        """What deploy/ has, but for the DaemonSets: both roles run as processes, by their own rights."""
        for name in ("namespace", "rbac", "node-policy"):
            cls.cluster.kubectl("apply", "-f", DEPLOY / f"{name}.yaml")
        cls.start_extender()
        cls.start_plugin()
        cls.wait_ready()

    @classmethod
    def kubeconfig(cls, account, *bound):
        token = cls.cluster.kubectl("create", "token", account, "-n", NAMESPACE, "--duration=24h", *bound).strip()
        path = cls.cluster.folder / f"{account}.kubeconfig"
        path.write_text(
            cluster.KUBECONFIG.format(
                server=SERVER, user="prorata", token=token, trust="certificate-authority: api/apiserver.crt"
            )
        )
        return path

    @classmethod
    def start_plugin(cls):
        path = cls.kubeconfig("prorata-device-plugin", "--bound-object-kind=Node", f"--bound-object-name={NODE}")
        cls.cluster.spawn(
            "driver",
            [cluster.DRIVER, "device-plugin", f"--node-name={NODE}", f"--kubeconfig={path}",
             f"--agent-dir={cls.machine.runtime_dir}"],
        )  # fmt: skip

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

    def setUp(self):
        self.addCleanup(self.remove_all)

    def tearDown(self):
        for name in ("driver", "extender"):
            print(f"--- {name} log\n" + self.cluster.log(name)[-6000:])
        print("--- agent log\n" + self.machine.agent_log()[-4000:])

    def remove_all(self):
        self.cluster.delete("pods", "--all", "--grace-period=1")
        self.assert_nothing_left()

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

    def mounted_share(self, seen, of):
        """The name of the share that a running container really has, by its mounts; `seen`: its pod."""
        status = next(one for one in seen["status"]["containerStatuses"] if one["name"] == of)
        mounts = pathlib.Path(f"/proc/{self.cluster.pids_of(status['containerID'])[0]}/mountinfo").read_text()
        where = next(line.split()[3] for line in mounts.splitlines() if line.split()[4] == "/run/prorata/share")
        return where.rpartition("/")[2]

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

    def announced(self, name, of="main"):
        for line in self.cluster.kubectl("logs", name, "-c", of).splitlines():
            event = json.loads(line)
            if event.get("event") == "allocated":
                return event
        return None

    def allocated(self, name, of="main"):
        return self.cluster.wait_until(lambda: self.announced(name, of), f"memory in pod {name}")

    def pending_reason(self, name):
        conditions = self.cluster.pod(name)["status"].get("conditions", [])
        return next((c.get("message", "") for c in conditions
                     if c["type"] == "PodScheduled" and c["status"] == "False"), "")  # fmt: skip

    def wait_event(self, name, reason, says):
        self.cluster.wait_until(
            lambda: any(event.startswith(reason) and says in event for event in self.cluster.events_of(name)),
            f"an event {reason} of pod {name} that says '{says}'",
        )
