"""docs/guide/kubernetes.md, followed literally: its commands for kubectl are run as they stand there, and what
it installs runs as pods, by its own manifests. Two things are stood in for, for nothing here reaches a
registry: the image is made of the unpacked packages and the libraries that they need on this machine, not by
the Dockerfile; and the agent is this test's, at /run/prorata in the cluster's namespace."""

import json
import os
import pathlib
import re
import unittest

import cluster
import dra
import harness
import helm_chart
import image
import packages
import pytest
from cluster import NODE
from cluster_case import NAMESPACE
from harness import GIB

pytestmark = pytest.mark.alone
GUIDE = harness.ROOT / "docs/guide/kubernetes.md"
PRODUCT = "localhost/prorata-kubernetes:1"
STOOD_IN_FOR = ("make package", "apt-get install", "podman")
BY_KUSTOMIZE = ("kubectl apply -k", "kubectl -n prorata-system set image")
BY_HELM = ("helm install",)


def commands(page, section):
    """What a reader of a section types."""
    text = page.split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^ +\$ (.+)$", text, re.M)


class Installed(dra.DraTestCase):
    NOT_TYPED = BY_HELM

    @classmethod
    def why_not(cls):
        if reason := packages.why_not():
            return "NEEDS PACKAGING: " + reason
        return super().why_not()

    @classmethod
    def install(cls):
        own = cls.cluster
        # Services, for the webhook is one and so is the API server to a pod.
        own.spawn("proxy", [
            cluster.BIN / "kube-proxy", f"--kubeconfig={own.folder}/kubeconfig", f"--hostname-override={NODE}",
            "--proxy-mode=iptables", "--cluster-cidr=10.99.0.0/24", "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0",
            "--healthz-bind-address=", "--metrics-bind-address=127.0.0.1:10249"])  # fmt: skip
        cls.import_product()
        cls.put_agent()
        for command in commands(GUIDE.read_text(encoding="utf-8"), "Install"):
            if not command.startswith(STOOD_IN_FOR + cls.NOT_TYPED):
                cls.follow(command)
        for name in cls.workloads():
            cls.follow(f"kubectl -n {NAMESPACE} rollout status --timeout=120s {name}")
        cls.wait_slice()

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
        folder = cls.cluster.folder
        programs = []
        for name in ("prorata", "prorata-kubernetes"):
            tree = packages.unpacked(name, folder / "packages" / name)
            programs.append((tree / "usr/bin" / name, f"usr/bin/{name}", 0o755))
        image.write(folder / "root.tar", programs)
        image.write_archive(folder / "image.tar", folder / "root.tar", [PRODUCT], ["prorata-kubernetes", "--help"])
        status, out, err = cls.cluster.ctr("-n", "k8s.io", "images", "import", "--local", folder / "image.tar")
        assert status == 0, f"{out} {err}"

    @classmethod
    def workloads(cls):
        listed = cls.cluster.get("daemonsets,deployments", "-n", NAMESPACE)["items"]
        return [f"{item['kind'].lower()}/{item['metadata']['name']}" for item in listed]

    @classmethod
    def try_to_follow(cls, command):
        """As a reader of the guide types it, in the repository: (exit status, stdout, stderr)."""
        settings = {"PATH": f"{cluster.BIN}:{cls.cluster.folder}/packages/prorata-kubernetes/usr/bin:{os.environ['PATH']}", "KUBECONFIG": f"{cls.cluster.folder}/kubeconfig",
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

    def test_two_pods_on_one_gpu(self):
        first, *rest = commands(GUIDE.read_text(encoding="utf-8").replace("# Kubernetes\n", "\n## Begin\n", 1), "Begin")
        self.assertIn("examples/kubernetes/two-pods.yaml", first)
        self.follow(first)
        self.cluster.wait_running("a", "b")
        for command in rest:
            self.assertIn("Running", self.follow(command))
        devices = {self.share_of(name)["uuid"] for name in ("a", "b")}
        self.assertEqual((len(self.shares()), len(devices)), (2, 1))
        self.assert_accounts_agree()
        status, out, _ = self.cluster.execute("a", "gpuload", "--allocate", "128MiB", "--until-refused")
        self.assertEqual(status, 0)
        self.assertEqual(json.loads(out.splitlines()[-1])["memory"]["device_total"], 8 * GIB)

    def test_who_has_what_and_why(self):
        self.cluster.apply(dra.template("share", {"memory": "2Gi", "compute": "30"}),
                           dra.template("huge", {"memory": "900Gi"}), dra.pod("c", "huge"),
                           dra.pod("a", "share"), dra.pod("b", "share", ["sleep", "infinity"]))  # fmt: skip
        self.cluster.wait_running("a", "b")
        self.allocated("a")
        section = "See who has what"
        shown = {}
        for command in commands(GUIDE.read_text(encoding="utf-8"), section):
            if not command.startswith("kubectl prorata top"):
                shown[command] = self.follow(command)
        rows = [line.split() for line in shown["kubectl prorata ps"].splitlines()]
        self.assertEqual(rows[0][:5], ["NAMESPACE", "POD", "CONTAINER", "NODE", "GPU"])
        self.assertEqual(rows[1][:9], ["default", "a", "main", NODE, "0", "2", "GiB", "/", "2"])
        self.assertEqual(rows[2][:5], ["default", "b", "main", NODE, "0"])
        self.assertIn("30%-100%", rows[1])
        self.assertIn("container main on GPU 0 of n1: idle", shown["kubectl prorata why a"])
        self.assertIn("holds 2 GiB / 2 GiB", shown["kubectl prorata why a"])
        waits = self.cluster.wait_until(lambda: "cannot allocate" in (said := self.follow("kubectl prorata why c"))
                                        and said, "a reason why pod c has no share")  # fmt: skip
        self.assertIn("pod c has no share: 0/1 nodes are available", waits)
        top = self.follow("kubectl prorata top -A --count 2 --seconds 1")
        self.assertEqual(top.count("NAMESPACE"), 2)
        elsewhere = self.follow("kubectl prorata ps -n kube-system")
        self.assertEqual(len(elsewhere.splitlines()), 1)
        status, _, err = self.try_to_follow("kubectl prorata ps --system-namespace nowhere")
        self.assertEqual(status, 1)
        self.assertIn("no pod of prorata's runs in namespace 'nowhere'", err)
        status, _, err = self.try_to_follow("kubectl prorata why nobody")
        self.assertEqual(status, 1)
        self.assertIn("there is no pod 'nobody' in namespace 'default'", err)

    def test_what_is_installed_has_no_more_rights_than_it_needs(self):
        for item in self.cluster.get("daemonsets,deployments", "-n", NAMESPACE)["items"]:
            for container in item["spec"]["template"]["spec"]["containers"]:
                security = container["securityContext"]
                self.assertFalse(security["allowPrivilegeEscalation"])
                self.assertTrue(security["readOnlyRootFilesystem"])
                self.assertEqual(security["capabilities"], {"drop": ["ALL"]})


class InstalledByHelm(Installed):
    NOT_TYPED = BY_KUSTOMIZE
    test_who_has_what_and_why = None  # is the same

    @classmethod
    def why_not(cls):
        if not (cluster.BIN / "helm").exists():
            return "NEEDS HELM: it is not built; `scripts/kubernetes_build.py build` builds it"
        return super().why_not()

    @classmethod
    def try_to_follow(cls, command):
        # `make package` is stood in for.
        if "build/packages/" in command:
            helm_chart.write(cls.cluster.folder)
        return super().try_to_follow(command.replace("build/packages/", f"{cls.cluster.folder}/"))


if __name__ == "__main__":
    unittest.main()
