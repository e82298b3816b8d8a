"""The client library as a file: its exports, its needs, and that loading it runs nothing."""

import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("PRORATA_BUILD_DIR", ROOT / "build"))
sys.path.insert(0, str(ROOT / "codegen"))

from model import load  # noqa: E402

LIBRARIES = {"cuda": "libcuda.so.1", "nvml": "libnvidia-ml.so.1"}
FLOOR = (2, 27)


def run(*command):
    return subprocess.run(command, check=True, text=True, capture_output=True).stdout


def path(library):
    found = BUILD / "lib" / LIBRARIES[library]
    if not found.exists():
        raise unittest.SkipTest(f"{found} is not built")
    return str(found)


def dynamic(library):
    """[(tag, text)] of the dynamic section."""
    return re.findall(r"\((\w+)\)\s+(.*)", run("readelf", "-dW", path(library)))


def symbols(library):
    """[(name, defined)] of the dynamic symbols."""
    rows = []
    for line in run("readelf", "--dyn-syms", "-W", path(library)).splitlines():
        fields = line.split()
        if len(fields) >= 8 and fields[0].rstrip(":").isdigit() and fields[3] in ("FUNC", "OBJECT",
                                                                               "NOTYPE", "TLS"):
            rows.append((fields[7], fields[6] != "UND"))
    return rows


class ElfTest(unittest.TestCase):
    def each(self):
        for library in LIBRARIES:
            with self.subTest(library=library):
                yield library

    def test_exports_are_those_of_the_spec(self):
        for library in self.each():
            exported = [name for name, defined in symbols(library) if defined]
            self.assertEqual(sorted(exported), sorted(f.symbol for f in load(library).functions))

    def test_needs_nothing_but_the_c_library(self):
        for library in self.each():
            needed = [re.sub(r".*\[(.*)\]", r"\1", text)
                      for tag, text in dynamic(library) if tag == "NEEDED"]
            self.assertEqual(sorted(needed), ["libc.so.6", "libdl.so.2"])

    def test_symbol_versions_stay_below_the_floor(self):
        for library in self.each():
            for name, defined in symbols(library):
                version = re.search(r"@GLIBC_(\d+)\.(\d+)", name)
                if not defined:
                    self.assertIsNotNone(version, f"{name} has no version of glibc's")
                    self.assertLessEqual(tuple(map(int, version.groups())), FLOOR, name)

    def test_loading_runs_one_function_at_most(self):
        for library in self.each():
            entries = dict(dynamic(library))
            self.assertFalse(entries.keys() & {"INIT", "FINI", "FINI_ARRAY", "PREINIT_ARRAY"})
            # That which loads the driver, where it is a container's (test_loading.py).
            self.assertEqual(entries.get("INIT_ARRAYSZ"), "8 (bytes)" if library == "cuda" else None)

    def test_name_and_flags(self):
        for library in self.each():
            entries = dict(dynamic(library))
            self.assertIn(f"[{LIBRARIES[library]}]", entries["SONAME"])
            self.assertIn("NODELETE", entries["FLAGS_1"])
            self.assertNotIn("TEXTREL", entries)

    def test_stack_is_not_executable_and_relocations_are_read_only(self):
        for library in self.each():
            headers = run("readelf", "-lW", path(library))
            stack = re.search(r"GNU_STACK.*", headers).group()
            self.assertRegex(stack, r"\bRW\b")
            self.assertIn("GNU_RELRO", headers)

    def test_bare_names_lead_to_the_libraries(self):
        for library, name in LIBRARIES.items():
            link = Path(path(library)).with_name(name.removesuffix(".1"))
            self.assertEqual(link.resolve().name, name)

    def test_hand_written_functions_are_the_listed_overrides(self):
        text = (ROOT / "generated/client_overrides.inc").read_text()
        for library, macro, start in (("cuda", "DRIVER", "cu"), ("nvml", "NVML", "nvml")):
            listed = re.findall(rf"PRORATA_{macro}_OVERRIDE\((\w+),", text)
            folder = BUILD / f"src/client/CMakeFiles/prorata_client_{library}.dir"
            objects = sorted(folder.rglob("*.cc.o"))
            if not objects:
                self.skipTest(f"no objects in {folder}")
            defined = set()
            for line in run("nm", "--defined-only", "-g", *map(str, objects)).splitlines():
                fields = line.split()
                if len(fields) == 3 and re.match(rf"{start}[A-Z]", fields[2]):
                    defined.add(fields[2])
            self.assertEqual(sorted(defined), sorted(listed))


if __name__ == "__main__":
    unittest.main()
