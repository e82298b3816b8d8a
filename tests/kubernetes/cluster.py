"""A real Kubernetes for tests: etcd, the control plane, containerd and a kubelet as processes of this machine,
in mount and network namespaces of their own (the kubelet changes kernel settings of its machine, and bridges,
firewall rules and ports are the namespace's), all of it gone afterwards.

    cluster = Cluster()
    cluster.start()
    cluster.apply({...})
    cluster.close()

The kubelet's node is `n1`; add_node() makes another, with namespaces, containerd and a kubelet of its own.
image.write() of tests/containers makes the only image, IMAGE."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

import harness
from node import BIN, NO_NRI, Node, controllers

# Which Kubernetes: tests that need more than an older one has are skipped.
NEWEST = "1.36"
VERSION = os.environ.get("PRORATA_TEST_KUBERNETES", NEWEST)
KUBERNETES = BIN if VERSION == NEWEST else BIN.parent / f"bin-{VERSION}"
DRIVER = harness.BUILD / "bin" / "prorata-kubernetes"
NODE = "n1"
NODE_IP = "10.97.0.1"
SERVER = f"https://{NODE_IP}:6443"
TOOLS = {
    "etcd": "etcd-server",
    "runc": "runc",
    "iptables": "iptables",
    "nsenter": "util-linux",
    "ip": "iproute2",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
}


def why_not():
    """What is missing here for a cluster, or ""."""
    if os.geteuid() != 0:
        return "not run by root"
    if not all((BIN.parent / f"stamp-{part}").exists() for part in ("containerd", "kubernetes")):
        return f"{BIN} is not built; `scripts/kubernetes_build.py build` builds it (8 minutes of two CPUs)"
    if not (KUBERNETES / "kubernetes").exists():
        return f"{KUBERNETES} is not built; `scripts/kubernetes_build.py build {VERSION}` builds it"
    if not DRIVER.exists():
        return f"{DRIVER} is not built; `make kubernetes` builds it"
    missing = [package for tool, package in TOOLS.items() if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} is missing; `scripts/setup.sh kubernetes-tests` installs it"
    return ""


SCHEDULER = """apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection:
  kubeconfig: /etc/kubernetes/scheduler.conf
