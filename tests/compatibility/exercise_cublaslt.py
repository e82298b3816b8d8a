"""cuBLASLt 11, 12 or 13: a matmul with the heuristic's choice, alone and within a graph."""
from exercise import *  # pylint: disable=wildcard-import,unused-wildcard-import

N = 512
R_32F, R_16F = 0, 2
COMPUTE_32F = 68
PREFERENCE_WORKSPACE = 1  # CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES
DESC_TRANSA, DESC_EPILOGUE, DESC_BIAS_POINTER = 3, 7, 8
EPILOGUE_RELU_BIAS = 2 | 4
HEURISTICS = 8

rt = Runtime()
lt = Library(f"libcublasLt.so.{MAJOR}")


class Heuristic(ctypes.Structure):
    _fields_ = [("algorithm", ctypes.c_uint64 * 8), ("workspace_bytes", c_size_t), ("state", c_int),
                ("waves", c_float), ("reserved", c_int * 4)]


def layout(data_type):
    out = c_void_p()
    lt.call("cublasLtMatrixLayoutCreate", byref(out), data_type, ctypes.c_uint64(N),
            ctypes.c_uint64(N), ctypes.c_int64(N))
    return out


def set_attribute(description, attribute, value):
    lt.call("cublasLtMatmulDescSetAttribute", description, attribute, byref(value),
            c_size_t(ctypes.sizeof(value)))


def main():
    handle, description, preference = c_void_p(), c_void_p(), c_void_p()
    lt.raw.cublasLtGetVersion.restype = c_size_t
    with step("create"):
        lt.call("cublasLtCreate", byref(handle))
    a, b, d, bias, workspace = (rt.malloc(size) for size in (N * N * 4,) * 4 + (32 * MIB,))
    with step("matmul description, transposed, with bias and relu"):
        lt.call("cublasLtMatmulDescCreate", byref(description), COMPUTE_32F, R_32F)
        set_attribute(description, DESC_TRANSA, c_int(1))
        set_attribute(description, DESC_EPILOGUE, c_int(EPILOGUE_RELU_BIAS))
        set_attribute(description, DESC_BIAS_POINTER, bias)
        layouts = [layout(R_16F) for _ in range(3)]
    results, found = (Heuristic * HEURISTICS)(), c_int()
    with step("heuristic"):
        lt.call("cublasLtMatmulPreferenceCreate", byref(preference))
        limit = c_size_t(32 * MIB)
        lt.call("cublasLtMatmulPreferenceSetAttribute", preference, PREFERENCE_WORKSPACE, byref(limit),
                c_size_t(8))
        lt.call("cublasLtMatmulAlgoGetHeuristic", handle, description, layouts[0], layouts[1],
                layouts[2], layouts[2], preference, HEURISTICS, results, byref(found))
        expect(found.value > 0, "the heuristic found no algorithm")
    stream = rt.stream()

    def matmul(result):
        one, zero = c_float(1), c_float(0)
        lt.call("cublasLtMatmul", handle, description, byref(one), a, layouts[0], b, layouts[1],
                byref(zero), d, layouts[2], d, layouts[2], byref(result.algorithm), workspace,
                c_size_t(result.workspace_bytes), stream)

    with step("matmul by every algorithm of the heuristic"):
        for result in results[:found.value]:
            expect_equal(result.state, 0, "an algorithm's state")
            matmul(result)
        rt.call("cudaStreamSynchronize", stream)
    with step("matmul in a captured graph"):
        with rt.captured(stream):
            matmul(results[0])
    with step("destroy"):
        for one in layouts:
            lt.call("cublasLtMatrixLayoutDestroy", one)
        lt.call("cublasLtMatmulPreferenceDestroy", preference)
        lt.call("cublasLtMatmulDescDestroy", description)
        lt.call("cublasLtDestroy", handle)
    number = lt.result("cublasLtGetVersion")
    finish(f"{number // 10000}.{number // 100 % 100}.{number % 100}")


main()
