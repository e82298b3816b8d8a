"""What a program on a share can ask, and that it all tells of the share: memory, processes,
utilization, devices, by CUDA, by NVML and by nvidia-smi, in every process of the share alike."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import unittest
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # pylint: disable=wrong-import-position

READER = pathlib.Path(__file__).resolve().parent / "reader.py"
SMI = pathlib.Path(os.environ.get("PRORATA_NVIDIA_SMI", harness.BUILD / "nvidia-smi" / "nvidia-smi"))
MIB, GIB = harness.MIB, harness.GIB
NOT_FOUND, INVALID, NOT_SUPPORTED, INSUFFICIENT, VERSION = 6, 2, 3, 7, 25
TWO_DEVICES = """
[[devices]]
name = "First"
memory = "8GiB"
[[devices]]
name = "Second"
memory = "4GiB"
"""


class Reader:
    """A reader.py on a share."""

    def __init__(self, machine, command=None, environment=None):
        self.process = machine.start([*(command or []), sys.executable, READER], environment,
                                     stdin=subprocess.PIPE)
        self.pid = json.loads(harness.read_line(self.process))

    def ask(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        found = json.loads(harness.read_line(self.process))
        if isinstance(found, dict) and "failed" in found:
            raise AssertionError(f"{text}: {found}")
        return found

    def by_pid(self, text):
        """A list of processes: JSON has no numbers for keys."""
        return {int(pid): value for pid, value in self.ask(text).items()}


class Case(harness.MachineTestCase):
    def setUp(self):
        super().setUp()
        if harness.REAL_GPU:
            self.skipTest("about the simulated NVML")
        self.machine.start_agent()

    def share(self, name, *options, memory="2GiB", command=(), environment=None):
        """A share whose first process is a reader."""
        run = [harness.PRORATA, "run", "--name", name, "--memory", memory, *options, "--", *command]
        return Reader(self.machine, run, environment)

    def beside(self, name, environment=None):
        """One more reader on a share that is there."""
        return Reader(self.machine, environment={
            "PRORATA_SHARE": str(self.machine.runtime_dir / "shares" / name),
            "LD_LIBRARY_PATH": str(harness.LIB_DIR), **(environment or {})})

    def hold(self, mib, environment=None):
        """A bare program that holds memory of the device."""
        load = self.machine.start([harness.GPULOAD, "--allocate", f"{mib}MiB", "--hold", "600",
                                   "--announce"],
                                  {**self.machine.bare_environment(), **(environment or {})})
        self.assertIn("event", harness.read_line(load))
        return load

    def assert_one_view(self, *readers, used=None):
        """All ways and all readers say the same; answers what is used."""
        views = [reader.ask("view()") for reader in readers]
        total, left, taken = views[0]["nvml"]
        for view in views:
            self.assertEqual(view, {"nvml": [total, left, taken], "v2": [total, left, taken, 0],
                                     "sum": taken, "cuda": [total, left], "cuda_total": total})
        self.assertEqual(left + taken, total)
        if used is not None:
            self.assertEqual(taken, used)
        return taken


class Memory(Case):
    def test_one_process_sees_the_same_by_every_way(self):
        reader = self.share("a")
        self.assertEqual(reader.ask("memory()"), [2 * GIB, 2 * GIB, 0])
        reader.ask("join()")
        context = self.assert_one_view(reader)
        self.assertGreater(context, 0)
        for step in range(1, 6):
            self.assertEqual(reader.ask(f"alloc({100 * MIB})"), 0)
            self.assert_one_view(reader, used=context + step * 100 * MIB)
        reader.ask("free()")
        self.assert_one_view(reader, used=context + 400 * MIB)

    def test_every_process_of_a_share_sees_a_change_at_once(self):
        first = self.share("a")
        second, monitor = self.beside("a"), self.beside("a")
        self.assertEqual(monitor.ask("memory()"), [2 * GIB, 2 * GIB, 0])
        first.ask("join()")
        second.ask("join()")
        readers = (first, second, monitor)
        contexts = self.assert_one_view(*readers)
        for member, size in ((first, 300), (second, 500), (first, 10)):
            member.ask(f"alloc({size * MIB})")
            self.assert_one_view(*readers)
        self.assert_one_view(*readers, used=contexts + 810 * MIB)
        self.assertEqual(self.machine.share("a")["used_bytes"], contexts + 810 * MIB)

    def test_others_on_the_device_are_not_seen(self):
        reader, other = self.share("a"), self.share("b")
        self.hold(500)
        for each in (reader, other):
            each.ask("join()")
        other.ask(f"alloc({700 * MIB})")
        reader.ask(f"alloc({100 * MIB})")
        self.assert_one_view(reader)
        self.assertEqual(list(reader.by_pid("processes()")), [reader.pid])
        self.assertEqual(reader.ask(f"name({other.pid})"), {"error": NOT_FOUND})

    def test_the_dead_are_seen_until_their_memory_is_gone(self):
        first = self.share("a")
        second = self.beside("a")
        first.ask("join()")
        second.ask("join()")
        second.ask(f"alloc({600 * MIB})")
        self.assert_one_view(first)
        second.process.kill()
        second.process.wait()
        harness.wait_until(lambda: list(first.by_pid("processes()")) == [first.pid],
                           what="the end of the dead process")
        self.assert_one_view(first)
        self.assertLess(first.ask("memory()")[2], 600 * MIB)

    def test_a_limit_below_use(self):
        reader = self.share("a")
        reader.ask("join()")
        reader.ask(f"alloc({GIB})")
        status, out, err = self.machine.call(
            [harness.PRORATA, "update", "a", "--memory", "512MiB"])
        self.assertEqual(status, 0, out + err)
        self.assertEqual(reader.ask("memory()"), [512 * MIB, 0, 512 * MIB])
        self.assertEqual(reader.ask("memory2()"), [512 * MIB, 0, 512 * MIB, 0])
        self.assertEqual(reader.ask("cuda_memory()"), [512 * MIB, 0])
        self.assertGreater(sum(reader.by_pid("processes()").values()), GIB)
        reader.ask("free()")
        self.assert_one_view(reader)

    def test_without_an_agent(self):
        first = self.share("a")
        second = self.beside("a")
        first.ask("join()")
        second.ask("join()")
        second.ask(f"alloc({100 * MIB})")
        self.assert_one_view(first, second)
        self.machine.kill_agent()
        second.ask("free()")
        self.assert_one_view(first, second)
        self.machine.start_agent()
        second.ask(f"alloc({200 * MIB})")
        harness.wait_until(lambda: first.ask("view()") == second.ask("view()"),
                           what="one view after the agent came back")
        self.assert_one_view(first, second)

    def test_in_a_forked_child(self):
        member = self.share("a")
        monitor = self.beside("a")
        member.ask("join()")
        member.ask(f"alloc({64 * MIB})")
        before = monitor.ask("memory()")
        self.assertEqual(monitor.ask("in_child('memory()')"), before)
        member.ask(f"alloc({64 * MIB})")
        self.assertEqual(monitor.ask("in_child('memory()')"), monitor.ask("memory()"))
        self.assertEqual(monitor.ask("in_child('processes()')"), monitor.ask("processes()"))

    def test_what_others_map_is_not_told(self):
        reader = self.share("a")
        self.assertEqual(reader.ask("nvml.nvmlDeviceGetBAR1MemoryInfo(handle(), (U64 * 3)())"),
                         NOT_SUPPORTED)


class Hammer(Case):
    """Readers look all the time while others allocate, free and die and the limit moves."""

    ROUNDS = 12

    def write(self, errors):
        try:
            for round_number in range(self.ROUNDS):
                writer = self.beside("a")
                writer.ask("join()")
                for size in (1, 30, 7, 64):
                    if writer.ask(f"alloc({size * MIB})") == 0 and size % 2:
                        writer.ask("free()")
                if round_number % 2:
                    writer.process.kill()
                else:
                    writer.process.stdin.close()
                writer.process.wait()
        except BaseException as error:  # pylint: disable=broad-except
            errors.append(error)

    def move(self, errors):
        try:
            for size in ("1GiB", "2GiB") * (self.ROUNDS // 2):
                status, out, err = self.machine.call(
                    [harness.PRORATA, "update", "a", "--memory", size])
                if status != 0:
                    raise AssertionError(out + err)
        except BaseException as error:  # pylint: disable=broad-except
            errors.append(error)

    def test_every_answer_is_sound(self):
        member, monitor = self.share("a"), self.beside("a")
        member.ask("join()")
        errors = []
        others = [threading.Thread(target=self.write, args=(errors,)) for _ in range(2)]
        others.append(threading.Thread(target=self.move, args=(errors,)))
        for thread in others:
            thread.start()
        while any(thread.is_alive() for thread in others) and not errors:
            for reader in (member, monitor):
                self.assertLessEqual(set(reader.ask("watch(20)")), {GIB, 2 * GIB})
        for thread in others:
            thread.join()
        if errors:
            raise errors[0]
        harness.wait_until(lambda: list(member.by_pid("processes()")) == [member.pid],
                           what="the end of all others")
        self.assert_one_view(member, monitor)


class Processes(Case):
    def setUp(self):
        super().setUp()
        self.reader = self.share("a")
        self.reader.ask("join()")
        self.used = self.reader.ask("memory()")[2]

    def test_all_versions(self):
        own = {self.reader.pid: self.used}
        for suffix in ("", "_v2", "_v3"):
            self.assertEqual(self.reader.by_pid(f"processes(suffix='{suffix}')"), own)
            for kind in ("Graphics", "MPSCompute"):
                self.assertEqual(self.reader.ask(f"processes('{kind}', '{suffix}')"), {})
        self.assertEqual(self.reader.by_pid("details()"), own)
        for mode in (1, 2):
            self.assertEqual(self.reader.ask(f"details({mode})"), {})

    def test_room_and_arguments(self):
        ask = self.reader.ask
        self.assertEqual(ask("processes(room=0, entries=False)"),
                         {"error": INSUFFICIENT, "count": 1})
        self.assertEqual(ask("processes(entries=False)"), {"error": INVALID})
        self.assertEqual(ask("nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle(), None, None)"),
                         INVALID)
        self.assertEqual(ask("nvml.nvmlDeviceGetGraphicsRunningProcesses(handle(), None, None)"),
                         INVALID)
        self.assertEqual(ask("nvml.nvmlDeviceGetComputeRunningProcesses_v3(None, U32(), None)"),
                         INVALID)
        self.assertEqual(ask("details(version=1)"), {"error": VERSION})
        self.assertEqual(ask("details(mode=9)"), {"error": INVALID})
        self.assertEqual(ask("details(room=0)"), {"error": INSUFFICIENT})
        self.assertEqual(ask("nvml.nvmlDeviceGetRunningProcessDetailList(handle(), None)"), INVALID)

    def test_names(self):
        self.assertIn("python", self.reader.ask(f"name({self.reader.pid})"))
        self.assertEqual(self.reader.ask(f"name({os.getpid()})"), {"error": NOT_FOUND})

    def test_private_table(self):
        bare = self.hold(100)
        found = self.reader.by_pid("private()")
        self.assertEqual(list(found), [self.reader.pid])
        self.assertEqual(found[self.reader.pid][0], self.used)
        self.assertIn("python", found[self.reader.pid][1])
        for slot in (214, 215):
            self.assertEqual(self.reader.ask(f"private({slot})"), {})
        outside = Reader(self.machine, environment=self.machine.bare_environment())
        self.assertIn(bare.pid, outside.by_pid("private()"))

    def test_a_process_that_became_another_program(self):
        again = self.beside("a")
        again.ask("join()")
        pid = again.pid
        again.process.stdin.write(f"os.execv({sys.executable!r}, ['python', {str(READER)!r}])\n")
        again.process.stdin.flush()
        self.assertEqual(json.loads(harness.read_line(again.process)), pid)
        again.ask("join()")
        harness.wait_until(lambda: self.reader.by_pid("processes()") ==
                           {self.reader.pid: self.used, pid: self.used},
                           what="one entry of the process, with what it has now")

    @unittest.skipUnless(shutil.which("unshare"), "no unshare program")
    def test_pids_of_a_container(self):
        contain = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
        if subprocess.run([*contain, "true"], check=False, capture_output=True).returncode != 0:
            self.skipTest("no pid namespaces for this user")
        inside = self.share("b", memory="1GiB", command=contain)
        self.assertEqual(inside.pid, 1)
        inside.ask("join()")
        used = inside.ask("memory()")[2]
        self.assertEqual(inside.by_pid("processes()"), {1: used})
        self.assertEqual(inside.ask("name(1)"), sys.executable)
        outside = self.beside("b")
        (host_pid,) = outside.by_pid("processes()")
        self.assertNotEqual(host_pid, 1)
        self.assertIn(b"reader.py", pathlib.Path(f"/proc/{host_pid}/cmdline").read_bytes())


class Utilization(Case):
    def test_is_the_shares_own(self):
        load = self.machine.start_load(["--name", "busy", "--memory", "1GiB"],
                                       ["--seconds", "600", "--per-sync", "64"])
        idle = self.share("idle", memory="1GiB")
        idle.ask("join()")
        busy = None

        def joined():
            nonlocal busy
            busy = busy or (self.machine.share("busy") and self.beside("busy"))
            return busy and busy.ask("rates()") >= 50
        harness.wait_until(joined, what="a busy share")
        self.assertEqual(idle.ask("rates()"), 0)
        self.assertEqual(idle.ask("process_samples()"), {"error": NOT_FOUND})

        def listed():
            found = busy.ask("process_samples()")
            return found if isinstance(found, list) else None
        pid, when, percent = harness.wait_until(listed, what="the busy process")[0]
        self.assertEqual(pid, load.pid)
        self.assertTrue(0 < percent <= 100)
        self.assertEqual(busy.ask(f"process_samples({when + 10 ** 12})"), {"error": NOT_FOUND})

    def test_samples_go_on(self):
        reader = self.share("a", memory="1GiB")
        seen = harness.wait_until(lambda: [s for s in reader.ask("samples()") if s != "error"],
                                  what="samples")
        times = [time for time, _ in seen]
        self.assertEqual(times, sorted(set(times)))
        later = harness.wait_until(lambda: isinstance(reader.ask(f"samples({times[-1]})"), list) and
                                   reader.ask(f"samples({times[-1]})"), what="newer samples")
        self.assertTrue(all(time > times[-1] for time, _ in later))
        self.assertTrue(all(value == 0 for _, value in later))


class Devices(Case):
    MACHINE_TOML = TWO_DEVICES

    def test_other_devices_are_hidden(self):
        first, second = [gpu["uuid"] for gpu in self.machine.gpus()]
        bare = Reader(self.machine, environment=self.machine.bare_environment())
        self.assertEqual(bare.ask("number('nvmlDeviceGetCount_v2')"), 2)
        buses = []
        for index in range(2):
            buses.append(bare.ask("(lambda b: (nvml.nvmlDeviceGetPciInfo_v3(handle(%d), b), "
                                  "b.raw[36:68].split(b'\\0')[0].decode())[1])"
                                  "(ctypes.create_string_buffer(68))" % index))
        reader = self.share("a", "--gpu", "1", memory="1GiB")
        for function in ("nvmlDeviceGetCount", "nvmlDeviceGetCount_v2"):
            self.assertEqual(reader.ask(f"number('{function}')"), 1)
        self.assertEqual(reader.ask("uuid(handle(0))"), second)
        self.assertEqual(reader.ask("handle(1)"), {"error": INVALID})
        self.assertEqual(reader.ask(f"by_uuid('{second}')"), 0)
        self.assertEqual(reader.ask(f"by_uuid('{first}')"), {"error": NOT_FOUND})
        self.assertEqual(reader.ask(f"by_bus('{buses[1]}')"), 0)
        self.assertEqual(reader.ask(f"by_bus('{buses[0]}')"), {"error": NOT_FOUND})
        self.assertEqual(reader.ask("nearest()"), [])
        self.assertEqual(reader.ask("nvml.nvmlDeviceGetCount_v2(None)"), INVALID)
        reader.ask("join()")
        self.assertEqual(reader.ask("cuda_uuids()"), [second])
        self.assertEqual(reader.ask("memory()")[0], GIB)
        self.assertEqual(reader.ask("nvml.nvmlShutdown()"), 0)
        self.assertEqual(reader.ask("number('nvmlDeviceGetCount_v2')"), {"error": 1})
        self.assertEqual(reader.ask("handle(0)"), {"error": 1})

    def test_a_device_that_others_filled(self):
        reader = self.share("a", "--gpu", "0", memory="4GiB")
        self.hold(7000)
        total, left, used, reserved = reader.ask("memory2()")
        self.assertEqual((total, used), (4 * GIB, 0))
        self.assertLess(left, 2 * GIB)
        self.assertEqual(left + reserved, total)
        self.assertEqual(reader.ask("memory()"), [total, left, total - left])

    def test_the_programs_own_choice_of_devices_leaves_nvml_alone(self):
        second = self.machine.gpus()[1]["uuid"]
        reader = self.share("a", "--gpu", "1", memory="1GiB",
                            environment={"CUDA_VISIBLE_DEVICES": "0"})
        reader.ask("join()")
        self.assertEqual(reader.ask("cuda_uuids()"), [second])
        self.assertEqual(reader.ask("uuid(handle(0))"), second)

    def test_two_devices_in_the_shares_order(self):
        first, second = [gpu["uuid"] for gpu in self.machine.gpus()]
        for named, order in (("1,0", [second, first]), ("0,1", [first, second])):
            reader = self.share("s" + named[0], "--gpu", named, memory="1GiB")
            self.assertEqual(reader.ask("number('nvmlDeviceGetCount_v2')"), 2)
            shown = [reader.ask(f"uuid(handle({i}))") for i in range(2)]
            self.assertEqual(shown, order)
            for i, uuid in enumerate(order):
                self.assertEqual(reader.ask(f"by_uuid('{uuid}')"), i)
            reader.ask("join(1)")
            self.assertEqual(reader.ask("cuda_uuids()"), order)
            self.assertEqual(reader.ask("memory(0)")[2], 0)
            total, left, used = reader.ask("memory(1)")
            self.assertGreater(used, 0)
            self.assertEqual(reader.ask("cuda_memory()"), [total, left])
            reordered = self.beside("s" + named[0], {"CUDA_VISIBLE_DEVICES": "1,0"})
            reordered.ask("join()")
            self.assertEqual(reordered.ask("cuda_uuids()"), order[::-1])
            self.assertEqual([reordered.ask(f"uuid(handle({i}))") for i in range(2)], order)
            # CUDA's device 0 is here NVML's 1.
            self.assertEqual(reordered.ask("cuda_memory()"), reordered.ask("memory(1)")[:2])

    @unittest.skipUnless(SMI.exists(), f"no nvidia-smi in {SMI.parent}")
    def test_nvidia_smi(self):
        reader = self.share("a", "--gpu", "1", memory="1GiB")
        reader.ask("join()")
        reader.ask(f"alloc({200 * MIB})")
        self.hold(300, {"CUDA_VISIBLE_DEVICES": "1"})
        self.hold(300)
        used = reader.ask("memory()")[2]
        environment = {"PRORATA_SHARE": str(self.machine.runtime_dir / "shares" / "a"),
                       "LD_LIBRARY_PATH": str(harness.LIB_DIR)}

        def smi(*arguments):
            status, out, err = self.machine.call([SMI, *arguments], environment=environment)
            self.assertEqual((status, err), (0, ""), out)
            return out
        self.assertRegex(smi("-L"), r"^GPU 0: Second \(UUID: GPU-[0-9a-f-]{36}\)\n$")
        log = xml.etree.ElementTree.fromstring(smi("-q", "-x"))
        self.assertEqual([gpu.findtext("product_name") for gpu in log.findall("gpu")], ["Second"])
        self.assertEqual(log.findtext("attached_gpus"), "1")
        self.assertEqual(log.findtext("gpu/fb_memory_usage/total"), "1024 MiB")
        self.assertEqual(log.findtext("gpu/fb_memory_usage/used"), f"{used // MIB} MiB")
        apps = smi("--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
        self.assertEqual(apps.split(), [f"{reader.pid},", str(used // MIB)])
        self.assertRegex(smi(), rf"\|\s+0\s+N/A\s+N/A\s+{reader.pid}\s+C\s+\S*python\S*\s+{used // MIB}MiB")


if __name__ == "__main__":
    unittest.main()
