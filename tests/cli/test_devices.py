"""Shares of several GPUs, on a simulated machine of four with links."""
import json
import pathlib
import subprocess
import sys
import unittest

import pytest

import harness

pytestmark = pytest.mark.asan_ubsan

PROGRAM = pathlib.Path(__file__).resolve().parents[1] / "devices_program.py"
MIB, GIB = harness.MIB, harness.GIB
OUT_OF_MEMORY = 2


# 0 and 2 by NVLink, 1 and 3 behind one switch, the other pairs over the host.
MACHINE = """
[[devices]]
memory = "4GiB"
context_memory = "64MiB"
[[devices]]
memory = "4GiB"
context_memory = "64MiB"
[[devices]]
memory = "4GiB"
context_memory = "64MiB"
[[devices]]
memory = "4GiB"
context_memory = "64MiB"
[[links]]
devices = [0, 2]
type = "nvlink"
nvlinks = 4
[[links]]
devices = [1, 3]
type = "pcie-switch"
"""


class ManySharesOfManyGpus(harness.MachineTestCase):
    MACHINE_TOML = 8 * """[[devices]]\nmemory = "16GiB"\n"""

    def test_they_are_all_listed(self):
        """What the agent says of 200 shares of 8 GPUs is longer than 1 MiB."""
        self.machine.start_agent("--cdi-dir", self.machine.folder / "cdi")
        names = {f"share-{i}" for i in range(200)}
        for name in names:
            status, _, err = self.machine.call(
                [harness.PRORATA, "create", name, "--gpus", "8", "--memory", "64MiB"])
            self.assertEqual(status, 0, err)
        self.assertEqual({share["name"] for share in self.machine.ps()}, names)
        for command in (["ps"], ["ps", "share-7"], ["ps", "-q"], ["ps", "--waiting"], ["top", "--once"]):
            status, _, err = self.machine.call([harness.PRORATA, *command])
            self.assertEqual((status, err), (0, ""), command)


class DevicesCase(harness.MachineTestCase):
    MACHINE_TOML = MACHINE

    def setUp(self):
        super().setUp()
        self.machine.start_agent()
        self.nvml = [harness.Nvml(self.machine, device) for device in range(4)]
        for nvml in self.nvml:
            self.addCleanup(nvml.close)

    def start(self, *share_options, environment=None):
        program = self.machine.start(
            self.machine.command(["--name", "x", *share_options], [sys.executable, PROGRAM]),
            environment=environment, stdin=subprocess.PIPE)
        self.assertEqual(json.loads(harness.read_line(program))["result"], 0)
        return program

    def ask(self, program, line):
        program.stdin.write(line + "\n")
        program.stdin.flush()
        return json.loads(harness.read_line(program))

    def good(self, program, line):
        answer = self.ask(program, line)
        self.assertEqual(answer["result"], 0, line)
        return answer

    def refused(self, options, *parts, status=1):
        got, out, err = self.machine.call(self.machine.command(options, ["true"]))
        self.assertEqual((got, out), (status, ""), err)
        for part in parts:
            self.assertIn(part, err)

    def devices(self, name="x"):
        """{index: what `ps` says of the share there}, in the share's order."""
        return {device["index"]: device for device in self.machine.share(name)["devices"]}

    def limits(self):
        return [(index, device["memory_limit_bytes"]) for index, device in self.devices().items()]

    def used(self):
        """Allocated bytes of each of the share's GPUs, contexts left out."""
        return [device["used_bytes"] - device["overhead_bytes"]
                for device in self.devices().values()]

    def on_devices(self):
        return [nvml.memory()[2] for nvml in self.nvml]

    def uuids(self):
        return [gpu["uuid"] for gpu in self.machine.gpus()]


