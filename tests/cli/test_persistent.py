"""A kernel that does not end: it is told, as an event, in `ps` and in `top`, and so is its end."""
import json
import signal
import unittest

import harness

LONG_S = 14        # of the device's time: longer than what is taken for persistent, and it ends
KERNEL = ["--kernels", "1", "--announce"]


class Persistent(harness.MachineTestCase):
    def setUp(self):
        super().setUp()
        self.machine.start_agent()

    def events(self, kind):
        status, out, err = self.machine.call(
            [harness.PRORATA, "events", "--json", "--all", "--no-follow"])
        self.assertEqual((status, err), (0, ""))
        return [e for e in map(json.loads, out.splitlines()) if e["event"] == kind]

    def start(self, name, seconds):
        load = self.machine.start_load(["--name", name, "--memory", "1GiB"],
                                       KERNEL + ["--kernel-us", str(seconds * 1_000_000)])
        harness.read_event(load, "kernels")
        return load

    def device(self, name):
        return self.machine.share(name)["devices"][0]

    def test_it_is_told_and_so_is_its_end(self):
        endless, ending = self.start("endless", 900), self.start("ending", LONG_S)
        short = self.machine.run_json(["--name", "short", "--memory", "1GiB"], ["--kernels", "20"])
        self.assertEqual(short["kernels"], 20)
        self.assertEqual(self.events("persistent_kernel"), [], "all are young")
        self.assertEqual(self.device("endless")["persistent_kernels"], 0)
        harness.wait_until(lambda: len(self.events("persistent_kernel")) == 2, what="both events")
        told = {event["share"]: event for event in self.events("persistent_kernel")}
        self.assertEqual(set(told), {"endless", "ending"})
        self.assertEqual((told["endless"]["pid"], told["endless"]["gpu"]), (endless.pid, 0))
        # Two run beside each other, and each has had ten seconds of the device's time.
        self.assertGreaterEqual(told["endless"]["running_ms"], 18_000)
        on = self.device("endless")
        self.assertEqual(on["persistent_kernels"], 1)
        self.assertEqual(on["throttle_reasons"][0], "non_preemptible")
        status, out, err = self.machine.call([harness.PRORATA, "top", "--once"])
        self.assertEqual((status, err), (0, ""))
        self.assertIn("cannot be held: a persistent kernel", out)

        over = harness.wait_until(lambda: self.events("persistent_kernel_over"), what="the end")
        self.assertEqual([event["share"] for event in over], ["ending"])
        self.assertGreaterEqual(over[0]["running_ms"], LONG_S * 1000)
        out, err = ending.communicate(timeout=harness.DEADLINE_S)
        self.assertEqual(ending.returncode, 0, err)

        endless.send_signal(signal.SIGKILL)
        endless.wait()
        over = harness.wait_until(
            lambda: [e for e in self.events("persistent_kernel_over") if e["share"] == "endless"],
            what="the end of the killed one's")
        self.assertEqual((over[0]["pid"], over[0]["command"]), (endless.pid, "gpuload"))
        self.assertEqual(len(self.events("persistent_kernel")), 2, "each was told once")


if __name__ == "__main__":
    unittest.main()
