"""A cluster with prorata's agent and DRA driver on the simulated GPU, for tests of unittest's."""

import pathlib

import cluster
import cluster_case
import harness
from cluster import NODE
from cluster_case import ClusterTestCase

DEPLOY = harness.ROOT / "deploy" / "kubernetes"
CLASS = "gpu.prorata.dev"


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
    main = cluster_case.container("main", command, resources={"claims": [{"name": "gpu"}]})
    return cluster_case.pod(name, main, resourceClaims=[{"name": "gpu", field: source}])


class DraTestCase(ClusterTestCase):
    LEFT = ("resourceclaims", "resourceclaimtemplates")

    @classmethod
    def why_not(cls):
        if cluster.VERSION != cluster.NEWEST:
            return f"NEEDS KUBERNETES {cluster.NEWEST}: before that claims share no device by default"
        return super().why_not()

    @classmethod
    def install(cls):
        """What deploy/ has, but for the DaemonSet: the driver runs as a process, by its own rights."""
        for name in ("namespace", "device-class", "rbac", "slice-policy"):
            cls.cluster.kubectl("apply", "-f", DEPLOY / f"{name}.yaml")
        cls.start_driver()
        cls.wait_slice()

    @classmethod
    def start_driver(cls):
        cls.start_driver_of(cls.cluster.node, cls.machine, "dra", "prorata-dra")

    @classmethod
    def wait_slice(cls):
        return cls.cluster.wait_until(cls.slice, "the node's ResourceSlice")

    @classmethod
    def slice(cls):
        return cls.cluster.find("resourceslice", f"{NODE}-{CLASS}")

    def assert_nothing_left(self):
        self.cluster.wait_until(lambda: self.shares() == [], "the end of all shares of claims")
        self.assertEqual(self.specifications(), [])

    def shares(self):
        """The agent's, of claims."""
        return sorted(share["name"] for share in self.machine.ps() if share["name"].startswith("claim-"))

    def specifications(self):
        return sorted(path.name for path in pathlib.Path(self.cluster.folder, "cdi").iterdir())

    def claim_of(self, name):
        """The generated claim of a pod."""
        return self.cluster.pod(name)["status"]["resourceClaimStatuses"][0]["resourceClaimName"]

    def share_of(self, name):
        uid = self.cluster.get("resourceclaim", self.claim_of(name))["metadata"]["uid"]
        return self.machine.share(f"claim-{uid}")

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
