"""What reads NVML, on the simulated one: the real nvidia-smi, and the calls of nvtop-like readers.

nvidia-smi comes from the distribution's packages (scripts/setup.sh nvidia-smi); where it cannot be
had, its tests are skipped by name. The simulated driver says 580.00.00, and nvidia-smi 535 does not
mind.
"""
import csv
import ctypes
import io
import os
import pathlib
import re
import sys
import unittest
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # pylint: disable=wrong-import-position

SMI = pathlib.Path(os.environ.get("PRORATA_NVIDIA_SMI", harness.BUILD / "nvidia-smi" / "nvidia-smi"))
TWO_DEVICES = """
[[devices]]
name = "First"
memory = "8GiB"
[[devices]]
name = "Second"
memory = "4GiB"
"""
MIB = harness.MIB


class Case(harness.MachineTestCase):
    MACHINE_TOML = TWO_DEVICES

    def setUp(self):
        super().setUp()
        if harness.REAL_GPU:
            self.skipTest("about the simulated NVML")

    def hold(self, mib, device=0):
        """A bare program that holds memory, from when it has it; its process."""
        load = self.machine.start([harness.GPULOAD, "--device", device, "--allocate", f"{mib}MiB",
                                   "--hold", "3600", "--announce"],
                                  self.machine.bare_environment())
        self.assertIn("event", load.stdout.readline())
        return load


@unittest.skipUnless(SMI.exists(), f"no nvidia-smi in {SMI.parent}: scripts/setup.sh nvidia-smi BUILD")
class NvidiaSmi(Case):
    def smi(self, *arguments):
        status, out, err = self.machine.call([SMI, *arguments],
                                             environment=self.machine.bare_environment())
        self.assertEqual(status, 0, out + err)
        self.assertEqual(err, "")
        return out

    def query(self, what, *arguments):
        text = self.smi(f"--query-{what}", "--format=csv,noheader,nounits", *arguments)
        return [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text)) if row]

    def test_devices(self):
        lines = self.smi("-L").splitlines()
        self.assertEqual(len(lines), 2)
        self.assertRegex(lines[0], r"^GPU 0: First \(UUID: GPU-[0-9a-f-]{36}\)$")
        self.assertRegex(lines[1], r"^GPU 1: Second \(UUID: GPU-[0-9a-f-]{36}\)$")
        self.assertEqual(self.query("gpu=index,name,memory.total,compute_cap,persistence_mode"),
                         [["0", "First", "8192", "9.0", "Disabled"],
                          ["1", "Second", "4096", "9.0", "Disabled"]])

    def test_what_the_model_has_not_is_not_available(self):
        fields = "temperature.gpu,power.draw,clocks.sm,fan.speed,ecc.errors.uncorrected.volatile.total"
        for row in self.query(f"gpu={fields}"):
            self.assertEqual(row, ["[N/A]"] * 5)

    def test_memory_and_processes(self):
        first, second = self.hold(100, 0), self.hold(300, 1)
        rows = self.query("compute-apps=pid,process_name,used_memory,gpu_name")
        self.assertEqual({(row[0], row[3]) for row in rows},
                         {(str(first.pid), "First"), (str(second.pid), "Second")})
        used = {row[3]: int(row[2]) for row in rows}
        self.assertEqual(used["Second"] - used["First"], 200)
        self.assertTrue(all(row[1].endswith("/gpuload") for row in rows))
        device = {row[0]: int(row[1]) for row in self.query("gpu=name,memory.used")}
        self.assertEqual(device, used)
        table = self.smi()
        self.assertRegex(table, rf"\|\s+0\s+N/A\s+N/A\s+{first.pid}\s+C\s+\S*gpuload\s+\d+MiB")
        first.kill()
        first.wait()
        self.assertEqual([row[0] for row in self.query("compute-apps=pid")], [str(second.pid)])
        self.assertNotIn(str(first.pid), self.smi())

    def test_whole_log_is_well_formed(self):
        log = xml.etree.ElementTree.fromstring(self.smi("-q", "-x"))
        self.assertEqual([gpu.findtext("product_name") for gpu in log.findall("gpu")],
                         ["First", "Second"])
        self.assertEqual(log.findtext("gpu/product_architecture"), "Hopper")
        self.assertEqual(log.findtext("attached_gpus"), "2")

    def test_utilization(self):
        load = self.machine.start([harness.GPULOAD, "--seconds", "3600", "--per-sync", "64"],
                                  self.machine.bare_environment())
        harness.wait_until(lambda: int(self.query("gpu=utilization.gpu")[0][0]) >= 50,
                           what="a busy device in nvidia-smi")
        self.assertEqual(self.query("gpu=utilization.gpu")[1], ["0"])
        load.kill()

    def test_on_a_share(self):
        self.machine.start_agent()
        out = self.machine.call([harness.PRORATA, "run", "--memory", "2GiB", "--", SMI, "-q", "-x"])
        self.assertEqual(out[0], 0, out)
        log = xml.etree.ElementTree.fromstring(out[1])
        totals = {gpu.findtext("product_name"): gpu.findtext("fb_memory_usage/total")
                  for gpu in log.findall("gpu")}
        self.assertEqual(totals["First"], "2048 MiB")


