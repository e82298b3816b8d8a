"""The scheduler extender with 5,000 nodes of 8 GPUs: how long its answers take at 100 pods a second, and how much
memory it needs. The API server is a stand-in with the same lists, watches and bindings; the scheduler is this
test, which sends over HTTP what a scheduler sends."""

import contextlib
import http.server
import json
import os
import pathlib
import queue
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import unittest

import harness
import pytest
import quiet
from cluster import DRIVER, KUBECONFIG

pytestmark = pytest.mark.alone
NODES = 5_000
GPUS = 8
PODS = int(os.environ.get("PRORATA_TEST_PODS", "2000"))
PODS_PER_S = 100
MOST_P99_MS = 20
MOST_MIB = 500
COMPUTE, MEMORY = "prorata.dev/gpu-compute", "prorata.dev/gpu-memory"


def node(number):
    """As large as nodes are in an API server: some 10 KiB."""
    gpus = [{"uuid": f"GPU-{number:05}-{gpu}", "model": "Model", "memory": 320, "compute": 100} for gpu in range(GPUS)]
    images = [{"names": [f"registry.example/image-{image}:{number}"], "sizeBytes": 1 << 30} for image in range(50)]
    return {
        "metadata": {"name": f"node-{number:05}", "uid": f"node-uid-{number}",
                     "annotations": {"prorata.dev/gpus": json.dumps(gpus)}},
        "status": {"images": images, "conditions": [{"type": "Ready", "status": "True", "message": "x" * 4000}]},
    }  # fmt: skip


def pod(number):
    compute, memory = ((30, 32), (10, 16), (100, 320), (0, 8), (200, 640))[number % 5]
    limits = {COMPUTE: str(compute), MEMORY: str(memory)}
    # One in three chooses among models, whose scores are not kept.
    annotations = {"prorata.dev/gpu-model": "model"} if number % 3 == 0 else {}
    return {
        "metadata": {"name": f"pod-{number}", "namespace": "default", "uid": f"pod-uid-{number}",
                     "annotations": annotations, "managedFields": [{"manager": "x" * 2000}]},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits, "requests": limits}}]},
        "status": {"phase": "Pending"},
    }  # fmt: skip


class ApiServer(http.server.ThreadingHTTPServer):
    """Lists in pages, watches, and bindings, which the watch of pods reports."""

    daemon_threads = True

    def __init__(self, lists, watched):
        super().__init__(("127.0.0.1", 0), ApiHandler)
        self.lists = lists  # by the last part of their paths; others are empty
        self.watched = watched  # the kind that `events` are of
        self.pods = {}
        self.events = queue.Queue()
        self.bound = {}


class ApiHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def reply(self, body):
        data = json.dumps(body).encode()
        self.wfile.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)

    def do_GET(self):
        path, _, query = self.path.partition("?")
        options = dict(part.split("=", 1) for part in query.split("&"))
        if options.get("watch"):
            return self.watch(path)
        objects = self.server.lists.get(path.rpartition("/")[2], [])
        begin, limit = int(options.get("continue", 0)), int(options["limit"])
        more = {"continue": str(begin + limit)} if begin + limit < len(objects) else {}
        self.reply({"metadata": {"resourceVersion": "1", **more}, "items": objects[begin : begin + limit]})

    def watch(self, path):
        self.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        with contextlib.suppress(OSError):
            while path.endswith(self.server.watched):
                line = json.dumps(self.server.events.get()).encode() + b"\n"
                self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
            threading.Event().wait()

    def do_POST(self):
        binding = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.reply({"kind": "Status", "status": "Success"})
        name, annotations = binding["metadata"]["name"], binding["metadata"]["annotations"]
        bound = self.server.pods[name]
        bound["metadata"].update(annotations=annotations, resourceVersion="2")
        bound["spec"]["nodeName"] = binding["target"]["name"]
        self.server.bound[name] = json.loads(annotations["prorata.dev/assigned-gpus"])
        self.server.events.put({"type": "MODIFIED", "object": bound})


