"""A page of docs/guide, followed literally: its commands for podman and kubectl are run as they stand there, and what
they install runs as pods, by its own manifests. Two things are stood in for: nothing here is a registry, so the image is
imported where the page pushes it; and the agent is the test's, at /run/prorata in the cluster's namespace."""

import json
import os
import pathlib
import re

import cluster
import harness
import packages
import product
from cluster import NODE
from cluster_case import NAMESPACE
from webhook import plain_pod

GUIDE = harness.ROOT / "docs/guide"
PRODUCT = "localhost/prorata-kubernetes:1"
STOOD_IN_FOR = ("make package", "apt-get install", "podman")


def commands(page, section):
    """What a reader of a section of docs/guide/PAGE types; "": of what comes before the first section."""
    text = "\n## \n" + (GUIDE / page).read_text(encoding="utf-8")
    text = text.split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^ +\$ (.+)$", text, re.M)


class FollowsGuide:
    """Beside ClusterTestCase."""

    PAGE = None  # of docs/guide
    NOT_TYPED = ()  # how commands of the page begin that are another way

    @classmethod
    def why_not(cls):
        return product.why_not() or super().why_not()

    @classmethod
    def install(cls):
        own = cls.cluster
        # Services, for the webhook is one and so is the API server to a pod.
        own.spawn("proxy", [
            cluster.KUBERNETES / "kube-proxy", f"--kubeconfig={own.folder}/kubeconfig", f"--hostname-override={NODE}",
            "--proxy-mode=iptables", "--cluster-cidr=10.99.0.0/24", "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0",
            "--healthz-bind-address=", "--metrics-bind-address=127.0.0.1:10249"])  # fmt: skip
        cls.import_product()
        cls.put_agent()
        for command in commands(cls.PAGE, "Install"):
            if not command.startswith(STOOD_IN_FOR + cls.NOT_TYPED):
                cls.follow(command)
        for name in cls.workloads():
            cls.follow(f"kubectl -n {NAMESPACE} rollout status --timeout=120s {name}")
        # Its service leads to it a moment later; whoever types is slower.
        probe = json.dumps(plain_pod("probe", annotations={"prorata.dev/memory": "1Gi"}))
        cls.cluster.wait_until(
            lambda: cls.cluster.kubectl_try("create", "--dry-run=server", "-f", "-", text=probe)[0] == 0,
            "an answer of the webhook",
        )

    @classmethod
    def put_agent(cls):
        # A mount of the cluster's namespace alone; the folder itself is this machine's.
        place = pathlib.Path("/run/prorata")
        if not place.exists():
            place.mkdir()
            cls.addClassCleanup(place.rmdir)
        status, _, err = cls.cluster.call(["mount", "--bind", cls.machine.runtime_dir, place])
        assert status == 0, err

    @classmethod
    def import_product(cls):
        builder = product.Builder(cls.cluster.folder)
        try:
            builder.follow(next(typed for typed in commands("kubernetes.md", "Install") if "podman build" in typed), PRODUCT)
            archive = builder.save(PRODUCT)
            status, out, err = cls.cluster.ctr("-n", "k8s.io", "images", "import", "--local", archive)
            assert status == 0, f"{out} {err}"
        finally:
            builder.close()
        # For `kubectl prorata`.
        packages.unpacked("prorata-kubernetes", cls.cluster.folder / "packages" / "prorata-kubernetes")

    @classmethod
    def workloads(cls):
        listed = cls.cluster.get("daemonsets,deployments", "-n", NAMESPACE)["items"]
        return [f"{item['kind'].lower()}/{item['metadata']['name']}" for item in listed]

    @classmethod
    def try_to_follow(cls, command):
        """As a reader of the guide types it, in the repository: (exit status, stdout, stderr)."""
        settings = {"PATH": f"{cluster.KUBERNETES}:{cluster.BIN}:{cls.cluster.folder}/packages/prorata-kubernetes/usr/bin:{os.environ['PATH']}", "KUBECONFIG": f"{cls.cluster.folder}/kubeconfig",
                    "NODE": NODE, "IMAGE": PRODUCT, "HOME": str(cls.cluster.folder)}  # fmt: skip
        return cls.cluster.call(
            ["env", "-C", harness.ROOT, *(f"{key}={value}" for key, value in settings.items()), "sh", "-c", command])

    @classmethod
    def follow(cls, command):
        status, out, err = cls.try_to_follow(command)
        if status != 0:
            pods = cls.cluster.kubectl_try("get", "pods,events", "-A")[1]
            raise AssertionError(f"`{command}` ended with {status}: {out} {err}\n{pods}")
        return out

    def tearDown(self):
        for workload in self.workloads():
            print(f"--- {workload}", self.cluster.kubectl_try("logs", "-n", NAMESPACE, workload, "--tail=50"))

    def assert_least_rights(self):
        for item in self.cluster.get("daemonsets,deployments", "-n", NAMESPACE)["items"]:
            for container in item["spec"]["template"]["spec"]["containers"]:
                security = container["securityContext"]
                self.assertFalse(security["allowPrivilegeEscalation"])
                self.assertTrue(security["readOnlyRootFilesystem"])
                self.assertEqual(security["capabilities"], {"drop": ["ALL"]})
