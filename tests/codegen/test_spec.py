"""The spec is complete and cannot hold a name that means nothing."""

import re
import shutil
import tempfile
import unittest
from pathlib import Path

import support
from model import load
from overlay import ROLES, SpecError, base_name


class SpecTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cuda, cls.nvml = load("cuda"), load("nvml")

    def test_every_symbol_has_a_role(self):
        for function in self.cuda.functions + self.nvml.functions:
            self.assertIn(function.role, ROLES, function.symbol)

    def test_names_are_as_many_as_the_driver_exports(self):
        # 637 in NVIDIA's 13.0 stub (cuda.h and cudaProfiler.h), 35 in the graphics headers.
        graphics = [f for f in self.cuda.functions if f.header in
                    ("cudaGL.h", "cudaEGL.h", "cudaVDPAU.h")]
        self.assertEqual((len(self.cuda.functions) - len(graphics), len(graphics)), (637, 35))

    def test_indexes_are_positions_in_sorted_order(self):
        for library in (self.cuda, self.nvml):
            symbols = [f.symbol for f in library.functions]
            self.assertEqual(symbols, sorted(set(symbols)))
            self.assertEqual([f.index for f in library.functions], list(range(len(symbols))))

    def test_roles_of_well_known_functions(self):
        for symbol, role in {"cuMemAlloc_v2": "alloc", "cuMemFreeAsync_ptsz": "free",
                             "cuLaunchKernel_ptsz": "launch", "cuGraphLaunch": "launch",
                             "cuStreamSynchronize": "sync", "cuCtxCreate_v4": "context",
                             "cuModuleLoadData": "module", "cuMemGetInfo_v2": "memory-query",
                             "cuIpcOpenMemHandle_v2": "ipc", "cuGraphAddNode_v2": "graph",
                             "cuStreamEndCapture": "capture", "cuDeviceGet": "plain"}.items():
            self.assertEqual(self.cuda.by_symbol[symbol].role, role, symbol)

    def test_every_version_of_an_overridden_allocation_is_overridden(self):
        """A version left out of the list would be a way around the share."""
        for role in ("alloc", "launch"):
            functions = [f for f in self.cuda.functions if f.role == role]
            bases = {f.base for f in functions if f.overridden}
            missing = [f.symbol for f in functions if f.base in bases and not f.overridden]
            self.assertEqual(missing, [])


class VersionsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cuda = load("cuda")
        cls.table = {(v.name, v.version, v.flag): v.symbol for v in cls.cuda.versions}

    def test_known_lookups(self):
        for key, symbol in {("cuMemAlloc", 2000, 0): "cuMemAlloc",
                            ("cuMemAlloc", 3020, 0): "cuMemAlloc_v2",
                            ("cuCtxGetDevice", 2000, 0): "cuCtxGetDevice",
                            ("cuCtxGetDevice", 13000, 0): "cuCtxGetDevice_v2",
                            ("cuStreamGetCaptureInfo", 10010, 0): "cuStreamGetCaptureInfo",
                            ("cuStreamGetCaptureInfo", 11030, 0): "cuStreamGetCaptureInfo_v2",
                            ("cuStreamGetCaptureInfo", 12030, 2): "cuStreamGetCaptureInfo_v3_ptsz",
                            ("cuGetProcAddress", 11030, 0): "cuGetProcAddress",
                            ("cuGetProcAddress", 12000, 0): "cuGetProcAddress_v2",
                            ("cuMemcpyHtoD", 7000, 2): "cuMemcpyHtoD_v2_ptds"}.items():
            self.assertEqual(self.table.get(key), symbol, key)

    def test_every_symbol_answers_exactly_one_lookup(self):
        self.assertEqual(sorted(v.symbol for v in self.cuda.versions),
                         [f.symbol for f in self.cuda.functions])

    def test_order_lets_a_reader_take_the_last_match(self):
        keys = [(v.name, v.flag, v.version) for v in self.cuda.versions]
        self.assertEqual(keys, sorted(set(keys)))

    def test_flag_says_whether_the_symbol_is_per_thread(self):
        for v in self.cuda.versions:
            per_thread = v.symbol.endswith(("_ptsz", "_ptds"))
            self.assertEqual(v.flag, 2 if per_thread else 0, v.symbol)
            self.assertEqual(base_name(v.symbol), v.name)