class Readers(Case):
    """By the calls that nvtop, exporters and PyTorch make, through the library itself."""

    def setUp(self):
        super().setUp()
        self.nvml = harness.Nvml(self.machine)
        self.library = self.nvml._library  # pylint: disable=protected-access
        self.device = self.nvml._device  # pylint: disable=protected-access
        self.addCleanup(self.nvml.close)

    def ask(self, name, *arguments):
        return getattr(self.library, name)(self.device, *arguments)

    def number(self, name, kind=ctypes.c_uint):
        value = kind()
        self.assertEqual(self.ask(name, ctypes.byref(value)), 0, name)
        return value.value

    def test_modes(self):
        self.assertEqual(self.number("nvmlDeviceGetArchitecture"), 9)
        self.assertEqual(self.number("nvmlDeviceGetNumGpuCores"), 132 * 128)
        for name in ("PersistenceMode", "DisplayMode", "DisplayActive", "AccountingMode",
                     "VirtualizationMode", "MultiGpuBoard", "ComputeMode"):
            self.assertEqual(self.number("nvmlDeviceGet" + name), 0, name)

    def test_what_is_not_modelled_says_so(self):
        value = ctypes.c_ulonglong()
        for name in ("PowerUsage", "FanSpeed", "TotalEnergyConsumption", "EnforcedPowerLimit",
                     "CurrPcieLinkGeneration"):
            self.assertEqual(self.ask("nvmlDeviceGet" + name, ctypes.byref(value)), 3, name)
        self.assertEqual(self.ask("nvmlDeviceGetTemperature", 0, ctypes.byref(value)), 3)
        self.assertEqual(self.ask("nvmlDeviceGetClockInfo", 1, ctypes.byref(value)), 3)

    def test_field_values_answer_each_for_itself(self):
        class Field(ctypes.Structure):
            _fields_ = [("field", ctypes.c_uint), ("scope", ctypes.c_uint),
                        ("timestamp", ctypes.c_longlong), ("latency", ctypes.c_longlong),
                        ("type", ctypes.c_uint), ("result", ctypes.c_uint),
                        ("value", ctypes.c_ulonglong)]
        fields = (Field * 3)(*(Field(field=number) for number in (1, 82, 91)))
        self.assertEqual(self.ask("nvmlDeviceGetFieldValues", 3, fields), 0)
        self.assertEqual([field.result for field in fields], [3, 3, 3])
        self.assertEqual(self.ask("nvmlDeviceGetFieldValues", 0, fields), 2)

    def test_process_utilization_both_ways(self):
        load = self.machine.start([harness.GPULOAD, "--seconds", "3600", "--per-sync", "64"],
                                  self.machine.bare_environment())

        class Entry(ctypes.Structure):
            _fields_ = [("time", ctypes.c_ulonglong), ("pid", ctypes.c_uint),
                        ("sm", ctypes.c_uint), ("memory", ctypes.c_uint),
                        ("encoder", ctypes.c_uint), ("decoder", ctypes.c_uint),
                        ("jpeg", ctypes.c_uint), ("ofa", ctypes.c_uint)]

        class Info(ctypes.Structure):
            _fields_ = [("version", ctypes.c_uint), ("count", ctypes.c_uint),
                        ("last_seen", ctypes.c_ulonglong), ("entries", ctypes.POINTER(Entry))]

        def busy():
            entries = (Entry * 16)()
            info = Info(ctypes.sizeof(Info) | 1 << 24, 16, 0, entries)
            if self.ask("nvmlDeviceGetProcessesUtilizationInfo", ctypes.byref(info)) != 0:
                return None
            found = [entries[i] for i in range(info.count) if entries[i].pid == load.pid]
            return found and found[0].sm >= 50
        harness.wait_until(busy, what="the program's own utilization")
        load.kill()

    def test_event_sets(self):
        events = ctypes.c_void_p()
        self.assertEqual(self.library.nvmlEventSetCreate(ctypes.byref(events)), 0)
        types = self.number("nvmlDeviceGetSupportedEventTypes", ctypes.c_ulonglong)
        register = self.library.nvmlDeviceRegisterEvents
        self.assertEqual(register(self.device, ctypes.c_ulonglong(types), events), 0)
        self.assertEqual(register(self.device, ctypes.c_ulonglong(~types & 0xff), events), 3)
        data = (ctypes.c_char * 64)()
        self.assertEqual(self.library.nvmlEventSetWait_v2(events, data, 10), 10)  # timeout
        self.assertEqual(self.library.nvmlEventSetFree(events), 0)
        self.assertEqual(self.library.nvmlEventSetFree(events), 2)

    def test_every_error_has_a_text(self):
        text = self.library.nvmlErrorString
        text.restype = ctypes.c_char_p
        header = (harness.ROOT / "generated" / "nvml_abi.h").read_text()
        codes = {int(n) for n in re.findall(r"NVML_ERROR_(?!UNKNOWN)\w+ = (\d+),", header)}
        said = {code: text(code) for code in codes}
        self.assertNotIn(b"Unknown Error", [said[code] for code in (1, 2, 3, 4, 6, 7, 9, 10, 15, 25)])
        self.assertTrue(all(said.values()))


if __name__ == "__main__":
    unittest.main()
