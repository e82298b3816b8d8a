"""The generated headers compile alone, as C and as C++, and describe a plausible ABI."""

import unittest

import support
from model import load
from probe import program

WARN = ("-Wall", "-Wextra", "-Werror", f"-I{support.GENERATED}")


class AbiHeaderTest(support.ToolTest):
    def test_each_compiles_alone(self):
        for header in ("cuda_abi.h", "nvml_abi.h"):
            for compiler, standard, suffix in (("gcc", "c11", "c"), ("g++", "c++23", "cc")):
                source = self.write(f"alone.{suffix}", f'#include "{header}"\n')
                self.run_tool(compiler, f"-std={standard}", *WARN, "-c", source, "-o", "alone.o")

    def test_c_and_cxx_see_the_same_numbers(self):
        for name in ("cuda", "nvml"):
            text = program(load(name), f'#include "{name}_abi.h"\n')
            as_c = self.write("probe.c", text)
            as_cxx = self.write("probe.cc", text.replace("_Alignof", "alignof"))
            self.run_tool("gcc", "-std=gnu11", "-O0", *WARN, as_c, "-o", "as_c")
            self.run_tool("g++", "-std=gnu++23", "-O0", *WARN, "-Wno-invalid-offsetof", as_cxx,
                          "-o", "as_cxx")
            c, cxx = self.run_tool("./as_c"), self.run_tool("./as_cxx")
            self.assertEqual(c, cxx)
            self.assertGreater(c.count("\n"), 2000)

    def test_constants_that_programs_need(self):
        source = self.write("constants.cc", """
#include "cuda_abi.h"
#include "nvml_abi.h"
static_assert(CUDA_VERSION == 13000 && CUDA_SUCCESS == 0 && CUDA_ERROR_OUT_OF_MEMORY == 2);
static_assert(CUDA_ERROR_NOT_SUPPORTED == 801 && CU_IPC_HANDLE_SIZE == 64);
static_assert(sizeof(CUipcMemHandle) == 64 && sizeof(CUuuid) == 16 && sizeof(CUdeviceptr) == 8);
static_assert(CU_MEMHOSTALLOC_PORTABLE == 1 && CUDA_ARRAY3D_LAYERED == 1);
static_assert(CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM == 2);
static_assert(sizeof(CUtensorMap) == 128 && CU_DEVICE_INVALID == -2);
static_assert(NVML_ERROR_NOT_SUPPORTED == 3 && sizeof(nvmlMemory_t) == 24);
static_assert(nvmlMemory_v2 == (sizeof(nvmlMemory_v2_t) | 2u << 24));
int main() {
  void* end[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END};
  CUstream streams[] = {CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};
  return end[2] == nullptr && streams[0] != streams[1] ? 0 : 1;
}
""")
        self.run_tool("g++", "-std=c++23", *WARN, source, "-o", "constants")
        self.run_tool("./constants")


if __name__ == "__main__":
    unittest.main()
