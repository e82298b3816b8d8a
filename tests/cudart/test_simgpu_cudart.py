"""NVIDIA's CUDA runtime, unmodified, on the simulated driver: 12 and 13, static and shared.

nvcc and the runtimes come from virtual environments made from PyPI: PRORATA_CUDA_VENV and
PRORATA_CUDA_DIRS name folders, or venv-cuda13, venv-cuda12 and cuda in the build folder are taken.
Where something is missing, the test is skipped by name.
"""
import os
import pathlib
import subprocess
import tempfile
import unittest

BUILD = pathlib.Path(os.environ.get("PRORATA_BUILD_DIR", "build")).resolve()
SOURCE = pathlib.Path(__file__).resolve().parent / "vector_add.cu"


def folders():
    named = [os.environ.get("PRORATA_CUDA_VENV", ""), os.environ.get("PRORATA_CUDA_DIRS", "")]
    out = [pathlib.Path(p) for value in named for p in value.split(":") if p]
    return out + [BUILD / name for name in ("venv-cuda13", "venv-cuda12", "cuda")]


def find(pattern):
    for folder in folders():
        # Through the links of a virtual environment, which Path.glob would not follow.
        found = sorted(p for p in pathlib.Path(os.path.realpath(folder)).glob("**/" + pattern)
                       if p.is_file())
        if found:
            return found[0]
    return None


class Cudart(unittest.TestCase):
    def build(self, folder, major, static):
        nvcc = find("bin/nvcc")
        if nvcc is None:
            self.skipTest("no nvcc in " + ", ".join(map(str, folders())))
        shared = find(f"libcudart.so.{major}")
        if shared is None:
            self.skipTest(f"no cudart {major} in " + ", ".join(map(str, folders())))
        library = shared.parent / "libcudart_static.a" if static else shared
        program = pathlib.Path(folder) / "vector_add"
        object_file = program.with_suffix(".o")
        subprocess.run([nvcc, "-arch=sm_90", "-I", shared.parent.parent / "include", "-c", "-o",
                        object_file, SOURCE], check=True)
        subprocess.run(["c++", "-o", program, object_file, library,
                        f"-Wl,-rpath,{shared.parent}", "-lpthread", "-ldl", "-lrt"], check=True)
        return program

    def check(self, major, static):
        with tempfile.TemporaryDirectory() as folder:
            program = self.build(folder, major, static)
            state = pathlib.Path(folder) / "state"
            state.mkdir()
            environment = {**os.environ, "PRORATA_SIM_STATE": str(state),
                           "LD_LIBRARY_PATH": str(BUILD / "sim")}
            done = subprocess.run([program], env=environment, capture_output=True, text=True,
                                  timeout=600)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertRegex(done.stdout, f"^runtime {major}[0-9]* ok")

    def test_12_static(self):
        self.check(12, True)

    def test_12_shared(self):
        self.check(12, False)

    def test_13_static(self):
        self.check(13, True)

    def test_13_shared(self):
        self.check(13, False)


if __name__ == "__main__":
    unittest.main()