class Choice(DevicesCase):
    def test_the_best_linked_gpus_that_fit(self):
        self.start("--gpus", "2", "--memory", "1GiB")
        self.assertEqual(self.limits(), [(0, GIB), (2, GIB)])
        # 0 and 2 have no room for this one, so it gets the other pair.
        other = self.machine.start(self.machine.command(
            ["--name", "y", "--gpus", "2", "--memory", "3584MiB"], ["sleep", "600"]))
        harness.wait_until(lambda: self.machine.share("y"), what="the second share")
        self.assertEqual(list(self.devices("y")), [1, 3])
        self.assertIsNone(other.poll())

    def test_gpus_shows_the_links(self):
        links = [[link["kind"] for link in gpu["links"]] for gpu in self.machine.gpus()]
        self.assertEqual(links, [["self", "system", "nvlink", "system"],
                                 ["system", "self", "system", "single"],
                                 ["nvlink", "system", "self", "system"],
                                 ["system", "single", "system", "self"]])
        self.assertEqual(self.machine.gpus()[0]["links"][2]["nvlinks"], 4)
        out = self.machine.call([harness.PRORATA, "gpus"])[1]
        self.assertRegex(out, r"GPU 2 +NV4 +SYS +- +SYS\n")

    def test_the_order_is_the_one_asked_for_and_all_agree_on_it(self):
        uuids = self.uuids()
        program = self.start("--gpu", f"2,{uuids[0]}")
        self.assertEqual(list(self.devices()), [2, 0])
        self.assertEqual(self.ask(program, "uuids")["uuids"], [uuids[2], uuids[0]])
        self.assertEqual(self.ask(program, "nvml")["uuids"], [uuids[2], uuids[0]])

    def test_the_programs_own_cuda_visible_devices_selects_among_the_shares(self):
        uuids = self.uuids()
        program = self.start("--gpu", "1,3,0", environment={"CUDA_VISIBLE_DEVICES": "2,1"})
        self.assertEqual(self.ask(program, "uuids")["uuids"], [uuids[0], uuids[3]])
        # What the program calls device 0 is the share's GPU 0: charged there and nowhere else.
        self.good(program, f"alloc 0 {64 * MIB}")
        self.assertEqual(self.used(), [0, 0, 64 * MIB])


class Refusals(DevicesCase):
    def test_each_says_what_was_asked_where_and_what_there_is(self):
        self.refused(["--gpu", "0,0"], "GPU 0 ", "twice")
        self.refused(["--gpu", "0,4"], "no GPU '4'", "3 (GPU-")
        self.refused(["--gpus", "5"], "5 GPUs", "only 4")
        self.refused(["--gpu", "0,2", "--memory", "1GiB,2=5GiB"], "5 GiB", "GPU 2 ", "4 GiB in all")
        self.refused(["--gpus", "4", "--memory", "5GiB"], "4 GPUs", "0 of the 4", "5 GiB")
        self.refused(["--gpu", "0,2", "--memory", "1=1GiB"], "GPU '1'", "none of the share's")
        self.refused(["--gpu", "0,2", "--compute", "2=0.5", "--compute-limit", "0.4"],
                     "GPU 2 ", "0.4", "0.5", status=2)
        for options in (["--gpu", "0,2", "--memory", "2=0"], ["--gpu", "0,"], ["--gpus", "0"],
                        ["--gpus", "2", "--gpu", "0"], ["--gpus", "2", "--memory", "0=1GiB"],
                        ["--gpu", "0", "--memory", "1GiB,2GiB"], ["--gpus", "17"],
                        ["--gpu", "0", "--compute-limit", "0=0"]):
            self.refused(options, "prorata: ", status=2)
        self.assertEqual(self.machine.ps(), [])


