"""examples/compose: two services, each on its share, by podman-compose."""
import json
import shutil
import unittest

import pytest

import harness
import podman
from harness import GIB, MIB

FILE = harness.ROOT / "examples" / "compose" / "compose.yaml"
LOAD = "gpuload --allocate 128MiB --until-refused"
# podman-compose makes a bridge for every project; a test leaves the machine's network alone.
WITHOUT_NETWORK = """#!/bin/bash
[ "$1" != network ] || exit 0
arguments=()
while [ $# -gt 0 ]; do
  case "$1" in
    --net | --network-alias) shift ;;
    *) arguments+=("$1") ;;
  esac
  shift
done
exec PODMAN "${arguments[@]}"
"""


class Compose(podman.PodmanTestCase):
    def setUp(self):
        if shutil.which("podman-compose") is None:
            self.skipTest("NEEDS PODMAN-COMPOSE: it is not installed; `scripts/setup.sh containers` installs it")
        super().setUp()

    @pytest.mark.long
    def test_two_services_on_two_shares(self):
        shares = {"train": (self.create("train", "--memory", "2GiB"), 2 * GIB),
                  "serve": (self.create("serve", "--memory", "1GiB"), GIB)}
        folder = self.machine.folder / self.named("compose")
        folder.mkdir()
        (folder / "podman").write_text(WITHOUT_NETWORK.replace("PODMAN", shutil.which("podman")))
        (folder / "podman").chmod(0o755)
        environment = {"IMAGE": podman.IMAGE, "TRAIN": LOAD, "SERVE": LOAD,
                       "PATH": f"{folder}:{self.machine.environment['PATH']}",
                       "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
                       **{f"{name.upper()}_SHARE": share for name, (share, _) in shares.items()},
                       **self.podman.environment}
        (folder / "storage.conf").write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{self.podman.folder}/storage"\n'
            f'runroot = "{self.podman.folder}/run"\n')
        command = ["podman-compose", "-p", self.named("compose"), "-f", FILE]
        status, out, err = self.machine.call([*command, "up", "--detach"], environment=environment, cwd=folder)
        self.assertEqual(status, 0, out + err)
        for name, (_, size) in shares.items():
            self.assertEqual(self.podman.call("wait", f"{self.named('compose')}_{name}_1").strip(), "0")
            log = self.podman.call("logs", f"{self.named('compose')}_{name}_1")
            self.assertEqual(json.loads(log.splitlines()[-1])["allocated_bytes"], size - 512 * MIB)


if __name__ == "__main__":
    unittest.main()
