"""Many pods with claims at once: each of their containers has its own share, on the GPU that was allocated."""

import os
import random
import re
import unittest

import cluster_case
import packing
import pytest
from cluster_case import SLEEP
from dra import DraTestCase, bytes_of, template

pytestmark = pytest.mark.alone
BURST = int(os.environ.get("PRORATA_TEST_PODS", "30"))
# Hundredths of a GPU's time, and MiB: together they fill three GPUs, however many there are.
UNIT = max(1, 200 // BURST)
SIZES = [(UNIT * hundredths, UNIT * mib) for hundredths, mib in ((1, 256), (1, 512), (2, 256), (2, 512))]


def name_of(size):
    return "size-{}-{}".format(*size)


def container(name, claim, command):
    return cluster_case.container(name, command, resources={"claims": [{"name": claim}]})


class FourGpus(DraTestCase):
    MACHINE_TOML = '[[devices]]\nmemory = "32GiB"\n' * 4
    # What it says of each claim's device, in the order of its decisions.
    OPTIONS = {"scheduler": ("--vmodule=dynamicresources=5",)}

    def pods(self, chance):
        """Of equal and unequal sizes, some with two containers, some with an init container."""
        made = []
        for number in range(BURST):
            sizes = {"main": chance.choice(SIZES) if number % 2 else SIZES[0]}
            if number % 5 == 0:
                sizes["side"] = SIZES[0]
            claims = [{"name": name, "resourceClaimTemplateName": name_of(size)} for name, size in sizes.items()]
            init = [container("first", "main", ["true"])] if number % 7 == 0 else []
            made.append(
                cluster_case.pod(
                    f"p{number}", *(container(name, name, SLEEP) for name in sizes), resourceClaims=claims, initContainers=init
                )
            )
        return made

    def in_order(self):
        """(hundredths, MiB) of each claim, as the scheduler chose their devices one after another."""
        order = {}
        for what, name in re.findall(r'"(Reserved|Released) resource in allocation result" pod=\S+ claim="default/([^"]+)"',
                                     self.cluster.log("scheduler")):  # fmt: skip
            order.pop(name, None)
            if what == "Reserved":
                order[name] = None
        claims = {item["metadata"]["name"]: item for item in self.cluster.get("resourceclaims")["items"]}
        self.assertEqual(sorted(order), sorted(claims))
        consumed = [claims[name]["status"]["allocation"]["devices"]["results"][0]["consumedCapacity"] for name in order]
        return [(int(has["compute"]), bytes_of(has["memory"]) >> 20) for has in consumed]

    def assert_as_allocated(self):
        devices = {one["name"]: one["attributes"]["uuid"]["string"] for one in self.slice()["spec"]["devices"]}
        claims = {item["metadata"]["name"]: item for item in self.cluster.get("resourceclaims")["items"]}
        shares = {share["name"]: share["devices"] for share in self.machine.ps()}
        said, kept = {}, {}
        for seen in self.cluster.get("pods")["items"]:
            for status in seen["status"]["resourceClaimStatuses"]:
                claim = claims[status["resourceClaimName"]]
                (result,) = claim["status"]["allocation"]["devices"]["results"]
                key = f"{seen['metadata']['name']}/{status['name']}"
                consumed = result["consumedCapacity"]
                said[key] = (f"claim-{claim['metadata']['uid']}", devices[result["device"]],
                             bytes_of(consumed["memory"]), int(consumed["compute"]) / 100)  # fmt: skip
                share = self.mounted_share(seen, status["name"])
                (on,) = shares[share]
                kept[key] = (share, on["uuid"], on["memory_limit_bytes"], on["compute_request"])
        self.assertEqual(kept, said)
        self.assertEqual(sorted(shares), sorted(name for name, *_ in said.values()))

    def test_a_burst(self):
        seed = int(os.environ.get("PRORATA_TEST_SEED", random.randrange(1 << 30)))
        print(f"PRORATA_TEST_SEED={seed}")
        pods = self.pods(random.Random(seed))
        self.cluster.apply(
            *(template(name_of(size), {"memory": f"{size[1]}Mi", "compute": str(size[0])}) for size in SIZES)
        )
        self.cluster.apply(*pods)
        self.wait_all_running([one["metadata"]["name"] for one in pods], 60 + 5 * BURST)
        self.assert_as_allocated()
        packing.check(self, self.in_order(), 4, 32, "dra")


if __name__ == "__main__":
    unittest.main()
