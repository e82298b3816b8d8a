"""What the codegen tests share: paths, the compiler, and where CUDA's headers may be."""

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ROOT / "generated"
sys.path.insert(0, str(ROOT / "codegen"))


@functools.cache
def built():
    """A folder with the files that only the build needs: assembly and export maps."""
    folder = Path(tempfile.mkdtemp(prefix="prorata-generated-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    subprocess.run([sys.executable, ROOT / "codegen" / "generate.py", "--build", folder], check=True)
    return folder


def cuda_include():
    """The folder of an installed cuda.h, or None."""
    named = os.environ.get("PRORATA_CUDA_INCLUDE")
    places = [Path(named)] if named else []
    # Sanitizer builds lie below the one whose set-up fetched the headers.
    build = Path(os.environ.get("PRORATA_BUILD_DIR", ROOT / "build"))
    for folder in (build, build.parent, ROOT / "build"):
        places += sorted(folder.glob("venv-cuda13/lib/python3*/site-packages/nvidia/cu13/include"))
    places += [Path("/usr/local/cuda/include")]
    return next((p for p in places if (p / "cuda.h").exists()), None)


class ToolTest(unittest.TestCase):
    """A test with a scratch folder that runs compilers and fails with their output."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="prorata-codegen-")
        self.addCleanup(folder.cleanup)
        self.scratch = Path(folder.name)

    def write(self, name, text):
        path = self.scratch / name
        path.write_text(text)
        return path

    def run_tool(self, *command):
        result = subprocess.run([str(c) for c in command], text=True, capture_output=True,
                                cwd=self.scratch, timeout=300)
        if result.returncode != 0:
            self.fail(f"{' '.join(map(str, command))}: status {result.returncode}\n"
                      f"{result.stdout[-4000:]}{result.stderr[-4000:]}")
        return result.stdout

    def dynamic_symbols(self, library):
        """Names that a shared object defines for others."""
        lines = self.run_tool("nm", "-D", "--defined-only", library).splitlines()
        return {line.split()[-1] for line in lines}
