"""What the simulated driver reads of the images that nvcc makes: names, parameters, variables and
resources, from cubins, PTX and fatbins packed in every way that nvcc knows.

nvcc comes from the same virtual environments as in test_simgpu_cudart.py.
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from test_simgpu_cudart import BUILD, find, folders  # noqa: E402

SOURCE = pathlib.Path(__file__).resolve().parent / "images.cu"

# Loads the image named and prints what the driver says of it. In a process of its own: a driver
# cannot be unloaded.
READER = r"""
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *args):
    result = getattr(cuda, name)(*args)
    if result: sys.exit(f"{name}: {result}")
call("cuInit", 0)
context, device = ctypes.c_void_p(), ctypes.c_int(0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
module = ctypes.c_void_p()
result = cuda.cuModuleLoad(ctypes.byref(module), sys.argv[1].encode())
if result: print("load", result); sys.exit()
count = ctypes.c_uint()
call("cuModuleGetFunctionCount", ctypes.byref(count), module)
print("kernels", count.value)
for kernel in "several", "takes_a_struct", "shares":
    function = ctypes.c_void_p()
    call("cuModuleGetFunction", ctypes.byref(function), module, kernel.encode())
    words, offset, size = [], ctypes.c_size_t(), ctypes.c_size_t()
    index = 0
    while cuda.cuFuncGetParamInfo(function, ctypes.c_size_t(index), ctypes.byref(offset),
                                  ctypes.byref(size)) == 0:
        words.append(f"{offset.value}+{size.value}")
        index += 1
    print(kernel, *words)
    for name, attribute in ("threads", 0), ("shared", 1), ("registers", 4):
        value = ctypes.c_int()
        call("cuFuncGetAttribute", ctypes.byref(value), attribute, function)
        print(kernel, name, value.value)
for variable in "table", "constants", "managed":
    address, size = ctypes.c_uint64(), ctypes.c_size_t()
    call("cuModuleGetGlobal_v2", ctypes.byref(address), ctypes.byref(size), module,
         variable.encode())
    print(variable, size.value)
"""

PTX_SAYS = """kernels 3
several 0+8 8+4 16+8 24+1
takes_a_struct 0+2000 2000+2 2008+8
shares 0+8
table 16384
constants 308
managed 20
""".splitlines()
CUBIN_SAYS = PTX_SAYS + ["shares threads 256", "shares shared 1200"]


class Images(unittest.TestCase):
    def setUp(self):
        self.nvcc = find("bin/nvcc")
        if self.nvcc is None:
            self.skipTest("no nvcc in " + ", ".join(map(str, folders())))
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def read(self, *options):
        image = self.folder / "image"
        include = self.nvcc.parent.parent / "include"
        subprocess.run([self.nvcc, "-I", include, *options, "-o", image, SOURCE], check=True)
        state = self.folder / "state"
        state.mkdir(exist_ok=True)
        environment = {**os.environ, "PRORATA_SIM_STATE": str(state),
                       "LD_LIBRARY_PATH": str(BUILD / "sim")}
        done = subprocess.run([sys.executable, "-c", READER, image], env=environment,
                              capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout.splitlines()

    def check(self, says, *options):
        said = self.read(*options)
        self.assertEqual([line for line in says if line not in said], [], said)

    def test_cubin(self):
        self.check(CUBIN_SAYS, "-cubin", "-arch=sm_90")

    def test_ptx(self):
        self.check(PTX_SAYS, "-ptx", "-arch=compute_90")

    def test_fatbins_of_cubins(self):
        for mode in "none", "speed", "balance", "size":
            with self.subTest(mode):
                self.check(CUBIN_SAYS, "-fatbin", f"--compress-mode={mode}",
                           "-gencode=arch=compute_80,code=sm_80",
                           "-gencode=arch=compute_90,code=sm_90",
                           "-gencode=arch=compute_90,code=compute_90")

    def test_fatbins_of_ptx(self):
        for mode in "none", "speed", "balance", "size":
            with self.subTest(mode):
                self.check(PTX_SAYS, "-fatbin", f"--compress-mode={mode}",
                           "-gencode=arch=compute_80,code=sm_80",
                           "-gencode=arch=compute_80,code=compute_80")

    def test_nothing_for_the_device(self):
        said = self.read("-fatbin", "-gencode=arch=compute_80,code=sm_80",
                         "-gencode=arch=compute_100,code=sm_100")
        self.assertEqual(said, ["load 209"])


if __name__ == "__main__":
    unittest.main()
