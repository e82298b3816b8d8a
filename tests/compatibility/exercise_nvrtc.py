"""NVRTC 11, 12 or 13: CUDA C++ compiled to PTX and to a cubin, loaded by the driver, launched."""
from exercise import *  # pylint: disable=wildcard-import,unused-wildcard-import

SOURCE = b"""
__device__ int counter;
__constant__ float table[4];
extern "C" __global__ void scale(float* data, float factor, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] *= factor * table[0];
  if (i == 0) ++counter;
}
template <typename T> __global__ void fill(T* data, T value) { data[threadIdx.x] = value; }
"""

rt = Runtime()
nvrtc = Library({11: "libnvrtc.so.11.2", 12: "libnvrtc.so.12", 13: "libnvrtc.so.13"}[MAJOR],
                "nvrtcGetErrorString")
driver = ctypes.CDLL("libcuda.so.1")


def cu(function, *arguments):
    result = getattr(driver, function)(*arguments)
    expect_equal(result, 0, f"the answer of {function}")


def program(source, *expressions):
    out = c_void_p()
    nvrtc.call("nvrtcCreateProgram", byref(out), source, b"exercise.cu", 0, None, None)
    for expression in expressions:
        nvrtc.call("nvrtcAddNameExpression", out, expression)
    return out


def compiled(source, architecture, kind):
    """(image, lowered name of fill<float>) as PTX or CUBIN."""
    made = program(source, b"fill<float>")
    options = (ctypes.c_char_p * 1)(b"--gpu-architecture=" + architecture)
    nvrtc.call("nvrtcCompileProgram", made, 1, options)
    lowered = ctypes.c_char_p()
    nvrtc.call("nvrtcGetLoweredName", made, b"fill<float>", byref(lowered))
    name = lowered.value
    size = c_size_t()
    nvrtc.call(f"nvrtcGet{kind}Size", made, byref(size))
    image = ctypes.create_string_buffer(size.value)
    nvrtc.call(f"nvrtcGet{kind}", made, image)
    nvrtc.call("nvrtcDestroyProgram", byref(made))
    return image, name


def run(image, lowered):
    module, function, filler, address, size = c_void_p(), c_void_p(), c_void_p(), c_void_p(), c_size_t()
    cu("cuModuleLoadData", byref(module), image)
    cu("cuModuleGetFunction", byref(function), module, b"scale")
    cu("cuModuleGetFunction", byref(filler), module, lowered)
    for name, wanted in ((b"counter", 4), (b"table", 16)):
        cu("cuModuleGetGlobal_v2", byref(address), byref(size), module, name)
        expect_equal(size.value, wanted, f"the size of {name}")
    data = rt.malloc(4096)
    values = (data, c_float(2), c_int(1024))
    arguments = (c_void_p * 3)(*[ctypes.addressof(value) for value in values])
    cu("cuLaunchKernel", function, 4, 1, 1, 256, 1, 1, 0, None, arguments, None)
    cu("cuLaunchKernel", filler, 1, 1, 1, 32, 1, 1, 0, None, arguments, None)
    rt.synchronize()
    registers = c_int()
    cu("cuFuncGetAttribute", byref(registers), 4, function)
    expect(registers.value > 0, "a kernel without registers")
    cu("cuModuleUnload", module)
    rt.free(data)


def refused():
    made = program(b"__global__ void broken( {")
    expect(nvrtc.result("nvrtcCompileProgram", made, 0, None) == 6, "broken source was compiled")
    size = c_size_t()
    nvrtc.call("nvrtcGetProgramLogSize", made, byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.call("nvrtcGetProgramLog", made, log)
    expect(b"error" in log.value, f"the log says {log.value!r}")
    nvrtc.call("nvrtcDestroyProgram", byref(made))


def main():
    major, minor = c_int(), c_int()
    with step("version"):
        nvrtc.call("nvrtcVersion", byref(major), byref(minor))
    with step("broken source refused, with a log"):
        refused()
    with step("PTX: compiled, loaded, launched"):
        rt.free(rt.malloc(1))  # a context
        run(*compiled(SOURCE, b"compute_80", "PTX"))
    with step("cubin: compiled, loaded, launched"):
        run(*compiled(SOURCE, b"sm_90", "CUBIN"))
    finish(f"{major.value}.{minor.value}")


main()
