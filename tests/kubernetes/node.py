"""A node of a cluster of tests (cluster.py): its namespaces, and the commands of its containerd and its kubelet."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess

import harness
import image

BIN = harness.BUILD / "kubernetes" / "bin"
IMAGE = "localhost/prorata-test:1"
PAUSE = "localhost/pause:1"
CGROUPS = pathlib.Path("/sys/fs/cgroup")
# What the kubelet would write, for the whole machine.
KERNEL_SETTINGS = {"vm/overcommit_memory": "1", "kernel/panic": "10", "kernel/panic_on_oops": "1"}

CONTAINERD = """version = 3
root = "{folder}/containerd/root"
state = "{folder}/containerd/state"
[grpc]
address = "{folder}/containerd.sock"
[ttrpc]
address = "{folder}/containerd.sock.ttrpc"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{pause}"
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
disable_apparmor = true
enable_cdi = true
cdi_spec_dirs = ["{folder}/cdi"]
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["/usr/lib/cni"]
conf_dir = "{folder}/cni"
[plugins.'io.containerd.nri.v1.nri']
{nri}
"""
NO_NRI = "disable = true"

CNI = {
    "cniVersion": "1.0.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "ipMasq": True,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": "{pods}"}]],
                "routes": [{"dst": "0.0.0.0/0"}],
                "dataDir": "{folder}/cni-data",
            },
        }
    ],
}

def kubelet_configuration(folder, cgroup_root, address):
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": address,
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "containerRuntimeEndpoint": f"unix://{folder}/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup_root,
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "oomScoreAdj": 0,
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
            "nodefs.inodesFree": "1%",
        },
        "healthzBindAddress": "127.0.0.1",
        "resolvConf": "",
        "syncFrequency": "10s",
        "maxPods": 250,
    }


class Namespace:
    """A mount and a network namespace, held by a process that sleeps."""

    def __init__(self, folder, node, address):
        self._folder = folder
        script = f"""set -e
for pair in {" ".join(f"{path}={value}" for path, value in KERNEL_SETTINGS.items())}; do
  file={folder}/kernel-$(basename "${{pair%=*}}")
  echo "${{pair#*=}}" >"$file"
  mount --bind "$file" "/proc/sys/${{pair%=*}}"
done
# The kubelet's folders, whose paths are fixed: other clusters on this machine do not see them.
mount -t tmpfs tmpfs /var/lib
mount -t tmpfs tmpfs /var/log
mkdir -p /var/lib/kubelet /var/lib/cni {folder}/kubelet {folder}/cni-cache
mount --bind {folder}/kubelet /var/lib/kubelet
mount --make-rshared /var/lib/kubelet
mount --bind {folder}/cni-cache /var/lib/cni
printf '127.0.0.1 localhost\\n{address} {node}\\n' >{folder}/hosts
mount --bind {folder}/hosts /etc/hosts
ip link set lo up
ip link add node0 type bridge
ip addr add {address}/24 dev node0
ip link set node0 up
# Services, which kube-proxy sends on: a node's default route would lead there.
ip route add 10.98.0.0/24 dev node0
touch {folder}/namespace-ready
exec sleep infinity
"""
        self._log = open(folder / "namespace.log", "w")
        self.holder = subprocess.Popen(
            ["unshare", "--mount", "--net", "--propagation", "private", "sh", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        ready = folder / "namespace-ready"
        harness.wait_until(lambda: ready.exists() or self.holder.poll() is not None, what="a namespace")
        if not ready.exists():
            raise AssertionError("no namespace: " + (folder / "namespace.log").read_text())
        self._id = os.readlink(f"/proc/{self.holder.pid}/ns/net")

    def inside(self, command):
        return ["nsenter", f"--mount=/proc/{self.holder.pid}/ns/mnt", f"--net=/proc/{self.holder.pid}/ns/net",
                "--wd=/", "--", *map(str, command)]  # fmt: skip

    def connect(self, other, port):
        """Its bridge with another's; `port`: a name on the other's side."""
        pid = self.holder.pid
        for namespace, command in (
            (other, f"link add {port} type veth peer name uplink netns {pid}"),
            (other, f"link set {port} master node0 up"),
            (self, "link set uplink master node0 up"),
        ):
            subprocess.run(namespace.inside(["ip", *command.split()]), check=True)

    def processes(self):
        """All that are in its network: what was started here, and whatever that started."""
        found = []
        for folder in pathlib.Path("/proc").iterdir():
            if folder.name.isdigit():
                with contextlib.suppress(OSError):
                    if os.readlink(folder / "ns/net") == self._id:
                        found.append(int(folder.name))
        return found

    def close(self):
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.holder.wait()
        self._log.close()




def controllers():
    """The folders of the machine's cgroup controllers."""
    return [path for path in CGROUPS.iterdir() if path.is_dir() and path.name != "unified"]