class Memory(DevicesCase):
    def test_each_gpu_has_a_limit_of_its_own(self):
        program = self.start("--gpu", "0,2", "--memory", "512MiB,2=1GiB")
        self.assertEqual(self.limits(), [(0, 512 * MIB), (2, GIB)])
        self.assertEqual(self.good(program, "info 0")["total"], 512 * MIB)
        self.assertEqual(self.good(program, "info 1")["total"], GIB)
        self.assertEqual(self.ask(program, f"alloc 0 {512 * MIB}")["result"], OUT_OF_MEMORY)
        self.good(program, f"alloc 1 {512 * MIB}")
        self.assertEqual(self.ask(program, f"alloc 1 {512 * MIB}")["result"], OUT_OF_MEMORY)
        self.good(program, f"alloc 0 {256 * MIB}")
        self.assertEqual(self.used(), [256 * MIB, 512 * MIB])
        # The referee: what is on the devices is inside each limit, and nothing is elsewhere.
        on = self.on_devices()
        self.assertLessEqual(on[0], 512 * MIB)
        self.assertLessEqual(on[2], GIB)
        self.assertEqual((on[1], on[3]), (0, 0))

    def test_what_is_taken_is_charged_where_it_lies_whatever_context_is_current(self):
        program = self.start("--gpu", "0,2", "--memory", "2GiB")
        plain = self.good(program, f"alloc 1 {32 * MIB}")
        self.assertEqual(self.used(), [0, 32 * MIB])
        self.good(program, f"free 0 {plain['address']}")
        self.assertEqual(self.used(), [0, 0])
        physical = self.good(program, f"physical 0 1 {64 * MIB}")
        self.assertEqual(self.used(), [0, 64 * MIB])
        self.good(program, f"release 0 {physical['handle']}")
        self.assertEqual(self.used(), [0, 0])
        self.good(program, f"array 1 {16 * MIB}")
        self.assertEqual(self.used(), [0, 16 * MIB])

    def charged_pool(self, program, line):
        """An allocation from a pool of the second device, while the first one's is current."""
        free = self.good(program, "info 1")["free"]
        self.good(program, line)
        first, second = self.used()
        self.assertEqual(first, 0)
        self.assertEqual(free - self.good(program, "info 1")["free"], second)
        on = self.on_devices()
        overhead = self.devices()[2]["overhead_bytes"]
        self.assertEqual(on[2] - overhead, second, "the ledger and the device agree")
        self.assertGreaterEqual(second, 96 * MIB)

    def test_a_pool_is_charged_to_its_own_device(self):
        program = self.start("--gpu", "0,2", "--memory", "2GiB")
        self.charged_pool(program, f"from 0 {self.good(program, 'pool 1')['pool']} {96 * MIB}")

    def test_a_default_pool_is_charged_to_its_own_device(self):
        program = self.start("--gpu", "0,2", "--memory", "2GiB")
        self.charged_pool(program, f"from 0 {self.good(program, 'default 0 1')['pool']} {96 * MIB}")

    def test_a_stream_ordered_allocation_is_charged_to_the_streams_device(self):
        program = self.start("--gpu", "0,2", "--memory", "2GiB")
        self.charged_pool(program, f"async 0 1 {96 * MIB}")

    def test_a_pool_stops_at_its_own_devices_limit(self):
        program = self.start("--gpu", "0,2", "--memory", "2GiB,2=256MiB")
        pool = self.good(program, "pool 1")["pool"]
        self.assertEqual(self.ask(program, f"from 0 {pool} {512 * MIB}")["result"], OUT_OF_MEMORY)
        self.assertEqual(self.ask(program, f"async 0 1 {512 * MIB}")["result"], OUT_OF_MEMORY)
        self.assertLessEqual(self.on_devices()[2], 256 * MIB)


class Peers(DevicesCase):
    def test_linked_gpus_reach_each_other_and_a_mapping_charges_nothing(self):
        program = self.start("--gpu", "0,2", "--memory", "1GiB")
        before, on = self.used(), self.on_devices()
        self.assertEqual(self.ask(program, "peer 0 1"), {"can": 1, "result": 0})
        self.assertEqual((self.used(), self.on_devices()), (before, on))
        self.assertEqual(self.ask(program, f"copy 0 1 {4 * MIB}"),
                         {"result": 0, "same": True, "freed": 0})
        self.assertEqual(self.used(), before)
        # What the peer's memory takes is the peer's.
        self.good(program, f"alloc 1 {64 * MIB}")
        self.assertEqual(self.used(), [0, 64 * MIB])

    def test_gpus_without_a_link_do_not(self):
        program = self.start("--gpu", "0,1")
        answer = self.ask(program, "peer 0 1")
        self.assertEqual(answer["can"], 0)
        self.assertNotEqual(answer["result"], 0)


