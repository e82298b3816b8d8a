"""PyTorch from PyPI in pods, two on one GPU: each sees its size, is refused beyond it, and goes on."""

import unittest

import dra
import plugin
import pytest
import pytorch
from harness import GIB

pytestmark = pytest.mark.alone
SHARE = 6 * GIB


class PyTorchCase:
    """For a ClusterTestCase; `pods` makes two."""

    @classmethod
    def why_not(cls):
        return pytorch.why_not() or super().why_not()

    @classmethod
    def programs(cls):
        return pytorch.programs()

    def completed(self, made):
        """The pod with PyTorch in its container."""
        paths = {f"v{number}": str(path) for number, path in enumerate(pytorch.mounted())}
        made["spec"]["volumes"] = [{"name": name, "hostPath": {"path": path}} for name, path in paths.items()]
        main = made["spec"]["containers"][0]
        main["volumeMounts"] = [{"name": name, "mountPath": path, "readOnly": True} for name, path in paths.items()]
        main["env"] = [{"name": name, "value": value} for name, value in pytorch.environment(SHARE).items()]
        return made

    def test_two_on_one_gpu(self):
        self.start()
        for name in ("a", "b"):
            self.cluster.wait_until(
                lambda name=name: self.cluster.phase(name) in ("Succeeded", "Failed"), f"the end of pod {name}", 300
            )
            out = self.cluster.kubectl("logs", name)
            self.assertEqual(self.cluster.phase(name), "Succeeded", out)
            pytorch.check(self, out, f"pod {name}")
        self.assertLessEqual(self.machine.usage()["peak_bytes"], 2 * SHARE)


class ByClaims(PyTorchCase, dra.DraTestCase):
    def start(self):
        self.cluster.apply(
            dra.template("share", {"memory": "6Gi", "compute": "30"}),
            *(self.completed(dra.pod(name, "share", pytorch.command())) for name in ("a", "b")),
        )


class ByResources(PyTorchCase, plugin.PluginTestCase):
    def start(self):
        main = plugin.container("main", 30, 6, pytorch.command())
        self.cluster.apply(*(self.completed(plugin.pod(name, dict(main))) for name in ("a", "b")))


if __name__ == "__main__":
    unittest.main()
