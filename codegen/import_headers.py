#!/usr/bin/env python3
"""Imports spec/cuda.json and spec/nvml.json from NVIDIA's headers.

    python3 codegen/import_headers.py --cuda-include DIR

Needed only when the spec moves to a newer API version. Needs gcc and pycparser (PyPI).
"""

import argparse
import json
import re
import sys
from pathlib import Path

from cheaders import HeaderReader, read_macros
from preprocess import (CUDA_DEFINES, CUDA_HEADERS, NVML_DEFINES, NVML_HEADERS, include_all,
                        preprocess)
from versions import match_versions

ROOT = Path(__file__).resolve().parent.parent
# The header that a file's contents are attributed to: real ones, and stand-ins of ours.
ORIGINS = {h: h for h in ("cuda.h", "cudaProfiler.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h")}
ORIGINS |= {"gl.h": "GL/gl.h", "egl.h": "EGL/egl.h", "eglext.h": "EGL/eglext.h",
            "vdpau.h": "vdpau/vdpau.h"}
CUDA_SOURCE = include_all(CUDA_HEADERS)
TYPEDEF_SOURCE = include_all(("vdpau/vdpau.h", "cudaTypedefs.h", "cudaProfilerTypedefs.h",
                              "cudaGLTypedefs.h", "cudaEGLTypedefs.h", "cudaVDPAUTypedefs.h"))
# nvml.h spells version words of structs with one function-like macro; ours replaces it.
NVML_STRUCT_VERSION = re.compile(r"NVML_STRUCT_VERSION\((\w+), ?(\d+)\)")


def renames_function(value, functions):
    words = re.findall(r"\w+", value)
    return any(w in functions for w in words) or "__CUDA_API_PT" in value


def skip_macro(functions):
    machinery = re.compile(r"_|CUDAAPI$|CUDA_CB$|DECLDIR$|DEPRECATED$")
    return lambda name, value: bool(
        machinery.match(name) or renames_function(value, functions) or name in functions)


def import_cuda(include):
    origin = ORIGINS.get
    reader = HeaderReader(origin)
    reader.read(preprocess(CUDA_SOURCE, include, CUDA_DEFINES))
    typedefs = HeaderReader(lambda f: f if f.endswith("Typedefs.h") else None)
    typedefs.read(preprocess(TYPEDEF_SOURCE, include, CUDA_DEFINES))
    # Macros as a program sees them: without the define that turns the renames inside out.
    text = preprocess(CUDA_SOURCE, include, flags=["-dD"])
    macros = read_macros(text, origin, skip_macro(reader.functions))
    version = next(int(m["value"]) for m in macros if m["name"] == "CUDA_VERSION")
    return {"api_version": version, "macros": macros, "types": reader.types,
            "functions": sorted(reader.functions.values(), key=lambda f: f["name"]),
            "versions": match_versions(reader, typedefs.function_types)}


def import_nvml(include):
    origin = {"nvml.h": "nvml.h"}.get
    source = include_all(NVML_HEADERS)
    reader = HeaderReader(origin)
    reader.read(preprocess(source, include, NVML_DEFINES))
    text = preprocess(source, include, NVML_DEFINES, flags=["-dD"])
    macros = read_macros(text, origin, skip_macro(reader.functions))
    for macro in macros:
        macro["value"] = NVML_STRUCT_VERSION.sub(
            r"((unsigned int)(sizeof(nvml\1_v\2_t) | (\2u << 24)))", macro["value"])
    version = next(int(m["value"]) for m in macros if m["name"] == "NVML_API_VERSION")
    return {"api_version": version, "macros": macros, "types": reader.types,
            "functions": sorted(reader.functions.values(), key=lambda f: f["name"])}


def write_json(path, spec):
    """One entry per line, so that a new API version reads well as a diff."""
    parts = []
    for key, value in spec.items():
        if isinstance(value, list):
            rows = ",\n".join("  " + json.dumps(item) for item in value)
            parts.append(f" {json.dumps(key)}: [\n{rows}\n ]")
        else:
            parts.append(f" {json.dumps(key)}: {json.dumps(value)}")
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cuda-include", required=True, type=Path)
    include = parser.parse_args().cuda_include
    if not (include / "cuda.h").exists():
        sys.exit(f"no cuda.h in {include}")
    write_json(ROOT / "spec" / "cuda.json", import_cuda(include))
    write_json(ROOT / "spec" / "nvml.json", import_nvml(include))


if __name__ == "__main__":
    main()
