"""The spec agrees with CUDA's headers where they are installed.

A header of the spec's own version must agree in everything. An older one may lack names; a newer
one may not have a name that the spec does not know, for such a function would have no role.
"""

import re
import unittest

import support
from model import declare, load
from preprocess import (CUDA_DEFINES, CUDA_HEADERS, NVML_DEFINES, NVML_HEADERS, STUBS, include_all,
                        preprocess)
from probe import program

INCLUDE = support.cuda_include()
WHERE = "no CUDA headers: set PRORATA_CUDA_INCLUDE or make build/venv-cuda13"
PROTOTYPE = re.compile(r"([A-Za-z_][\w\s*]*?)\b((?:cu|nvml)[A-Z]\w*)\s*\(([^(){};]*)\)\s*;")
ENUMERATION = re.compile(r"\benum\b\s*\w*\s*\{([^{}]*)\}")


def tokens(text):
    return re.findall(r"\w+|[*\[\]]", text.replace("extern", ""))


def clean(text):
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))


def prototypes(text):
    """name -> every (return type, parameters) it is declared with, as token lists."""
    found = {}
    for returns, name, params in PROTOTYPE.findall(clean(text)):
        if "typedef" not in returns and "return" not in returns:
            found.setdefault(name, []).append((tokens(returns), tokens(params)))
    return found


def enumerators(text):
    return {item.split("=")[0].strip() for body in ENUMERATION.findall(clean(text))
            for item in re.sub(r"\([^()]*\)", "", body).split(",")} - {""}


def expected_prototype(function):
    params = " ".join(declare(p.type, p.name) for p in function.params) or "void"
    return tokens(function.returns), tokens(params)


class DriftTest(support.ToolTest):
    """The comparisons; a subclass names the header. ctest lists test methods where they stand, so
    each subclass spells its own."""

    def setUp(self):
        super().setUp()
        pattern, header = self.version_of
        if not (INCLUDE / header).exists():
            self.skipTest(f"no {header} in {INCLUDE}")
        self.library = load(self.name)
        self.installed = int(pattern.search((INCLUDE / header).read_text())[1])
        self.text = preprocess(include_all(self.headers), INCLUDE, self.defines)
        self.declared = prototypes(self.text)
        self.spec = {f.symbol: f for f in self.library.functions if f.header}

    def need_same_version(self):
        if self.installed != self.library.api_version:
            self.skipTest(f"the spec is {self.library.api_version}, {INCLUDE} {self.installed}")

    def declared_is_known(self):
        self.assertGreater(len(self.declared), 300)
        self.assertEqual(sorted(self.declared.keys() - self.spec.keys()), [])

    def known_is_declared(self):
        self.need_same_version()
        self.assertEqual(sorted(self.spec.keys() - self.declared.keys()), [])

    def signatures_agree(self):
        self.need_same_version()
        wrong = [f"{name}: {expected_prototype(f)} against {self.declared[name]}"
                 for name, f in self.spec.items()
                 if expected_prototype(f) not in self.declared.get(name, [])]
        self.assertEqual(wrong, [])

    def enumerators_agree(self):
        self.need_same_version()
        known = {name for entry in self.library.types for name, _ in getattr(entry, "values", ())}
        self.assertEqual(enumerators(self.text) ^ known, set())

    def numbers_agree(self):
        self.need_same_version()
        ours = self.write("ours.c", program(self.library, f'#include "{self.name}_abi.h"\n'))
        theirs = self.write("theirs.c", program(self.library, include_all(self.headers)))
        self.run_tool("gcc", "-std=gnu11", "-w", f"-I{support.GENERATED}", ours, "-o", "ours")
        self.run_tool("gcc", "-std=gnu11", "-w", f"-I{INCLUDE}", f"-idirafter{STUBS}",
                      *[f"-D{d}" for d in self.defines], theirs, "-o", "theirs")
        numbers = [self.run_tool(f"./{program}").splitlines() for program in ("ours", "theirs")]
        self.assertGreater(len(numbers[0]), 2000)
        self.assertEqual(sorted(set(numbers[0]) ^ set(numbers[1])), [])


@unittest.skipUnless(INCLUDE, WHERE)
class CudaDriftTest(DriftTest):
    name, headers, defines = "cuda", CUDA_HEADERS, CUDA_DEFINES
    version_of = re.compile(r"#define\s+CUDA_VERSION\s+(\d+)"), "cuda.h"

    def test_every_declared_function_is_in_the_spec(self):
        self.declared_is_known()

    def test_every_function_of_the_spec_is_declared(self):
        self.known_is_declared()

    def test_signatures_agree(self):
        self.signatures_agree()

    def test_enumerators_agree(self):
        self.enumerators_agree()

    def test_sizes_offsets_and_constants_agree(self):
        self.numbers_agree()


@unittest.skipUnless(INCLUDE, WHERE)
class NvmlDriftTest(DriftTest):
    name, headers, defines = "nvml", NVML_HEADERS, NVML_DEFINES
    version_of = re.compile(r"#define\s+NVML_API_VERSION\s+(\d+)"), "nvml.h"

    def test_every_declared_function_is_in_the_spec(self):
        self.declared_is_known()

    def test_every_function_of_the_spec_is_declared(self):
        self.known_is_declared()

    def test_signatures_agree(self):
        self.signatures_agree()

    def test_enumerators_agree(self):
        self.enumerators_agree()

    def test_sizes_offsets_and_constants_agree(self):
        self.numbers_agree()


@unittest.skipUnless(INCLUDE, WHERE)
class VersionDriftTest(support.ToolTest):
    def test_every_versioned_typedef_has_a_row(self):
        """cudaTypedefs.h says which versions exist; each must be answered, and no other."""
        header = INCLUDE / "cudaTypedefs.h"
        if not header.exists():
            self.skipTest(f"no {header}")
        source = include_all(["vdpau/vdpau.h", *[f"cuda{part}Typedefs.h" for part in
                                                 ("", "Profiler", "GL", "EGL", "VDPAU")]])
        text = preprocess(source, INCLUDE, CUDA_DEFINES)
        found = {(m[1], int(m[2]), 2 if m[3] else 0) for m in
                 re.finditer(r"\bPFN_(\w+?)_v(\d+)(_ptsz|_ptds)?\b", text)}
        cuda = load("cuda")
        known = {(v.name, v.version, v.flag) for v in cuda.versions}
        self.assertGreater(len(found), 500)
        self.assertEqual(found - known, set())
        version = re.search(r"#define\s+CUDA_VERSION\s+(\d+)", (INCLUDE / "cuda.h").read_text())[1]
        if int(version) == cuda.api_version:
            self.assertEqual(known - found, set())


if __name__ == "__main__":
    unittest.main()
