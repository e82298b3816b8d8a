"""A cluster with prorata's agent and DRA driver on the simulated GPU, for tests of unittest's."""

import json
import os
import pathlib
import unittest

import cluster
import harness
from cluster import IMAGE, NODE, SERVER

DEPLOY = harness.ROOT / "deploy" / "kubernetes"
CLASS = "gpu.prorata.dev"
NAMESPACE = "prorata-system"
HOLD = ["gpuload", "--allocate", "128MiB", "--until-refused", "--hold", "3600", "--announce"]
CONTEXT = 512 << 20


def template(name, capacity=None, config=None, **exactly):
    """A ResourceClaimTemplate with one request; `capacity` and `config` as the API has them."""
    request = {"deviceClassName": CLASS, **exactly}
    if capacity:
        request["capacity"] = {"requests": capacity}
    devices = {"requests": [{"name": "gpu", "exactly": request}]}
    if config:
        parameters = {"apiVersion": "gpu.prorata.dev/v1alpha1", "kind": "ShareConfig", **config}
        devices["config"] = [{"opaque": {"driver": CLASS, "parameters": parameters}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": devices}},
    }


def claim(name, **options):
    made = template(name, **options)
    return {**made, "kind": "ResourceClaim", "spec": made["spec"]["spec"]}


def pod(name, source, command=None, field="resourceClaimTemplateName"):
    """One container with one claim."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "dnsPolicy": "Default",
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "resourceClaims": [{"name": "gpu", field: source}],
            "containers": [
                {
                    "name": "main",
                    "image": IMAGE,
                    "imagePullPolicy": "Never",
                    "command": command or HOLD,
                    "resources": {"claims": [{"name": "gpu"}]},
                }
            ],
        },
    }


class DraTestCase(unittest.TestCase):
    """One cluster for the class; what a test made in it is gone after the test."""

    MACHINE_TOML = None
    cluster = machine = None

    @classmethod
    def setUpClass(cls):
        if reason := cluster.why_not():
            raise unittest.SkipTest("NEEDS KUBERNETES: " + reason)
        cls.machine = harness.Machine(cls.MACHINE_TOML)
        cls.addClassCleanup(cls.machine.close)
        # Its end comes first: pods need the agent to end.
        cls.cluster = cluster.Cluster()
        cls.addClassCleanup(cls.cluster.close)
        cls.cluster.start()
        cls.start_agent()
        cls.install()

    @classmethod
    def start_agent(cls):
        # The simulated GPU's state is files, and a GPU is for every user of a container.
        before = os.umask(0)
        try:
            cls.machine.start_agent("--cdi-dir", cls.cluster.folder / "cdi")
        finally:
            os.umask(before)

    @classmethod
    def install(cls):
        """What deploy/ has, but for the DaemonSet: the driver runs as a process, by its own rights."""
        for name in ("namespace", "device-class", "rbac", "slice-policy"):
            cls.cluster.kubectl("apply", "-f", DEPLOY / f"{name}.yaml")
        cls.start_driver()
        cls.wait_slice()

    @classmethod
    def start_driver(cls):
        folder = cls.cluster.folder
        token = cls.cluster.kubectl(
            "create", "token", "prorata-dra", "-n", NAMESPACE, "--bound-object-kind=Node",
            f"--bound-object-name={NODE}", "--duration=24h",
        ).strip()  # fmt: skip
        (folder / "driver.kubeconfig").write_text(
            cluster.KUBECONFIG.format(
                server=SERVER, user="dra", token=token, trust="certificate-authority: api/apiserver.crt"
            )
        )
        cls.cluster.spawn(
            "driver",
            [cluster.DRIVER, "dra", f"--node-name={NODE}", f"--kubeconfig={folder}/driver.kubeconfig",
             f"--agent-dir={cls.machine.runtime_dir}"],
        )  # fmt: skip

    @classmethod
    def wait_slice(cls):
        return cls.cluster.wait_until(cls.slice, "the node's ResourceSlice")

    @classmethod
    def slice(cls):
        return cls.cluster.find("resourceslice", f"{NODE}-{CLASS}")

    def setUp(self):
        self.addCleanup(self.remove_all)

    def tearDown(self):
        print("--- driver log\n" + self.cluster.log("driver")[-4000:])
        print("--- agent log\n" + self.machine.agent_log()[-4000:])

    def remove_all(self):
        self.cluster.delete("pods", "--all", "--grace-period=1")
        # Pods of other tests have the same names: their events are nobody's.
        for kind in ("resourceclaims", "resourceclaimtemplates", "events"):
            self.cluster.delete(kind, "--all")
        self.assert_nothing_left()

    def assert_nothing_left(self):
        self.cluster.wait_until(lambda: self.shares() == [], "the end of all shares of claims")
        self.assertEqual(self.specifications(), [])

    def shares(self):
        """The agent's, of claims."""
        return sorted(share["name"] for share in self.machine.ps() if share["name"].startswith("claim-"))

    def specifications(self):
        return sorted(path.name for path in pathlib.Path(self.cluster.folder, "cdi").iterdir())

    def prorata(self, *arguments):
        status, out, err = self.machine.call([harness.PRORATA, *arguments])
        self.assertEqual(status, 0, err)
        return out

    def wait_event(self, name, reason, says):
        self.cluster.wait_until(
            lambda: any(event.startswith(reason) and says in event for event in self.cluster.events_of(name)),
            f"an event {reason} of pod {name} that says '{says}'",
        )

    def claim_of(self, name):
        """The generated claim of a pod."""
        return self.cluster.pod(name)["status"]["resourceClaimStatuses"][0]["resourceClaimName"]

    def share_of(self, name):
        uid = self.cluster.get("resourceclaim", self.claim_of(name))["metadata"]["uid"]
        return self.machine.share(f"claim-{uid}")

    def allocated(self, name):
        """What a pod's program announced about the memory that it got."""
        return self.cluster.wait_until(lambda: self.announced(name), f"memory in pod {name}")

    def announced(self, name):
        for line in self.cluster.kubectl("logs", name).splitlines():
            event = json.loads(line)
            if event.get("event") == "allocated":
                return event
        return None

    def pending_reason(self, name):
        conditions = self.cluster.pod(name)["status"].get("conditions", [])
        return next((c.get("message", "") for c in conditions
                     if c["type"] == "PodScheduled" and c["status"] == "False"), "")  # fmt: skip

    def assert_accounts_agree(self):
        """What the agent keeps for claims is what the API server says was allocated."""
        kept = {share["name"]: (share["devices"][0]["memory_limit_bytes"], share["devices"][0]["compute_request"])
                for share in self.machine.ps() if share["name"].startswith("claim-")}  # fmt: skip
        said = {}
        for item in self.cluster.get("resourceclaims")["items"]:
            for result in item.get("status", {}).get("allocation", {}).get("devices", {}).get("results", []):
                consumed = result["consumedCapacity"]
                said[f"claim-{item['metadata']['uid']}"] = (bytes_of(consumed["memory"]),
                                                            int(consumed["compute"]) / 100)  # fmt: skip
        self.assertEqual(kept, said)


def bytes_of(quantity):
    units = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
    return int(quantity[:-2]) * units[quantity[-2:]] if quantity[-2:] in units else int(quantity)
