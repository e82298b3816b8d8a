"""cuDNN 8.9 (CUDA 11) or 9 (CUDA 12, 13): a convolution by every algorithm, its gradients, and layers."""
from exercise import *  # pylint: disable=wildcard-import,unused-wildcard-import

FLOAT, NCHW, CROSS_CORRELATION = 0, 0, 1
RELU, POOLING_MAX, SPATIAL = 1, 0, 1

rt = Runtime()
# cuDNN loads these by name when it needs them.
blas = Library(f"libcublas.so.{MAJOR}")
nvrtc = Library({11: "libnvrtc.so.11.2", 12: "libnvrtc.so.12", 13: "libnvrtc.so.13"}[MAJOR])
dnn = Library("libcudnn.so.8" if MAJOR == 11 else "libcudnn.so.9", "cudnnGetErrorString")


class Algorithm(ctypes.Structure):
    _fields_ = [("number", c_int), ("status", c_int), ("milliseconds", c_float), ("bytes", c_size_t),
                ("determinism", c_int), ("math", c_int), ("reserved", c_int * 3)]


def tensor(*shape):
    out = c_void_p()
    dnn.call("cudnnCreateTensorDescriptor", byref(out))
    dnn.call("cudnnSetTensor4dDescriptor", out, NCHW, FLOAT, *shape)
    return out


ONE, ZERO = c_float(1), c_float(0)


class Convolution:
    """16 images of 32 channels, 28 by 28, to 64 channels by 3 by 3."""

    def __init__(self, handle, stream):
        self.handle, self.stream = handle, stream
        self.input, self.output = tensor(16, 32, 28, 28), tensor(16, 64, 28, 28)
        self.filter, self.convolution = c_void_p(), c_void_p()
        dnn.call("cudnnCreateFilterDescriptor", byref(self.filter))
        dnn.call("cudnnSetFilter4dDescriptor", self.filter, FLOAT, NCHW, 64, 32, 3, 3)
        dnn.call("cudnnCreateConvolutionDescriptor", byref(self.convolution))
        dnn.call("cudnnSetConvolution2dDescriptor", self.convolution, 1, 1, 1, 1, 1, 1, CROSS_CORRELATION,
                 FLOAT)
        self.x, self.y, self.w = rt.malloc(4 * MIB), rt.malloc(8 * MIB), rt.malloc(MIB)
        self.workspace = rt.malloc(256 * MIB)

    def algorithms(self, ask):
        """Those that the heuristic (or, for Find, a measurement) names."""
        results, found = (Algorithm * 16)(), c_int()
        dnn.call(ask, self.handle, self.input, self.filter, self.convolution, self.output, 16,
                 byref(found), results)
        usable = [one for one in results[:found.value] if one.status == 0]
        expect(usable, f"{ask} names no algorithm")
        return usable

    def forward(self, algorithm):
        dnn.call("cudnnConvolutionForward", self.handle, byref(ONE), self.input, self.x, self.filter,
                 self.w, self.convolution, algorithm, self.workspace, c_size_t(256 * MIB), byref(ZERO),
                 self.output, self.y)

    def backward(self):
        for name, first, second in (("Data", "filter", "input"), ("Filter", "input", "filter")):
            results, found = (Algorithm * 16)(), c_int()
            described = {"Data": (self.filter, self.output, self.convolution, self.input),
                         "Filter": (self.input, self.output, self.convolution, self.filter)}[name]
            dnn.call(f"cudnnGetConvolutionBackward{name}Algorithm_v7", self.handle, *described, 16,
                     byref(found), results)
            memory = {"filter": self.w, "input": self.x}
            dnn.call(f"cudnnConvolutionBackward{name}", self.handle, byref(ONE), getattr(self, first),
                     memory[first], self.output, self.y, self.convolution, results[0].number,
                     self.workspace, c_size_t(256 * MIB), byref(ZERO), getattr(self, second),
                     memory[second])


def layers(handle, at):
    pooled, activation, pooling = tensor(16, 64, 14, 14), c_void_p(), c_void_p()
    dnn.call("cudnnCreateActivationDescriptor", byref(activation))
    dnn.call("cudnnSetActivationDescriptor", activation, RELU, 0, ctypes.c_double(0))
    dnn.call("cudnnActivationForward", handle, activation, byref(ONE), at.output, at.y, byref(ZERO),
             at.output, at.y)
    dnn.call("cudnnCreatePoolingDescriptor", byref(pooling))
    dnn.call("cudnnSetPooling2dDescriptor", pooling, POOLING_MAX, 0, 2, 2, 0, 0, 2, 2)
    dnn.call("cudnnPoolingForward", handle, pooling, byref(ONE), at.output, at.y, byref(ZERO), pooled, at.x)
    dnn.call("cudnnSoftmaxForward", handle, 1, 0, byref(ONE), pooled, at.x, byref(ZERO), pooled, at.x)
    parameters, buffers = tensor(1, 64, 1, 1), [rt.malloc(4096) for _ in range(6)]
    dnn.call("cudnnBatchNormalizationForwardTraining", handle, SPATIAL, byref(ONE), byref(ZERO), at.output,
             at.y, at.output, at.y, parameters, buffers[0], buffers[1], ctypes.c_double(0.1), buffers[2],
             buffers[3], ctypes.c_double(1e-5), buffers[4], buffers[5])
    rt.synchronize()


def main():
    handle = c_void_p()
    dnn.raw.cudnnGetVersion.restype = c_size_t
    with step("create"):
        dnn.call("cudnnCreate", byref(handle))
        stream = rt.stream()
        dnn.call("cudnnSetStream", handle, stream)
        at = Convolution(handle, stream)
        rt.expect_share()
    with step("convolution by every algorithm of the heuristic"):
        for algorithm in at.algorithms("cudnnGetConvolutionForwardAlgorithm_v7"):
            if algorithm.bytes <= 256 * MIB:
                at.forward(algorithm.number)
        rt.call("cudaStreamSynchronize", stream)
    with step("algorithms found by measuring"):
        measured = at.algorithms("cudnnFindConvolutionForwardAlgorithm")
        expect(all(one.milliseconds > 0 for one in measured), "an algorithm took no time")
    with step("gradients"):
        at.backward()
        rt.call("cudaStreamSynchronize", stream)
    with step("activation, pooling, softmax, batch normalization"):
        layers(handle, at)
    with step("convolution in a captured graph"):
        with rt.captured(stream):
            at.forward(1)  # IMPLICIT_PRECOMP_GEMM
    with step("destroy"):
        dnn.call("cudnnDestroy", handle)
    number = dnn.result("cudnnGetVersion")
    finish(f"{number // 1000}.{number % 1000 // 100}.{number % 100}" if number < 90000 else
           f"{number // 10000}.{number // 100 % 100}.{number % 100}")


main()