class Scheduler:
    """One connection to the extender."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def call(self, verb, body):
        """(the answer, seconds until its last byte)."""
        head = f"POST /{verb} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        begin = time.perf_counter()
        self.socket.sendall(head + body)
        data = b""
        while b"\r\n\r\n" not in data:
            data += self.receive(1 << 16)
        header, _, rest = data.partition(b"\r\n\r\n")
        length = int(header.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        parts, left = [rest], length - len(rest)
        while left > 0:
            parts.append(self.receive(1 << 18))
            left -= len(parts[-1])
        return json.loads(b"".join(parts)), time.perf_counter() - begin

    def receive(self, most):
        got = self.socket.recv(most)
        if not got:
            raise AssertionError("the extender closed the connection")
        return got


class ScaleTestCase(unittest.TestCase):
    OPTIONS = ()  # of the extender
    READY = f"{NODES} nodes"  # in its log

    @staticmethod
    def api_server():
        raise NotImplementedError

    def setUp(self):
        if not DRIVER.exists():
            self.skipTest(f"{DRIVER} is not built; `make kubernetes` builds it")
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.api = self.api_server()
        threading.Thread(target=self.api.serve_forever, daemon=True).start()
        self.addCleanup(self.api.shutdown)
        server = f"http://127.0.0.1:{self.api.server_address[1]}"
        trust = "insecure-skip-tls-verify: true"
        (self.folder / "config").write_text(KUBECONFIG.format(server=server, user="x", token="x", trust=trust))
        log = open(self.folder / "log", "w")
        self.addCleanup(log.close)
        self.extender = subprocess.Popen(
            [DRIVER, "extender", f"--kubeconfig={self.folder}/config", "--port=0", *self.OPTIONS],
            stdout=log, stderr=log,
        )
        self.addCleanup(self.extender.wait)
        self.addCleanup(self.extender.terminate)
        harness.wait_until(lambda: "127.0.0.1:" in self.log(), what="the extender's port")
        self.port = int(self.log().partition("serving the scheduler at http://127.0.0.1:")[2].split(",")[0])
        harness.wait_until(lambda: self.READY in self.log() or self.ready(), what="an extender that is ready")

    def log(self):
        return (self.folder / "log").read_text()

    def ready(self):
        with socket.create_connection(("127.0.0.1", self.port)) as one:
            one.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            return b" 200 " in one.recv(1000)

    def mib(self):
        status = pathlib.Path(f"/proc/{self.extender.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024


class Scale(ScaleTestCase):
    @staticmethod
    def api_server():
        return ApiServer({"nodes": [node(number) for number in range(NODES)]}, "/pods")

    def test_filter_and_prioritize(self):
        names = [node["metadata"]["name"] for node in self.api.lists["nodes"]]
        scheduler, binder = Scheduler(self.port), Scheduler(self.port)
        took_s, late_s = [], 0.0
        with quiet.Watch([self.extender.pid]) as watch:
            begin = time.perf_counter()
            for number in range(PODS):
                due = begin + number / PODS_PER_S
                time.sleep(max(0, due - time.perf_counter()))
                late_s = max(late_s, time.perf_counter() - due)
                one = pod(number)
                self.api.pods[one["metadata"]["name"]] = one
                body = json.dumps({"Pod": one, "Nodes": None, "NodeNames": names}).encode()
                fits, filter_s = scheduler.call("filter", body)
                self.assertEqual((len(fits["NodeNames"]), fits["Error"]), (NODES, ""))
                scores, prioritize_s = scheduler.call("prioritize", body)
                took_s.append(filter_s + prioritize_s)
                best = max(scores, key=lambda score: score["Score"])
                self.assertEqual(best["Score"], 10)
                binding = {"PodName": one["metadata"]["name"], "PodNamespace": "default",
                           "PodUID": one["metadata"]["uid"], "Node": best["Host"]}  # fmt: skip
                self.assertEqual(binder.call("bind", json.dumps(binding).encode())[0]["Error"], "")
        mib = self.mib()
        took_s.sort()
        figures = (f"filter and prioritize of {PODS} pods on {NODES} nodes: median {1e3 * took_s[PODS // 2]:.1f} ms, "
                   f"p99 {1e3 * took_s[PODS * 99 // 100]:.1f} ms; {mib:.0f} MiB; the latest pod was {late_s:.2f} s late")  # fmt: skip
        print(figures, watch.figures)
        self.assert_nothing_is_given_twice()
        self.assertLess(mib, MOST_MIB)
        watch.judge(self, 1e3 * took_s[PODS * 99 // 100] < MOST_P99_MS, figures)

    def assert_nothing_is_given_twice(self):
        self.assertEqual(len(self.api.bound), PODS)
        compute, memory = {}, {}
        for name, containers in self.api.bound.items():
            limits = self.api.pods[name]["spec"]["containers"][0]["resources"]["limits"]
            gpus = containers["main"]
            self.assertEqual(len(gpus), max(1, int(limits[COMPUTE]) // 100))
            for gpu in gpus:
                compute[gpu] = compute.get(gpu, 0) + int(limits[COMPUTE]) // len(gpus)
                memory[gpu] = memory.get(gpu, 0) + int(limits[MEMORY]) // len(gpus)
        self.assertLessEqual(max(compute.values()), 100)
        self.assertLessEqual(max(memory.values()), 320)


if __name__ == "__main__":
    unittest.main()
