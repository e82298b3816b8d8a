"""`prorata agent --metrics`: what is scraped over HTTP is what `ps` and `gpus` show."""
import json
import pathlib
import re
import socket
import subprocess
import sys
import unittest
import urllib.error
import urllib.request

import harness

PROGRAM = pathlib.Path(__file__).resolve().parent / "bypass.py"
MIB, GIB = harness.MIB, harness.GIB
OUT_OF_MEMORY = 2
LINE = re.compile(r'^(\w+)(?:\{(.*)\})? (\S+)$')


def parse(text):
    """{(name, ((label, value), ...)): number}"""
    figures = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        name, labels, number = LINE.match(line).groups()
        figures[name, tuple(sorted(re.findall(r'(\w+)="([^"]*)"', labels or "")))] = float(number)
    return figures


class Metrics(harness.MachineTestCase):
    def start_agent(self, where="0"):
        log = len(self.machine.agent_log())
        self.machine.start_agent("--metrics", where)
        found = re.search(r"metrics are at (http://\S+)", self.machine.agent_log()[log:])
        self.assertTrue(found, self.machine.agent_log())
        self.url = found.group(1)

    def start_program(self):
        self.program = self.machine.start(
            self.machine.command(["--name", "x", "--memory", "2GiB"],
                                 [sys.executable, PROGRAM, harness.SIM_DIR / "libcuda.so.1"]),
            stdin=subprocess.PIPE)
        self.assertEqual(json.loads(harness.read_line(self.program)), {"result": 0})

    def ask(self, line):
        self.program.stdin.write(line + "\n")
        self.program.stdin.flush()
        return json.loads(harness.read_line(self.program))

    def scrape(self):
        with urllib.request.urlopen(self.url, timeout=harness.DEADLINE_S) as answer:
            self.assertEqual(answer.status, 200)
            self.assertTrue(answer.headers["Content-Type"].startswith("text/plain; version=0.0.4"))
            return parse(answer.read().decode())

    def figure(self, name, **labels):
        found = [number for (metric, where), number in self.scrape().items()
                 if metric == name and labels.items() <= dict(where).items()]
        self.assertLessEqual(len(found), 1, (name, labels))
        return found[0] if found else None

    def await_figure(self, number, name, **labels):
        harness.wait_until(lambda: self.figure(name, **labels) == number,
                           what=f"{name} {labels} of {number}")

    def as_ps_says(self):
        """The figures that ps and gpus show, as metrics."""
        told = {}
        for share in self.machine.ps():
            told["prorata_share_members", (("share", share["name"]),)] = len(share["members"])
            for on in share["devices"]:
                labels = (("gpu", str(on["index"])), ("share", share["name"]), ("uuid", on["uuid"]))
                for metric, field in (("memory_limit_bytes", "memory_limit_bytes"),
                                      ("memory_used_bytes", "used_bytes"),
                                      ("memory_overhead_bytes", "overhead_bytes"),
                                      ("memory_granted_bytes", "granted_bytes"),
                                      ("memory_waiting", "memory_waits"),
                                      ("compute_request_ratio", "compute_request"),
                                      ("compute_limit_ratio", "compute_limit"),
                                      ("weight", "weight"), ("priority", "priority"),
                                      ("refusals_total", "refusals"),
                                      ("bypass_suspected", "bypass_suspected"),
                                      ("persistent_kernels", "persistent_kernels")):
                    told["prorata_share_" + metric, labels] = on[field]
        for on in self.machine.gpus():
            labels = (("gpu", str(on["index"])), ("uuid", on["uuid"]))
            for kind in ("total", "used", "foreign", "promised"):
                told[f"prorata_device_memory_{kind}_bytes", labels] = on[kind + "_bytes"]
        return told

    def assert_one_view(self):
        def same():
            told = self.as_ps_says()
            scraped = self.scrape()
            return told.items() <= scraped.items()
        harness.wait_until(same, what="metrics equal to ps and gpus")

    def test_what_is_scraped_is_what_ps_shows(self):
        self.start_agent()
        self.assertRegex(self.url, r"^http://127\.0\.0\.1:\d+/metrics$")
        self.assert_one_view()
        self.start_program()
        self.assertEqual(self.ask(f"alloc {256 * MIB}")["result"], 0)
        self.assert_one_view()
        self.assertGreaterEqual(self.figure("prorata_share_memory_used_bytes", share="x"),
                                256 * MIB)
        self.await_figure(2 * GIB, "prorata_share_memory_limit_bytes", share="x")
        self.await_figure(2 * GIB, "prorata_device_memory_promised_bytes")
        self.await_figure(1, "prorata_share_members", share="x")
        self.assert_one_view()
        self.assertEqual(self.ask(f"alloc {3 * GIB}")["result"], OUT_OF_MEMORY)
        self.await_figure(1, "prorata_share_refusals_total", share="x")
        self.await_figure(1, "prorata_events_total", kind="refusal")
        self.assert_one_view()
        # The share's figures go with it; what happened stays told.
        self.program.stdin.close()
        self.program.wait(harness.DEADLINE_S)
        self.await_figure(None, "prorata_share_memory_used_bytes", share="x")
        self.await_figure(1, "prorata_events_total", kind="share_ended")
        self.assertEqual(self.figure("prorata_events_total", kind="refusal"), 1)

    def test_a_bypass_shows(self):
        self.start_agent()
        self.start_program()
        self.await_figure(0, "prorata_share_bypass_suspected", share="x")
        taken = self.ask(f"take {4 * GIB}")
        self.assertEqual(taken["result"], 0)
        self.await_figure(1, "prorata_share_bypass_suspected", share="x")
        self.await_figure(1, "prorata_events_total", kind="bypass_suspected")
        self.assert_one_view()
        self.assertEqual(self.ask(f"give {taken['address']}")["result"], 0)
        self.await_figure(0, "prorata_share_bypass_suspected", share="x")

    def test_the_next_agent_offers_them_at_the_same_port(self):
        self.start_agent()
        self.start_program()
        self.assertEqual(self.ask(f"alloc {64 * MIB}")["result"], 0)
        first = self.url
        self.machine.kill_agent()
        self.start_agent(first.split("/")[2])
        self.assertEqual(self.url, first)
        harness.wait_until(
            lambda: self.figure("prorata_share_memory_used_bytes", share="x") >= 64 * MIB,
            what="the member's memory with the next agent")
        self.await_figure(1, "prorata_events_total", kind="share_adopted")
        self.assert_one_view()

    def test_a_port_that_is_taken_ends_the_agent_and_says_why(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            status, _, err = self.machine.call(
                [harness.PRORATA, "agent", "--metrics", f"127.0.0.1:{port}"])
        self.assertEqual(status, 1)
        self.assertIn(f"cannot offer metrics at 127.0.0.1 port {port}: Address already in use", err)
        self.assertIn("give --metrics another address or port", err)
        self.assertFalse((self.machine.runtime_dir / "control").exists())

    def test_only_metrics_and_only_asked_for(self):
        self.start_agent()
        for path, method, status in (("/nosuch", "GET", 404), ("/metrics", "POST", 405),
                                     ("/", "POST", 405)):
            request = urllib.request.Request(self.url.replace("/metrics", path), method=method)
            with self.assertRaises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request, timeout=harness.DEADLINE_S)
            self.assertEqual(refused.exception.code, status)
            refused.exception.close()

    def request(self, method, path):
        """The status, the headers, and all that came after them."""
        host, port = self.url.split("/")[2].split(":")
        with socket.create_connection((host, int(port)), timeout=harness.DEADLINE_S) as connection:
            connection.sendall(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
        head, _, body = answer.partition("\r\n\r\n")
        lines = head.split("\r\n")
        return int(lines[0].split()[1]), dict(line.split(": ", 1) for line in lines[1:]), body

    def test_names_are_as_prometheus_wants_them(self):
        self.start_agent()
        with urllib.request.urlopen(self.url) as answer:
            lines = answer.read().decode().splitlines()
        helped = dict(line.split(" ", 3)[2:] for line in lines if line.startswith("# HELP "))
        kinds = dict(line.split(" ")[2:] for line in lines if line.startswith("# TYPE "))
        self.assertEqual(set(helped), set(kinds))
        self.assertGreater(len(kinds), 25)
        for name, kind in kinds.items():
            self.assertRegex(name, r"^prorata_[a-z]+(_[a-z]+)+$")
            self.assertEqual(kind == "counter", name.endswith("_total"), name)
            # Base units only, and at the end: what is neither counted nor a word for itself.
            self.assertNotRegex(name, r"_(ms|us|ns|milliseconds|percent|kib|mib|gib|mb|gb)(_|$)")
            self.assertNotRegex(name, r"_(bytes|seconds|ratio)_(?!total$)")
            self.assertRegex(helped[name], r"^(\d|[A-Z])[^.]*[^.\s]$", name)

    def test_the_root_leads_to_the_metrics(self):
        self.start_agent()
        status, headers, body = self.request("GET", "/")
        self.assertEqual((status, headers["Location"]), (302, "/metrics"))
        self.assertIn("/metrics", body)
        with urllib.request.urlopen(self.url.replace("/metrics", "/")) as followed:
            self.assertEqual(followed.url, self.url)
            self.assertIn(b"prorata_events_total", followed.read())

    def test_head_is_get_without_the_text(self):
        self.start_agent()
        for path, status in (("/metrics", 200), ("/", 302), ("/nosuch", 404)):
            got, headers, body = self.request("HEAD", path)
            self.assertEqual((got, body), (status, ""), path)
            self.assertGreater(int(headers["Content-Length"]), 0)
        self.assertTrue(self.request("HEAD", "/metrics")[1]["Content-Type"]
                        .startswith("text/plain; version=0.0.4"))

    def test_those_who_say_nothing_or_nonsense_keep_nobody_out(self):
        self.start_agent()
        address = self.url.split("/")[2].split(":")
        silent = [socket.create_connection((address[0], int(address[1]))) for _ in range(20)]
        try:
            for connection in silent[::2]:
                connection.sendall(b"\0nonsense\r\n\r\n" if connection is silent[0] else b"GET")
            # The silent ones lose their places after ten seconds.
            self.assertIsNotNone(self.figure("prorata_events_total", kind="agent_started"))
            self.assertTrue(self.machine.agent_answers())
        finally:
            for connection in silent:
                connection.close()


if __name__ == "__main__":
    unittest.main()
