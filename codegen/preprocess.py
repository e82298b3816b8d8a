"""Runs gcc's preprocessor over headers, away from the system's own: see import_stubs/."""

import subprocess
from pathlib import Path

STUBS = Path(__file__).resolve().parent / "import_stubs"
# The first makes cuda.h declare every exported name, old versions and per-thread variants too; the
# second drops the enumerators that only the first would add and that programs never see.
CUDA_DEFINES = ("__CUDA_API_VERSION_INTERNAL", "__CUDA_API_VERSION_INTERNAL_ODR")
# cudaVDPAU.h expects its caller to have included vdpau.h.
CUDA_HEADERS = ("vdpau/vdpau.h", "cuda.h", "cudaProfiler.h", "cudaGL.h", "cudaEGL.h",
                "cudaVDPAU.h")
NVML_DEFINES = ("NVML_NO_UNVERSIONED_FUNC_DEFS",)
NVML_HEADERS = ("nvml.h",)


def include_all(headers):
    return "".join(f"#include <{h}>\n" for h in headers)


def preprocess(source, include, defines=(), flags=()):
    command = ["gcc", "-E", "-nostdinc", "-std=c11", *flags, f"-I{include}", f"-I{STUBS}",
               "-D__attribute__(x)=", *[f"-D{d}" for d in defines], "-x", "c", "-"]
    return subprocess.run(command, input=source, text=True, check=True,
                          capture_output=True).stdout