class BrokenSpecTest(unittest.TestCase):
    """Each edit below must stop the load: a typo may not pass as a default."""

    def load_edited(self, file, pattern, replacement):
        with tempfile.TemporaryDirectory() as folder:
            spec = Path(folder) / "spec"
            shutil.copytree(support.ROOT / "spec", spec)
            text = (spec / file).read_text()
            edited = re.sub(pattern, replacement, text, count=1)
            self.assertNotEqual(text, edited, "the edit found nothing to change")
            (spec / file).write_text(edited)
            load(file.split("_")[0], spec)

    def assert_refused(self, file, pattern, replacement, message):
        with self.assertRaisesRegex(SpecError, message):
            self.load_edited(file, pattern, replacement)

    def test_a_function_without_a_role(self):
        self.assert_refused("cuda_overlay.toml", r'linear = \["cuMemAlloc", ', 'linear = [',
                            "cuMemAlloc has no role")

    def test_a_role_for_no_function(self):
        self.assert_refused("cuda_overlay.toml", r'linear = \["cuMemAlloc"',
                            'linear = ["cuX", "cuMemAlloc"', "cuX is not a base function")

    def test_two_roles(self):
        self.assert_refused("cuda_overlay.toml", r'linear = \["cuMemFree"',
                            'linear = ["cuMemAlloc", "cuMemFree"', "cuMemAlloc has two roles")

    def test_an_unknown_role(self):
        self.assert_refused("cuda_overlay.toml", r"roles\.sync", "roles.sink", "not a role")

    def test_an_override_of_no_symbol(self):
        self.assert_refused("cuda_overlay.toml", '"cuStreamDestroy_v2"', '"cuStreamDestroy_v9"',
                            "cuStreamDestroy_v9 is not a symbol")
        self.assert_refused("nvml_overlay.toml", '"nvmlDeviceGetMemoryInfo_v2"', '"nvmlMemory"',
                            "nvmlMemory is not a symbol")

    def test_a_direction_for_no_function_or_parameter(self):
        self.assert_refused("cuda_directions.toml", "cuMemHostGetFlags = { p =",
                            "cuMemHostGetFlag = { p =", "cuMemHostGetFlag is not a function")
        self.assert_refused("cuda_directions.toml", "cuMemHostGetFlags = { p =",
                            "cuMemHostGetFlags = { q =", "no parameter q")

    def test_a_direction_that_is_none(self):
        self.assert_refused("cuda_directions.toml", 'cuMemHostGetFlags = { p = "in"',
                            'cuMemHostGetFlags = { p = "up"', "cuMemHostGetFlags.p = up")

    def test_a_void_pointer_without_a_direction(self):
        self.assert_refused("cuda_directions.toml", "cuMemHostGetFlags = .*\n", "",
                            "cuMemHostGetFlags: the direction of void \\* p must be stated")


class DirectionsTest(unittest.TestCase):
    def test_known_arguments(self):
        cuda = load("cuda").by_symbol | load("nvml").by_symbol
        for key, direction in {("cuMemAlloc_v2", "dptr"): "out",
                               ("cuMemAlloc_v2", "bytesize"): "in",
                               ("cuMemcpyHtoD_v2", "srcHost"): "in",
                               ("cuMemcpyDtoH_v2_ptds", "dstHost"): "out",
                               ("cuMemcpy2D_v2", "pCopy"): "in",
                               ("cuLaunchKernel_ptsz", "kernelParams"): "in",
                               ("cuGraphGetNodes", "numNodes"): "inout",
                               ("cuStreamGetCaptureInfo_v3", "dependencies_out"): "out",
                               ("cuStreamAddCallback", "userData"): "in",
                               ("nvmlDeviceGetMemoryInfo", "memory"): "out",
                               ("nvmlDeviceGetMemoryInfo_v2", "memory"): "inout"}.items():
            found = [p.direction for p in cuda[key[0]].params if p.name == key[1]]
            self.assertEqual(found, [direction], key)


if __name__ == "__main__":
    unittest.main()