"""

KUBECONFIG = """apiVersion: v1
kind: Config
current-context: test
contexts: [{{name: test, context: {{cluster: test, user: {user}}}}}]
clusters: [{{name: test, cluster: {{server: "{server}", {trust}}}}}]
users: [{{name: {user}, user: {{token: {token}}}}}]
"""


class Cluster:
    def __init__(self, scheduler_configuration=SCHEDULER, programs=(), options=None, nri=NO_NRI):
        """`scheduler_configuration`: YAML with /etc/kubernetes/scheduler.conf for its kubeconfig. `programs`: more of
        them in the image, as image.write takes them. `options`: {component: more of its command line}. `nri`: containerd's
        settings of it on the first node; {folder} is the node's."""
        self.scheduler_configuration = scheduler_configuration
        self._options = options or {}
        self._programs = programs
        # Short: sockets lie below it.
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="pk-"))
        self.folder.chmod(0o755)
        self.node = Node(NODE, 1, self.folder, f"/{self.folder.name}", nri)
        self.nodes = [self.node]
        self.processes = {}
        self._commands = {}

    # Processes.

    def spawn(self, name, command, environment=None, node=None):
        """Starts a component, or starts it again; its output goes to FOLDER/NAME.log. `node`: whose namespaces it is in;
        the first's if there is none."""
        self._commands[name] = (command, environment, node)
        log = open(self.folder / f"{name}.log", "a")
        self.processes[name] = subprocess.Popen(
            (node or self.node).namespace.inside(command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "PATH": f"{KUBERNETES}:/usr/sbin:/usr/bin:/sbin:/bin", **(environment or {})},
        )
        log.close()
        return self.processes[name]

    def stop(self, name, number=signal.SIGTERM, within_s=15):
        process = self.processes.pop(name, None)
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(within_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def restart(self, name, number=signal.SIGKILL):
        self.stop(name, number)
        self.spawn(name, *self._commands[name])

    def log(self, name):
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def call(self, command, text=None, timeout_s=harness.DEADLINE_S):
        """(exit status, stdout, stderr), in the namespaces of the first node."""
        return self.node.call(command, text, timeout_s)

    def check_alive(self, *names):
        for name in names or self.processes:
            process = self.processes[name]
            if process.poll() is not None:
                raise AssertionError(f"{name} ended with {process.returncode}: {self.log(name)[-3000:]}")

    def wait_until(self, condition, what, deadline_s=harness.DEADLINE_S):
        def look():
            self.check_alive()
            return condition()

        return harness.wait_until(look, deadline_s, what, step_s=0.1)

    # Start.

    def start(self):
        self._write_files()
        self.node.open()
        folder = self.folder
        self.spawn("containerd", self.node.containerd())
        self.spawn("etcd", self._etcd())
        self.spawn("apiserver", self._apiserver())
        self._import_images(self.node)
        self.wait_until(
            lambda: self.kubectl_try("get", "--raw", "/readyz")[1] == "ok", "an API server that is ready"
        )
        self.spawn(
            "controller-manager",
            [KUBERNETES / "kube-controller-manager", f"--kubeconfig={folder}/kubeconfig", "--leader-elect=false",
             f"--service-account-private-key-file={folder}/sa.key", f"--root-ca-file={folder}/api/apiserver.crt",
             "--bind-address=127.0.0.1", "--authentication-skip-lookup", "--v=0",
             *self._options.get("controller-manager", ())],
        )  # fmt: skip
        self.spawn(
            "scheduler",
            [KUBERNETES / "kube-scheduler", f"--config={folder}/scheduler.yaml", "--bind-address=127.0.0.1",
             "--authentication-skip-lookup", "--v=0", *self._options.get("scheduler", ())],
        )  # fmt: skip
        self.spawn("kubelet", self.node.kubelet(KUBERNETES, folder / "kubeconfig"))
        self.wait_until(self.node_ready, "a node that is ready")
        self.wait_until(
            lambda: self.kubectl_try("get", "serviceaccount", "default")[0] == 0, "the default service account"
        )

    def add_node(self, name):
        """Another node, ready. The cluster has been started."""
        folder = self.folder / name
        folder.mkdir()
        node = Node(name, len(self.nodes) + 1, folder, f"{self.node.cgroup}/{name}")
        self.nodes.append(node)
        node.open(beside=self.node)
        with open(self.folder / "hosts", "a") as hosts:
            hosts.write(f"{node.ip} {name}\n")
        self.spawn(f"containerd-{name}", node.containerd(), node=node)
        self._import_images(node)
        self.spawn(f"kubelet-{name}", node.kubelet(KUBERNETES, self.folder / "kubeconfig"), node=node)
        self.wait_until(lambda: self.node_ready(name), f"node {name} ready")
        return node

    def _import_images(self, node):
        self.wait_until(lambda: node.ctr("version")[0] == 0, "an answer of containerd")
        node.import_images(self._programs)

    def _write_files(self):
        folder = self.folder
        for name in ("api", "etcd"):
            (folder / name).mkdir()
        # Containers and their hooks read it as whoever they run as.
        (folder / "etcd").chmod(0o700)
        for command in (["genrsa", "-out", folder / "sa.key", "2048"],
                        ["rsa", "-in", folder / "sa.key", "-pubout", "-out", folder / "sa.pub"]):  # fmt: skip
            subprocess.run(["openssl", *map(str, command)], check=True, capture_output=True)
        (folder / "tokens.csv").write_text('admintoken,admin,u1,"system:masters"\n')
        (folder / "kubeconfig").write_text(
            KUBECONFIG.format(server=SERVER, user="admin", token="admintoken", trust="insecure-skip-tls-verify: true")
        )
        scheduler = self.scheduler_configuration.replace("/etc/kubernetes/scheduler.conf", f"{folder}/kubeconfig")
        (folder / "scheduler.yaml").write_text(scheduler + "leaderElection: {leaderElect: false}\n")

    def _etcd(self):
        client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
        return ["etcd", f"--data-dir={self.folder}/etcd", f"--listen-client-urls={client}",
                f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}",
                "--unsafe-no-fsync"]  # fmt: skip

    def _apiserver(self):
        folder = self.folder
        return [KUBERNETES / "kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", f"--bind-address={NODE_IP}",
                f"--advertise-address={NODE_IP}", "--secure-port=6443", f"--cert-dir={folder}/api",
                f"--token-auth-file={folder}/tokens.csv", "--authorization-mode=Node,RBAC",
                "--service-cluster-ip-range=10.98.0.0/24",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={folder}/sa.pub", f"--service-account-signing-key-file={folder}/sa.key",
                "--allow-privileged=true", "--v=0", *self._options.get("apiserver", ())]  # fmt: skip

    # What is asked of it.

    def ctr(self, *arguments):
        return self.node.ctr(*arguments)

    def kubectl_try(self, *arguments, text=None):
        return self.call(
            [KUBERNETES / "kubectl", f"--kubeconfig={self.folder}/kubeconfig", f"--cache-dir={self.folder}/kubectl",
             *arguments], text
        )  # fmt: skip

    def kubectl(self, *arguments, text=None):
        status, out, err = self.kubectl_try(*arguments, text=text)
        if status != 0:
            raise AssertionError(f"kubectl {' '.join(map(str, arguments))} ended with {status}: {out} {err}")
        return out

    def get(self, *arguments):
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def find(self, *arguments):
        """As get; None where there is none."""
        status, out, err = self.kubectl_try("get", *arguments, "-o", "json")
        if status != 0 and "NotFound" not in err:
            raise AssertionError(f"kubectl get {arguments}: {err}")
        return json.loads(out) if status == 0 else None

    def apply(self, *objects):
        self.kubectl("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def delete(self, *arguments):
        self.kubectl("delete", *arguments, "--ignore-not-found", "--timeout=120s")

    def delete_pods_and_events(self):
        """All, however many. Pods of other tests have the same names: their events are nobody's."""
        self.kubectl("delete", "pods", "--all", "--grace-period=1", "--wait=false")
        self.wait_until(lambda: not self.get("pods")["items"], "the end of all pods", 900)
        self.kubectl("delete", "--raw", "/api/v1/namespaces/default/events")

    def node_ready(self, name=NODE):
        node = self.find("node", name)
        conditions = node["status"].get("conditions", []) if node else []
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
        return ready and not node["spec"].get("taints")

    def pod(self, name):
        return self.get("pod", name)

    def phase(self, name):
        return self.pod(name)["status"]["phase"]

    def wait_running(self, *names):
        for name in names:
            self.wait_until(lambda name=name: self.phase(name) == "Running", f"pod {name} Running")

    def events_of(self, name):
        """"REASON: MESSAGE" of each event of a pod."""
        items = self.get("events", f"--field-selector=involvedObject.name={name}")["items"]
        return [f"{event['reason']}: {event['message']}" for event in items]

    def execute(self, pod, *command):
        return self.kubectl_try("exec", pod, "--", *command)

    def pids_of(self, container_id):
        """Of a container ("containerd://..."), as this machine numbers them."""
        for controller in controllers():
            for path in (controller / self.folder.name).glob(f"**/{container_id.rpartition('/')[2]}/cgroup.procs"):
                return [int(pid) for pid in path.read_text().split()]
        return []

    # The end.

    def close(self):
        if self.node.namespace is not None:
            # Pods while the kubelet and the driver still run: neither could end without them.
            with contextlib.suppress(subprocess.TimeoutExpired, AssertionError):
                if all(name in self.processes for name in ("apiserver", "kubelet", "driver")):
                    self.call(
                        [KUBERNETES / "kubectl", f"--kubeconfig={self.folder}/kubeconfig", "delete", "pods", "--all",
                         "--grace-period=1", "--timeout=30s"], timeout_s=40
                    )  # fmt: skip
            kubelets = [name for name in self.processes if name.startswith("kubelet")]
            containerds = [name for name in self.processes if name.startswith("containerd")]
            control = ["scheduler", "controller-manager", "apiserver", "etcd"]
            drivers = [name for name in self.processes if name.startswith("driver")]
            for name in [*drivers, *kubelets, *control, *containerds]:
                self.stop(name, within_s=3)
            self._kill_pods()
            for node in self.nodes:
                if node.namespace is not None:
                    node.namespace.close()
        self._remove_cgroups()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _pids_of_pods(self):
        found = set()
        for controller in controllers():
            for path in (controller / self.folder.name).glob("**/cgroup.procs"):
                with contextlib.suppress(OSError):
                    found.update(map(int, path.read_text().split()))
        return found

    def _kill_pods(self):
        deadline = time.monotonic() + 20
        while (pids := self._pids_of_pods()) and time.monotonic() < deadline:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def _remove_cgroups(self):
        for controller in controllers():
            groups = sorted((controller / self.folder.name).glob("**/"), key=lambda path: -len(path.parts))
            for group in groups:
                with contextlib.suppress(OSError):
                    group.rmdir()
