"""PyTorch from PyPI in a container on a share: it sees the share's size, is refused beyond it, and goes on."""
import unittest

import podman
import pytorch
from harness import GIB

SHARE = 6 * GIB


class PyTorch(podman.PodmanTestCase):
    def setUp(self):
        if reason := pytorch.why_not():
            self.skipTest(reason)
        self.PROGRAMS = pytorch.programs()  # pylint: disable=invalid-name
        super().setUp()

    def exercise(self, *arguments):
        share = self.create("torch", "--memory", str(SHARE))
        options = [f"--volume={path}:{path}:ro" for path in pytorch.mounted()]
        options += [f"--env={name}={value}" for name, value in pytorch.environment(SHARE).items()]
        status, out, err = self.podman.run(self.named("torch"), share, pytorch.command(*arguments), options)
        self.assertEqual(status, 0, out + err)
        pytorch.check(self, out, "a container")
        self.assertLessEqual(self.machine.usage()["peak_bytes"], SHARE)

    def test_in_a_container(self):
        self.exercise()

    def test_with_cuda_malloc_async(self):
        self.exercise("backend:cudaMallocAsync")


if __name__ == "__main__":
    unittest.main()
