"""cuFFT of CUDA 11, 12 or 13: plans of several shapes, executed on a stream and within a graph."""
from exercise import *  # pylint: disable=wildcard-import,unused-wildcard-import

C2C, R2C, C2R, Z2Z = 0x29, 0x2A, 0x2C, 0x69
FORWARD, INVERSE = -1, 1

rt = Runtime()
fft = Library({11: "libcufft.so.10", 12: "libcufft.so.11", 13: "libcufft.so.12"}[MAJOR])


def main():
    version, plan, many, real = c_int(), c_int(), c_int(), c_int()
    with step("version"):
        fft.call("cufftGetVersion", byref(version))
    data, stream = rt.malloc(64 * MIB), rt.stream()
    with step("1D plan, forward and inverse"):
        fft.call("cufftPlan1d", byref(plan), 1 << 16, C2C, 4)
        fft.call("cufftSetStream", plan, stream)
        fft.call("cufftExecC2C", plan, data, data, FORWARD)
        fft.call("cufftExecC2C", plan, data, data, INVERSE)
        rt.call("cudaStreamSynchronize", stream)
    with step("2D plan, real to complex, a length that is prime"):
        fft.call("cufftPlan2d", byref(real), 127, 131, R2C)
        fft.call("cufftExecR2C", real, data, data)
        rt.synchronize()
    with step("many 3D plans in double, work area of our own"):
        sizes, work = (c_int * 3)(16, 32, 8), c_size_t()
        fft.call("cufftCreate", byref(many))
        fft.call("cufftSetAutoAllocation", many, 0)
        fft.call("cufftMakePlanMany", many, 3, sizes, None, 1, 0, None, 1, 0, Z2Z, 8, byref(work))
        area = rt.malloc(max(work.value, 1))
        fft.call("cufftSetWorkArea", many, area)
        fft.call("cufftExecZ2Z", many, data, data, FORWARD)
        rt.synchronize()
    with step("in a captured graph"):
        with rt.captured(stream):
            fft.call("cufftExecC2C", plan, data, data, FORWARD)
    with step("destroy"):
        for one in (plan, many, real):
            fft.call("cufftDestroy", one)
        rt.free(area)
        rt.free(data)
    number = version.value
    finish(f"{number // 1000}.{number // 100 % 10}.{number % 100}")


main()
