"""Groups of pods with claims, all or nothing, by Kubernetes' own PodGroups (alpha in 1.36), and by annotations and labels
that the webhook turns into such."""

import unittest

import dra
import pytest
from cluster_case import SLEEP
from webhook import WithWebhook, plain_pod

pytestmark = pytest.mark.alone
GATES = "--feature-gates=GenericWorkload=true,GangScheduling=true"


def group(name, least):
    return {
        "apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": {"name": name},
        "spec": {"schedulingPolicy": {"gang": {"minCount": least}}},
    }  # fmt: skip


def pod_of(name, of):
    made = dra.pod(name, "third", SLEEP)
    made["spec"]["schedulingGroup"] = {"podGroupName": of}
    return made


class Groups(WithWebhook, dra.DraTestCase):
    LEFT = ("podgroups", *dra.DraTestCase.LEFT)
    OPTIONS = {
        "apiserver": (GATES, "--runtime-config=scheduling.k8s.io/v1alpha2=true"),
        "controller-manager": (GATES,),
        "scheduler": (GATES,),
    }

    def setUp(self):
        super().setUp()
        self.cluster.apply(dra.template("third", {"memory": "4Gi", "compute": "30"}))

    def test_a_group_waits_for_all_of_its_pods(self):
        self.cluster.apply(group("train", 2), pod_of("a", "train"))
        self.cluster.apply(dra.pod("other", "third", SLEEP))
        # The scheduler has seen pod a before it placed this one.
        self.cluster.wait_running("other")
        self.assertEqual(self.cluster.phase("a"), "Pending")
        self.cluster.apply(pod_of("b", "train"))
        self.cluster.wait_running("a", "b")
        self.assert_accounts_agree()

    def test_of_a_group_that_does_not_fit_none_has_a_share(self):
        """Three of 30 % fit on the GPU, and the group has four."""
        names = [f"p{number}" for number in range(4)]
        self.cluster.apply(group("large", 4), *(pod_of(name, "large") for name in names))
        for name in names:
            self.cluster.wait_until(lambda name=name: self.pending_reason(name), f"a reason why pod {name} waits")
        self.cluster.apply(dra.pod("other", "third", SLEEP))
        self.cluster.wait_running("other")
        self.assertEqual([self.cluster.phase(name) for name in names], ["Pending"] * 4)
        self.assertEqual(len(self.shares()), 1)
        self.assert_accounts_agree()

    def test_a_group_of_kubeshare_s(self):
        labels = {"sharedgpu/gpu_request": "0.3", "sharedgpu/gpu_limit": "1.0", "sharedgpu/group_name": "train",
                  "sharedgpu/group_headcount": "3", "sharedgpu/group_threshold": "1.0"}  # fmt: skip
        annotations = {"prorata.dev/group": "train", "prorata.dev/group-size": "3"}
        own = dra.pod("c", "third", SLEEP)
        own["metadata"]["annotations"] = annotations
        self.cluster.apply(*(plain_pod(name, labels=labels, schedulerName="kubeshare-scheduler") for name in "ab"))
        self.cluster.apply(dra.pod("other", "third", SLEEP))
        self.cluster.wait_running("other")
        self.assertEqual([self.cluster.phase(name) for name in "ab"], ["Pending"] * 2)
        self.cluster.delete("pod", "other")
        self.cluster.apply(own)
        self.cluster.wait_running("a", "b", "c")
        self.assert_accounts_agree()

    # The groups are what is of interest here.
    test_pods_of_other_systems_run_as_they_are = test_annotations_stand_in_for_nvidias_resource = None


if __name__ == "__main__":
    unittest.main()
