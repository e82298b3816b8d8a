"""What tests of unittest's with a real cluster share: a machine with simulated GPUs, its agent, the cluster of it, and
what is asked of pods in it."""

import json
import os
import pathlib
import unittest

import cluster
import harness
from cluster import SERVER
from node import IMAGE

NAMESPACE = "prorata-system"
HOLD = ["gpuload", "--allocate", "128MiB", "--until-refused", "--hold", "3600", "--announce"]
SLEEP = ["sleep", "infinity"]
# More than a program's context takes of a share, of what it could allocate in steps of 128 MiB.
CONTEXT = 512 << 20


def container(name, command=None, **fields):
    return {"name": name, "image": IMAGE, "imagePullPolicy": "Never", "command": command or HOLD, **fields}


def pod(name, *containers, restart="Never", **spec):
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "dnsPolicy": "Default",
            "restartPolicy": restart,
            "terminationGracePeriodSeconds": 1,
            "containers": list(containers),
            **spec,
        },
    }


class ClusterTestCase(unittest.TestCase):
    """One cluster for the class; what a test made in it is gone after the test."""

    MACHINE_TOML = None
    SCHEDULER = cluster.SCHEDULER
    NRI = cluster.NO_NRI  # containerd's settings of it
    OPTIONS = None  # {component: more of its command line}
    LOGS = ("driver",)
    LEFT = ()  # kinds of which a test may leave some, beside pods
    cluster = machine = None

    @classmethod
    def setUpClass(cls):
        if reason := cls.why_not():
            raise unittest.SkipTest(reason)
        cls.machine = harness.Machine(cls.MACHINE_TOML)
        cls.addClassCleanup(cls.machine.close)
        # Its end comes first: pods need the agent to end.
        cls.cluster = cluster.Cluster(cls.SCHEDULER, cls.programs(), cls.OPTIONS, cls.NRI)
        cls.addClassCleanup(cls.cluster.close)
        cls.cluster.start()
        cls.start_agent()
        cls.install()

    @classmethod
    def why_not(cls):
        reason = cluster.why_not()
        return reason and "NEEDS KUBERNETES: " + reason

    @classmethod
    def programs(cls):
        """More of them in the image, as image.write takes them."""
        return ()

    @classmethod
    def install(cls):
        raise NotImplementedError

    @classmethod
    def start_agent(cls):
        cls.start_agent_of(cls.cluster.node, cls.machine)

    @classmethod
    def start_agent_of(cls, node, machine):
        # The simulated GPU's state is files, and a GPU is for every user of a container.
        before = os.umask(0)
        try:
            machine.start_agent("--cdi-dir", node.folder / "cdi")
        finally:
            os.umask(before)

    @classmethod
    def restart_agent(cls):
        cls.machine.kill_agent()
        cls.start_agent()

    @classmethod
    def kubeconfig(cls, account, *bound, node=None):
        """A file with the rights of an account of prorata's; `bound`: options of its token; `node`: in whose folder."""
        token = cls.cluster.kubectl("create", "token", account, "-n", NAMESPACE, "--duration=24h", *bound).strip()
        path = (node or cls.cluster.node).folder / f"{account}.kubeconfig"
        trust = f"certificate-authority: {cls.cluster.folder}/api/apiserver.crt"
        path.write_text(cluster.KUBECONFIG.format(server=SERVER, user="prorata", token=token, trust=trust))
        return path

    @classmethod
    def start_driver_of(cls, node, machine, role, account):
        """The node's driver or device plugin, by the rights of an account on this node."""
        path = cls.kubeconfig(account, "--bound-object-kind=Node", f"--bound-object-name={node.name}", node=node)
        cls.cluster.spawn(
            "driver" if node is cls.cluster.node else f"driver-{node.name}",
            [cluster.DRIVER, role, f"--node-name={node.name}", f"--kubeconfig={path}", f"--agent-dir={machine.runtime_dir}"],
            node=node,
        )

    @classmethod
    def start_api_server(cls):
        """After it was stopped."""
        cls.cluster.spawn("apiserver", cls.cluster._apiserver())
        cls.cluster.wait_until(
            lambda: cls.cluster.kubectl_try("get", "--raw", "/readyz")[1] == "ok", "an API server that is ready"
        )
        cls.cluster.wait_until(cls.cluster.node_ready, "a node that is ready")

    def setUp(self):
        self.addCleanup(self.remove_all)

    def tearDown(self):
        # Where a pod does not start although all is well here, Kubernetes' own may say why.
        for name in (*self.LOGS, "scheduler", "controller-manager"):
            print(f"--- {name} log\n" + self.cluster.log(name)[-6000:])
        print("--- agent log\n" + self.machine.agent_log()[-4000:])

    def remove_all(self):
        self.cluster.delete_pods_and_events()
        for kind in self.LEFT:
            self.cluster.delete(kind, "--all")
        self.assert_nothing_left()

    def assert_nothing_left(self):
        raise NotImplementedError

    def prorata(self, *arguments):
        status, out, err = self.machine.call([harness.PRORATA, *arguments])
        self.assertEqual(status, 0, err)
        return out

    def wait_event(self, name, reason, says):
        self.cluster.wait_until(
            lambda: any(event.startswith(reason) and says in event for event in self.cluster.events_of(name)),
            f"an event {reason} of pod {name} that says '{says}'",
        )

    def wait_all_running(self, names, deadline_s):
        """A burst of pods; none may fail."""

        def running():
            items = self.cluster.get("pods")["items"]
            self.assertEqual([one["status"].get("reason") for one in items if one["status"]["phase"] == "Failed"], [])
            return sum(one["status"]["phase"] == "Running" for one in items) == len(names)

        self.cluster.wait_until(running, f"{len(names)} running pods", deadline_s)
        events = self.cluster.get("events")["items"]
        self.assertEqual([one["message"] for one in events if "UnexpectedAdmission" in one["reason"]], [])

    def mounted_share(self, seen, of):
        """The name of the share that a running container really has; `seen`: its pod."""
        return self.mounted_folder(seen, of).rpartition("/")[2]

    def mounted_folder(self, seen, of):
        """Of that share, by the container's mounts."""
        status = next(one for one in seen["status"]["containerStatuses"] if one["name"] == of)
        mounts = pathlib.Path(f"/proc/{self.cluster.pids_of(status['containerID'])[0]}/mountinfo").read_text()
        return next(line.split()[3] for line in mounts.splitlines() if line.split()[4] == "/run/prorata/share")

    def pending_reason(self, name):
        conditions = self.cluster.pod(name)["status"].get("conditions", [])
        return next((c.get("message", "") for c in conditions
                     if c["type"] == "PodScheduled" and c["status"] == "False"), "")  # fmt: skip

    def announced(self, name, of="main"):
        for line in self.cluster.kubectl("logs", name, "-c", of).splitlines():
            event = json.loads(line)
            if event.get("event") == "allocated":
                return event
        return None

    def allocated(self, name, of="main"):
        """What a pod's program announced about the memory that it got."""
        return self.cluster.wait_until(lambda: self.announced(name, of), f"memory in pod {name}")