class Life(DevicesCase):
    def update(self, *options):
        return self.machine.call([harness.PRORATA, "update", "x", *options])

    def test_update_of_one_gpu_and_all_or_nothing(self):
        program = self.start("--gpu", "0,2", "--memory", "1GiB", "--compute", "0.2")
        self.assertEqual(self.update("--memory", "2=2GiB", "--compute-limit", "0=0.5"), (0, "", ""))
        self.assertEqual(self.limits(), [(0, GIB), (2, 2 * GIB)])
        self.assertEqual([device["compute_limit"] for device in self.devices().values()], [0.5, 1])
        self.good(program, f"alloc 1 {3 * GIB // 2}")
        self.assertEqual(self.ask(program, f"alloc 0 {GIB}")["result"], OUT_OF_MEMORY)
        before = self.devices()
        for options, part in ((["--memory", "1GiB,2=9GiB"], "GPU 2 "),
                              (["--memory", "2GiB", "--compute", "0.6"], "GPU 0 "),
                              (["--memory", "1=2GiB"], "none of the share's")):
            status, out, err = self.update(*options)
            self.assertEqual((status, out), (1, ""), options)
            self.assertIn(part, err)
        after = self.devices()
        for index, device in before.items():
            for key in ("memory_limit_bytes", "compute_request", "compute_limit", "weight"):
                self.assertEqual(device[key], after[index][key], (index, key))

    def test_the_next_agent_takes_over_every_gpu(self):
        program = self.start("--gpu", "2,0", "--memory", "1GiB,0=2GiB", "--weight", "2=7")
        self.good(program, f"alloc 0 {128 * MIB}")
        self.good(program, f"alloc 1 {256 * MIB}")
        self.machine.kill_agent()
        self.machine.start_agent()
        self.assertEqual(self.limits(), [(2, GIB), (0, 2 * GIB)])
        self.assertEqual([d["weight"] for d in self.devices().values()], [7, 100])
        harness.wait_until(lambda: self.used() == [128 * MIB, 256 * MIB],
                           what="the member's use after it joined again")
        self.assertEqual(self.ask(program, f"alloc 0 {GIB}")["result"], OUT_OF_MEMORY)
        self.good(program, f"alloc 1 {GIB}")

    def test_a_killed_program_leaves_nothing_on_any_gpu(self):
        program = self.start("--gpu", "0,1,2,3", "--memory", "1GiB")
        for device in range(4):
            self.good(program, f"alloc {device} {(device + 1) * 64 * MIB}")
            self.good(program, f"async {device} {device} {64 * MIB}")
        self.assertTrue(all(used >= 128 * MIB for used in self.on_devices()))
        program.kill()
        program.wait()
        harness.wait_until(lambda: self.on_devices() == [0, 0, 0, 0], what="empty devices")
        harness.wait_until(lambda: not self.machine.ps(), what="the end of the share")
        self.assertEqual([gpu["promised_bytes"] for gpu in self.machine.gpus()], [0, 0, 0, 0])

    def test_two_shares_on_one_of_the_gpus_do_not_disturb_the_other(self):
        self.start("--gpu", "0,2", "--memory", "1GiB")
        status, _, err = self.machine.call(
            self.machine.command(["--gpu", "2", "--memory", "3GiB"], ["true"]))
        self.assertEqual(status, 0, err)
        self.refused(["--gpu", "2", "--memory", "3585MiB"], "GPU 2 ")


class Gang(DevicesCase):
    def test_it_is_said_changed_and_shown(self):
        self.start("--gpu", "0,2", "--memory", "1GiB", "--gang", "always")
        share = self.machine.share("x")
        self.assertEqual((share["gang"], share["runs_as_gang"]), ("always", True))
        self.assertIn("0%-100% gang", self.machine.call([harness.PRORATA, "ps"])[1])
        status, out, err = self.machine.call([harness.PRORATA, "update", "x", "--gang", "never"])
        self.assertEqual((status, out, err), (0, "", ""))
        share = self.machine.share("x")
        self.assertEqual((share["gang"], share["runs_as_gang"]), ("never", False))
        self.assertNotIn("0%-100% gang", self.machine.call([harness.PRORATA, "ps"])[1])
        events = self.machine.call([harness.PRORATA, "events", "--all", "--no-follow"])[1]
        self.assertIn("gang always to never", events)

    def test_bad_ones_change_nothing(self):
        status, out, err = self.machine.call(
            self.machine.command(["--gpu", "1", "--gang", "always"], ["true"]))
        self.assertEqual((status, out, err.count("\n")), (1, "", 1), err)
        self.assertIn("has one; ask for several with --gpus or --gpu", err)
        self.assertEqual(self.machine.ps(), [])
        status, out, err = self.machine.call(
            self.machine.command(["--gpus", "2", "--gang", "sometimes"], ["true"]))
        self.assertEqual((status, out, err.count("\n")), (2, "", 1), err)
        self.assertIn("--gang: 'sometimes' is not auto, always or never", err)
        self.start("--gpu", "1", "--memory", "1GiB", "--weight", "5")
        status, _, err = self.machine.call(
            [harness.PRORATA, "update", "x", "--gang", "always", "--weight", "9"])
        self.assertEqual((status, err.count("\n")), (1, 1), err)
        self.assertEqual(self.machine.share("x")["weight"], 5)


if __name__ == "__main__":
    unittest.main()
