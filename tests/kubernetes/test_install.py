"""docs/guide/kubernetes.md, followed literally (installed.py)."""

import json
import unittest

import cluster
import dra
import helm_chart
import pytest
from cluster import NODE
from harness import GIB
from installed import FollowsGuide, commands

pytestmark = pytest.mark.alone
BY_KUSTOMIZE = ("kubectl apply -k", "kubectl -n prorata-system set image")
BY_HELM = ("helm install",)


class Installed(FollowsGuide, dra.DraTestCase):
    PAGE = "kubernetes.md"
    NOT_TYPED = BY_HELM

    @classmethod
    def install(cls):
        super().install()
        cls.wait_slice()

    def test_two_pods_on_one_gpu(self):
        first, *rest = commands(self.PAGE, "")
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
        for command in commands(self.PAGE, section):
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
        self.assert_least_rights()


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
