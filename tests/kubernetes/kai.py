"""A cluster with prorata's agent and NRI plugin on the simulated GPU, and what stands in for KAI, for tests of unittest's.
KAI itself (NVIDIA's scheduler) does not run here, for its module is not served: `Kai` does to a pod what KAI's webhook does
when it is made and its binder when it is bound (what that is, and from which of its files: src/kubernetes/kai/kai_part.h)."""

import json
import pathlib

import cluster
import cluster_case
from cluster import NODE
from cluster_case import ClusterTestCase


def container(name="main", command=None, **fields):
    return cluster_case.container(name, command, **fields)


class Kai:
    """In place of KAI's webhook, scheduler and binder, which this is not: it takes the GPU that it is told."""

    def __init__(self, own):
        self._cluster = own

    def place(self, name, gpu, annotations, *containers, portion=None, restart="Never", init=(), devices=None):
        """A pod with KAI's annotations, bound to the node. `devices`: how the GPU is named, if not by its UUID."""
        portion = portion or f"{float(annotations.get('gpu-fraction', '0.5')):.2f}"
        made = cluster_case.pod(name, *(containers or [container()]), restart=restart, initContainers=list(init))
        made["metadata"]["annotations"] = annotations
        made["metadata"]["labels"] = {"kai.scheduler/queue": "default-queue"}
        made["spec"]["schedulerName"] = "kai-scheduler"
        maps = self._admit(made)
        self._cluster.apply(made)
        self._bind(made, maps, devices or gpu, portion)

    def _admit(self, made):
        """As pkg/admission/webhook/v1alpha2/gpusharing does: variables of one container from config maps to come."""
        spec, annotations = made["spec"], made["metadata"]["annotations"]
        named = annotations.get("gpu-fraction-container-name")
        kind, index, one = "", 0, spec["containers"][0]
        for prefix, listed in (("i", spec["initContainers"]), ("", spec["containers"])):
            for number, candidate in enumerate(listed):
                if candidate["name"] == named:
                    kind, index, one = prefix, number, candidate
        base = f"{made['metadata']['name']}-abc1234-shared-gpu"
        annotations["runai/shared-gpu-configmap"] = base
        capabilities = f"{base}-{kind}{index}"
        one["env"] = one.get("env", []) + [
            {"name": key, "valueFrom": {"configMapKeyRef": {"name": capabilities, "key": key}}}
            for key in ("NVIDIA_VISIBLE_DEVICES", "RUNAI_NUM_OF_GPUS", "GPU_PORTION")
        ]
        one["envFrom"] = [{"configMapRef": {"name": f"{capabilities}-evar", "optional": False}}]
        spec["volumes"] = [{"name": f"{capabilities}-vol", "configMap": {"name": capabilities}}]
        return capabilities, f"{capabilities}-evar"

    def _bind(self, made, maps, devices, portion):
        """As pkg/binder does: the config maps, the group's label, then the binding."""
        name = made["metadata"]["name"]
        owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": self._cluster.pod(name)["metadata"]["uid"]}
        given = {"NVIDIA_VISIBLE_DEVICES": devices, "GPU_PORTION": portion, "RUNAI_NUM_OF_GPUS": portion}
        self._cluster.apply(*(
            {"apiVersion": "v1", "kind": "ConfigMap", "data": data,
             "metadata": {"name": config_map, "ownerReferences": [owner]}}
            for config_map, data in zip(maps, (given, {}))
        ))  # fmt: skip
        self._cluster.kubectl("label", "pod", name, "runai-gpu-group=7b1c")
        self._cluster.kubectl("annotate", "pod", name, "received-resource-type=Fraction")
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
                   "target": {"apiVersion": "v1", "kind": "Node", "name": NODE}}  # fmt: skip
        self._cluster.kubectl(
            "create", "--raw", f"/api/v1/namespaces/default/pods/{name}/binding", "-f", "-", text=json.dumps(binding)
        )


class KaiTestCase(ClusterTestCase):
    # As docs/guide/kai.md has it; the runtime's time for an answer is for a machine that is busy.
    NRI = """socket_path = "{folder}/nri.sock"
plugin_request_timeout = "10s"
default_validator = {{enable = true}}
"""

    kai = gpu = None

    @classmethod
    def begin(cls):
        cls.kai = Kai(cls.cluster)
        cls.gpu = cls.machine.gpus()[0]["uuid"]

    @classmethod
    def install(cls):
        cls.begin()
        cls.start_plugin()

    @classmethod
    def start_plugin(cls):
        before = cls.connected()
        cls.cluster.spawn(
            "driver",
            [cluster.DRIVER, "nri", "--nri-socket", cls.cluster.folder / "nri.sock",
             "--agent-dir", cls.machine.runtime_dir],
        )  # fmt: skip
        cls.wait_connected(before)

    @classmethod
    def connected(cls):
        """How often the runtime took the plugin."""
        return cls.cluster.log("containerd").count("connected and synchronized")

    @classmethod
    def wait_connected(cls, before):
        cls.cluster.wait_until(lambda: cls.connected() > before, "a plugin that the runtime asks")

    def assert_nothing_left(self):
        self.cluster.wait_until(lambda: self.shares() == {}, "the end of all shares of pods")
        self.assertEqual([path.name for path in pathlib.Path(self.cluster.folder, "cdi").iterdir()], [])

    def shares(self):
        return {share["name"]: share for share in self.machine.ps() if share["name"].startswith("kai-")}

    def share_of(self, name, of="main"):
        """That it really has, by its mounts."""
        share = self.shares()[self.mounted_share(self.cluster.pod(name), of)]
        self.assertEqual(share["name"], "kai-" + self.cluster.pod(name)["metadata"]["uid"])
        return share
