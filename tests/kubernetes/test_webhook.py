"""Pods in the names of older systems, and bad ones, as the API server has the webhook judge them."""

import base64
import json
import unittest

import pytest
from cluster import NODE_IP
from node import IMAGE
from dra import DraTestCase, pod, template
from harness import GIB
from webhook import WithWebhook, plain_pod

pytestmark = pytest.mark.alone
SIZE = {"memory": "4Gi", "compute": "30"}


class Webhook(WithWebhook, DraTestCase):
    def templates(self):
        return self.cluster.get("resourceclaimtemplates")["items"]

    def share_of_container(self, name, container):
        uid = self.cluster.get("resourceclaim", self.claim_of(name))["metadata"]["uid"]
        return next(share for share in self.machine.ps() if share["name"] == f"claim-{uid}")

    def assert_accounts(self):
        self.assert_accounts_agree()

    def test_two_containers_and_a_part_of_the_memory(self):
        made = plain_pod("a", {"nvidia.com/gpumem-percentage": "25", "nvidia.com/gpucores": "40"})
        made["spec"]["containers"].append({
            **made["spec"]["containers"][0], "name": "other",
            "resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"}},
        })  # fmt: skip
        self.cluster.apply(made)
        self.cluster.wait_running("a")
        limits = sorted((on["memory_limit_bytes"], on["compute_request"])
                        for share in self.machine.ps() for on in share["devices"])  # fmt: skip
        self.assertEqual(limits, [(4 * GIB, 0.4), (8 * GIB, 0)])
        for container, size in (("main", 4 * GIB), ("other", 8 * GIB)):
            _, out, _ = self.cluster.kubectl_try("exec", "a", "-c", container, "--", "gpuload", "--allocate", "1MiB")
            self.assertEqual(json.loads(out.splitlines()[-1])["memory"]["total"], size)

    def test_kubeshare_without_memory_has_that_part_of_it(self):
        labels = {"sharedgpu/gpu_request": "0.5", "sharedgpu/gpu_limit": "1.0", "sharedgpu/gpu_model": "Simulated-GPU"}
        self.cluster.apply(plain_pod("a", labels=labels, schedulerName="kubeshare-scheduler"))
        self.cluster.wait_running("a")
        self.assertEqual(self.terms("a"), [8 * GIB, 0.5, 1])
        # A model that nobody has.
        self.cluster.apply(plain_pod("b", labels={**labels, "sharedgpu/gpu_model": "Tesla-V100"}))
        self.cluster.wait_until(lambda: self.pending_reason("b"), "a reason why pod b waits")

    def test_hami_chooses_models(self):
        limits = {"nvidia.com/gpumem": "1024"}
        self.cluster.apply(plain_pod("a", limits, {"nvidia.com/use-gputype": "V100,SIMULATED"}),
                           plain_pod("b", limits, {"nvidia.com/nouse-gputype": "simulated"}))  # fmt: skip
        self.cluster.wait_running("a")
        self.cluster.wait_until(lambda: self.pending_reason("b"), "a reason why pod b waits")

    def test_pods_of_a_deployment(self):
        made = plain_pod("d", annotations={"prorata.dev/memory": "3Gi"}, labels={"app": "d"})
        del made["spec"]["restartPolicy"]
        self.cluster.apply({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
            "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "d"}},
                     "template": {"metadata": made["metadata"] | {"name": None}, "spec": made["spec"]}},
        })  # fmt: skip
        try:
            self.cluster.kubectl("rollout", "status", "deployment/d", "--timeout=60s")
            self.assertEqual(len(self.shares()), 2)
            self.assertEqual(len(self.templates()), 1)
            self.assert_accounts_agree()
            # The same annotation resizes what runs.
            name = self.cluster.get("pods", "-l", "app=d")["items"][0]["metadata"]["name"]
            self.cluster.kubectl("annotate", "pod", name, "--overwrite", "prorata.dev/memory=5Gi")
            self.wait_event(name, "ShareResized", "memory 3 GiB to 5 GiB")
        finally:
            self.cluster.delete("deployment", "d")

    def test_bad_pods_are_refused(self):
        privileged = plain_pod("a", {"nvidia.com/gpumem": "1000"})
        privileged["spec"]["containers"][0]["securityContext"] = {"privileged": True}
        both = plain_pod("a", {"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "8"})
        both["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "share"}]
        both["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
        devices = plain_pod("a", {"nvidia.com/gpumem": "1000"}, volumes=[{"name": "d", "hostPath": {"path": "/dev"}}])
        self.cluster.apply(template("share", SIZE))
        for made, says in (
            (plain_pod("a", {"nvidia.com/gpumem": "0"}),
             "container 'main' asks for 0 of nvidia.com/gpumem, which must be a whole number from 1"),
            (plain_pod("a", {"tencent.com/vcuda-core": "-5", "tencent.com/vcuda-memory": "1"}),
             "container 'main' asks for -5 of tencent.com/vcuda-core, which must be a whole number from 1"),
            (plain_pod("a", {"nvidia.com/gpucores": "120"}),
             "container 'main' asks for 120 of nvidia.com/gpucores, which must be a whole number from 0 to 100"),
            (plain_pod("a", {"nvidia.com/gpumem": "17000"}),
             "the pod asks for 16.75 GiB of a GPU's memory, and the cluster's largest GPU has 16 GiB"),
            (plain_pod("a", annotations={"prorata.dev/memory": "8 GB"}),
             "annotation prorata.dev/memory is '8 GB', and must be an amount of memory above 0 such as 8Gi or 512Mi"),
            (plain_pod("a", annotations={"prorata.dev/weight": "200"}),
             "the pod's annotations are about a share, and it asks for none"),
            (plain_pod("a", labels={"sharedgpu/gpu_request": "0.5", "sharedgpu/gpu_limit": "0.3"}),
             "sharedgpu/gpu_limit, 0.3, is below sharedgpu/gpu_request, 0.5"),
            (plain_pod("a", {"nvidia.com/gpumem": "1000"}, labels={"sharedgpu/gpu_request": "0.5"}),
             "the pod asks for parts of GPUs in the names of both KubeShare and HAMi; keep those of one of them"),
            (both, "the pod has the claim 'gpu' for a part of a GPU, and its container 'main' asks for one by "
                   "extended resources as well; keep one of the two"),
            (privileged, "container 'main' is privileged and would see all GPUs of its node"),
            (devices, "volume 'd' is '/dev' of the node, through which the pod would get around its share"),
        ):  # fmt: skip
            with self.subTest(says):
                said = self.refusal(made)
                self.assertIn('admission webhook "pods.prorata.dev" denied the request: ' + says, said)
        self.assertEqual(self.cluster.get("pods")["items"], [])
        self.assertEqual(len(self.templates()), 1)

    def test_a_bad_annotation_of_a_running_pod_is_refused_at_once(self):
        self.cluster.apply(template("share", SIZE), pod("a", "share", ["sleep", "infinity"]))
        self.cluster.wait_running("a")
        status, _, err = self.cluster.kubectl_try("annotate", "pod", "a", "prorata.dev/compute=half")
        self.assertNotEqual(status, 0)
        self.assertIn("annotation prorata.dev/compute is 'half', and must be whole hundredths of a GPU", err)
        self.cluster.kubectl("annotate", "pod", "a", "prorata.dev/memory=5Gi", "example.com/compute=half")
        self.wait_event("a", "ShareResized", "memory 4 GiB to 5 GiB")

    def test_a_privileged_container_for_debugging_is_refused(self):
        self.cluster.apply(template("share", SIZE), pod("a", "share", ["sleep", "infinity"]))
        self.cluster.wait_running("a")
        debug = ["debug", "pod/a", f"--image={IMAGE}", "--image-pull-policy=Never", "--target=main"]
        status, _, err = self.cluster.kubectl_try(*debug, "--profile=sysadmin", "-c", "bad", "--", "true")
        self.assertNotEqual(status, 0)
        self.assertIn("container 'bad' is privileged and would see all GPUs of its node", err)
        self.cluster.kubectl(*debug, "--profile=general", "-c", "good", "--", "true")

    def test_a_dry_run_leaves_nothing(self):
        made = plain_pod("a", {"nvidia.com/gpumem": "1000"})
        out = self.cluster.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", text=json.dumps(made))
        self.assertIn("resourceClaims", json.loads(out)["spec"])
        self.assertEqual(self.templates(), [])

    def test_pods_without_gpus_do_not_need_it(self):
        self.cluster.stop("webhook")
        try:
            self.cluster.apply(plain_pod("plain"))
            self.cluster.wait_running("plain")
            # And those that do are not started without limits.
            self.assertIn("failed calling webhook", self.refusal(plain_pod("a", {"nvidia.com/gpumem": "1000"})))
        finally:
            # Its next certificate is another one.
            self.start_webhook()

    def test_a_certificate_of_ones_own(self):
        folder = self.cluster.folder
        status, _, err = self.cluster.call(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1",
             "-subj", "/CN=webhook", "-addext", f"subjectAltName=IP:{NODE_IP}", "-keyout", folder / "own.key",
             "-out", folder / "own.crt"]
        )  # fmt: skip
        self.assertEqual(status, 0, err)
        self.cluster.stop("webhook")
        try:
            bundle = base64.b64encode((folder / "own.crt").read_bytes()).decode()
            patch = [{"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle}]
            self.cluster.kubectl("patch", "mutatingwebhookconfiguration", "prorata", "--type=json",
                                 "-p", json.dumps(patch))  # fmt: skip
            self.start_webhook(f"--cert={folder}/own.crt", f"--key={folder}/own.key")
        finally:
            self.cluster.stop("webhook")
            self.start_webhook()

    def test_what_the_webhook_may_do(self):
        kubectl = ["--kubeconfig", f"{self.cluster.folder}/prorata-webhook.kubeconfig"]
        for verb, what in (("update", "resourceclaimtemplates"), ("create", "resourceclaims"), ("list", "pods"),
                           ("get", "secrets"), ("get", "nodes"), ("get", "deviceclasses/other"), ("create", "pods"), ("create", "mutatingwebhookconfigurations"),
                           ("update", "mutatingwebhookconfigurations/other")):  # fmt: skip
            self.assertEqual(self.cluster.kubectl_try(*kubectl, "auth", "can-i", verb, what, "-A")[1].strip(), "no")


if __name__ == "__main__":
    unittest.main()
