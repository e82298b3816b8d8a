"""The extender for clusters with DRA, with 5,000 nodes of 8 GPUs: how long its scores take at 100 pods a second."""

import json
import time
import unittest

import pytest
import quiet
import test_extender_scale as scale
from test_extender_scale import GPUS, MOST_MIB, MOST_P99_MS, NODES, PODS_PER_S

pytestmark = pytest.mark.alone
PODS = min(scale.PODS, 500)
DRIVER_NAME = "gpu.prorata.dev"


def resource_slice(number):
    devices = [
        {"name": f"gpu-{gpu}", "allowMultipleAllocations": True, "attributes": {"model": {"string": "Model"}},
         "capacity": {"memory": {"value": "80Gi"}, "compute": {"value": "100"}}}
        for gpu in range(GPUS)
    ]  # fmt: skip
    name = f"node-{number:05}"
    return {"metadata": {"name": name, "uid": f"slice-{number}"},
            "spec": {"driver": DRIVER_NAME, "nodeName": name, "devices": devices, "pool": {"name": name}}}  # fmt: skip


def claim(number):
    compute, memory = ((30, "8Gi"), (10, "4Gi"), (100, "80Gi"), (0, "2Gi"))[number % 4]
    exactly = {"deviceClassName": DRIVER_NAME, "count": 1,
               "capacity": {"requests": {"memory": memory, "compute": str(compute)}}}  # fmt: skip
    return {"metadata": {"name": f"claim-{number}", "namespace": "default", "uid": f"claim-uid-{number}"},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}  # fmt: skip


def allocated(made, node):
    capacity = made["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"]
    result = {"driver": DRIVER_NAME, "pool": node, "device": "gpu-0", "request": "gpu", "consumedCapacity": capacity}
    return {**made, "status": {"allocation": {"devices": {"results": [result]}}}}


class ClaimScores(scale.ScaleTestCase):
    OPTIONS = ("--claims",)
    READY = f"claims for GPUs on {NODES} nodes"

    @staticmethod
    def api_server():
        lists = {"resourceslices": [resource_slice(number) for number in range(NODES)],
                 "resourceclaims": [claim(number) for number in range(PODS)]}  # fmt: skip
        return scale.ApiServer(lists, "/resourceclaims")

    def test_prioritize(self):
        names = [made["spec"]["nodeName"] for made in self.api.lists["resourceslices"]]
        scheduler = scale.Scheduler(self.port)
        took_s = []
        with quiet.Watch([self.extender.pid]) as watch:
            begin = time.perf_counter()
            for number, made in enumerate(self.api.lists["resourceclaims"]):
                time.sleep(max(0, begin + number / PODS_PER_S - time.perf_counter()))
                one = {"metadata": {"name": "p", "namespace": "default", "uid": f"pod-{number}"},
                       "spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": made["metadata"]["name"]}]}}  # fmt: skip
                body = json.dumps({"Pod": one, "Nodes": None, "NodeNames": names}).encode()
                scores, seconds = scheduler.call("prioritize", body)
                took_s.append(seconds)
                best = max(scores, key=lambda score: score["Score"])
                self.assertEqual((len(scores), best["Score"]), (NODES, 10))
                self.api.events.put({"type": "MODIFIED", "object": allocated(made, best["Host"])})
        took_s.sort()
        p99_ms = 1e3 * took_s[PODS * 99 // 100]
        figures = (f"scores of {PODS} pods on {NODES} nodes: median {1e3 * took_s[PODS // 2]:.1f} ms, p99 {p99_ms:.1f} ms; "
                   f"{self.mib():.0f} MiB")  # fmt: skip
        print(figures, watch.figures)
        self.assertLess(self.mib(), MOST_MIB)
        watch.judge(self, p99_ms < MOST_P99_MS, figures)


if __name__ == "__main__":
    unittest.main()