class Node:
    def __init__(self, name, number, folder, cgroup, nri=NO_NRI):
        """`number`: from 1, of its addresses. `folder`: exists; short, for sockets lie below it. `cgroup`: its own, below
        those that exist. `nri`: containerd's settings of it; {folder} is its folder."""
        self.name = name
        self.folder = folder
        self.cgroup = cgroup
        self.ip = f"10.97.0.{number}"
        self._pods = f"10.99.{number - 1}.0/24"
        self._nri = nri
        self.namespace = None

    def open(self, beside=None):
        """Its files, cgroups and namespaces. `beside`: a node that is open, with which it shares a network."""
        for name in ("cni", "cdi"):
            (self.folder / name).mkdir()
        (self.folder / "containerd.toml").write_text(CONTAINERD.format(folder=self.folder, pause=PAUSE, nri=self._nri.format(folder=self.folder)))
        cni = json.dumps(CNI).replace("{folder}", str(self.folder)).replace("{pods}", self._pods)
        (self.folder / "cni" / "pods.conflist").write_text(cni)
        configuration = kubelet_configuration(self.folder, self.cgroup, self.ip)
        (self.folder / "kubelet.json").write_text(json.dumps(configuration))
        self._make_cgroups()
        self.namespace = Namespace(self.folder, self.name, self.ip)
        if beside is not None:
            self.namespace.connect(beside.namespace, f"to-{self.name}")

    def _make_cgroups(self):
        for controller in controllers():
            group = controller / self.cgroup.lstrip("/")
            group.mkdir()
            for name in ("cpuset.cpus", "cpuset.mems"):
                if (controller / name).exists():
                    (group / name).write_text((group.parent / name).read_text())

    def containerd(self):
        return [BIN / "containerd", "--config", self.folder / "containerd.toml"]

    def kubelet(self, kubernetes, kubeconfig):
        """`kubernetes`: the folder of its programs."""
        return [kubernetes / "kubelet", f"--config={self.folder}/kubelet.json", f"--kubeconfig={kubeconfig}",
                "--root-dir=/var/lib/kubelet", f"--hostname-override={self.name}", f"--node-ip={self.ip}",
                f"--cert-dir={self.folder}/kubelet-certificates", "--v=1"]  # fmt: skip

    def call(self, command, text=None, timeout_s=harness.DEADLINE_S):
        """(exit status, stdout, stderr), in its namespaces."""
        done = subprocess.run(
            self.namespace.inside(command), input=text, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        return done.returncode, done.stdout, done.stderr

    def ctr(self, *arguments):
        return self.call([BIN / "ctr", "-a", self.folder / "containerd.sock", *arguments])

    def import_images(self, programs):
        """`programs`: more of them in the image, as image.write takes them."""
        image.write(self.folder / "root.tar", programs)
        image.write_archive(self.folder / "image.tar", self.folder / "root.tar", [IMAGE, PAUSE], ["sleep", "infinity"])
        status, out, err = self.ctr("-n", "k8s.io", "images", "import", "--local", self.folder / "image.tar")
        if status != 0:
            raise AssertionError(f"the image cannot be imported: {out} {err}")
        for name in ("root.tar", "image.tar"):
            (self.folder / name).unlink()
