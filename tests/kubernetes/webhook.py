"""prorata's webhook in a cluster of ClusterTestCase: as a process, by the rights that it has in deploy/."""

import json

import cluster
import harness
from cluster import NODE_IP
from node import IMAGE
from harness import GIB

DEPLOY = harness.ROOT / "deploy" / "webhook"
MIGRATE = harness.ROOT / "examples" / "kubernetes" / "migrate"
PORT = 9443


def plain_pod(name, limits=None, annotations=None, labels=None, **spec):
    """A pod that sleeps, with limits of its only container."""
    main = {"name": "main", "image": IMAGE, "imagePullPolicy": "Never", "command": ["sleep", "infinity"],
            "resources": {"limits": limits or {}}}  # fmt: skip
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations or {}, "labels": labels or {}},
        "spec": {"dnsPolicy": "Default", "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
                 "containers": [main], **spec},
    }  # fmt: skip


class WithWebhook:
    """Beside ClusterTestCase."""

    # What the webhook does not take for a share of its own: to see that it answers.
    PROBE = {"prorata.dev/gpu-memory": "4"}

    @classmethod
    def install(cls):
        super().install()
        cls.cluster.kubectl("apply", "-f", DEPLOY / "webhook.yaml")
        configuration = json.loads(cls.cluster.kubectl(
            "create", "--dry-run=client", "-o", "json", "-f", DEPLOY / "webhook-configuration.yaml"))  # fmt: skip
        # The webhook is a process here, not a pod behind a service.
        configuration["webhooks"][0]["clientConfig"] = {"url": f"https://{NODE_IP}:{PORT}/mutate"}
        cls.cluster.apply(configuration)
        cls.start_webhook()

    @classmethod
    def start_webhook(cls, *options):
        path = cls.kubeconfig("prorata-webhook")
        trusted = cls.cluster.log("webhook").count("can trust the webhook")
        cls.cluster.spawn(
            "webhook",
            [cluster.DRIVER, "webhook", f"--kubeconfig={path}", f"--address={NODE_IP}",
             f"--port={PORT}", f"--names={NODE_IP}", *options],
        )  # fmt: skip
        cls.cluster.wait_until(
            lambda: cls.cluster.log("webhook").count("can trust the webhook") > trusted, "a trusted webhook"
        )
        # A moment later its API server uses the new certificate.
        probe = json.dumps(plain_pod("probe", cls.PROBE))
        cls.cluster.wait_until(
            lambda: cls.cluster.kubectl_try("create", "--dry-run=server", "-f", "-", text=probe)[0] == 0,
            "an answer of the webhook",
        )

    def tearDown(self):
        print("--- webhook log\n" + self.cluster.log("webhook")[-3000:])
        super().tearDown()

    def refusal(self, made, *options):
        """What the API server says when it refuses an object."""
        status, _, err = self.cluster.kubectl_try("create", *options, "-f", "-", text=json.dumps(made))
        self.assertNotEqual(status, 0, made)
        return err

    def share_of_container(self, name, container):
        raise NotImplementedError

    def assert_accounts(self):
        """What the agent keeps is what the API server says."""
        raise NotImplementedError

    def terms(self, name, container="main"):
        """Of a container's share: bytes of memory, compute and its limit."""
        share = self.share_of_container(name, container)
        return [share["devices"][0][key] for key in ("memory_limit_bytes", "compute_request", "compute_limit")]

    def test_annotations_stand_in_for_nvidias_resource(self):
        """Nobody offers that here, so the pod runs only without it."""
        made = plain_pod("a", {"nvidia.com/gpu": "1"}, {"prorata.dev/memory": "4Gi", "prorata.dev/compute": "25"})
        side = {**made["spec"]["containers"][0], "name": "side", "resources": {}}
        made["spec"]["containers"].append(side)
        self.cluster.apply(made)
        self.cluster.wait_running("a")
        self.assertEqual(self.terms("a"), [4 * GIB, 0.25, 1])
        status, _, err = self.cluster.kubectl_try("exec", "a", "-c", "side", "--", "gpuload", "--allocate", "1MiB")
        self.assertNotEqual(status, 0, "a container without a share has a GPU")
        self.assert_accounts()
        both = plain_pod("b", {"nvidia.com/gpu": "1", "prorata.dev/gpu-memory": "4"})
        self.assertIn("has a share and asks for nvidia.com/gpu", self.refusal(both))

    def test_pods_of_other_systems_run_as_they_are(self):
        for file, name, container, terms in (
            ("kubeshare.yaml", "kubeshare-pod", "t1", [2 * GIB, 0.3, 0.6]),
            ("gaiagpu.yaml", "vcuda", "nvidia", [3 * GIB, 0.3, 0.5]),
            ("hami.yaml", "gpu-pod", "ubuntu-container", [3 * GIB, 0.3, 1]),
            ("short-form.yaml", "short-form", "main", [4 * GIB, 0.2, 1]),
        ):
            with self.subTest(file):
                self.cluster.kubectl("apply", "-f", MIGRATE / file)
                self.cluster.wait_running(name)
                self.assertEqual(self.terms(name, container), terms)
                status, out, err = self.cluster.execute(name, "gpuload", "--allocate", "128MiB", "--until-refused")
                report = json.loads(out.splitlines()[-1])
                self.assertEqual((status, report["memory"]["total"]), (0, terms[0]), err)
                self.assertLess(report["allocated_bytes"], terms[0])
                self.assert_accounts()
                self.cluster.delete("pod", name)
