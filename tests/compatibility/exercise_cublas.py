"""cuBLAS 11, 12 or 13: a handle on a stream, products of several kinds, one within a graph."""
from exercise import *  # pylint: disable=wildcard-import,unused-wildcard-import

N = 256
# cudaDataType and cublasComputeType_t
R_16F, R_32F, R_16BF = 2, 0, 14
COMPUTE_16F, COMPUTE_32F, COMPUTE_32F_FAST_TF32 = 64, 68, 77
DEFAULT_ALGORITHM = -1

rt = Runtime()
blas = Library(f"libcublas.so.{MAJOR}")


def gemm(handle, kind, scalar, a, b, c):
    alpha, beta = scalar(1), scalar(0)
    blas.call(f"cublas{kind}gemm_v2", handle, 0, 1, N, N, N, byref(alpha), a, N, b, N, byref(beta),
              c, N)


def gemm_ex(handle, data_type, compute, a, b, c):
    alpha, beta = c_float(1), c_float(0)
    if compute == COMPUTE_16F:  # scalars are half too; 0x3c00 is 1
        alpha, beta = ctypes.c_uint16(0x3C00), ctypes.c_uint16(0)
    blas.call("cublasGemmEx", handle, 0, 0, N, N, N, byref(alpha), a, data_type, N, b, data_type, N,
              byref(beta), c, data_type, N, compute, DEFAULT_ALGORITHM)


def main():
    handle = c_void_p()
    with step("create"):
        blas.call("cublasCreate_v2", byref(handle))
        version = c_int()
        blas.call("cublasGetVersion_v2", handle, byref(version))
        rt.expect_share()
    stream = rt.stream()
    a, b, c = (rt.malloc(N * N * 8) for _ in range(3))
    with step("stream"):
        blas.call("cublasSetStream_v2", handle, stream)
    with step("sgemm, dgemm"):
        gemm(handle, "S", c_float, a, b, c)
        gemm(handle, "D", ctypes.c_double, a, b, c)
        rt.call("cudaStreamSynchronize", stream)
    with step("gemmEx fp16, bf16, tf32"):
        gemm_ex(handle, R_16F, COMPUTE_16F, a, b, c)
        gemm_ex(handle, R_16F, COMPUTE_32F, a, b, c)
        gemm_ex(handle, R_16BF, COMPUTE_32F, a, b, c)
        gemm_ex(handle, R_32F, COMPUTE_32F_FAST_TF32, a, b, c)
        rt.call("cudaStreamSynchronize", stream)
    with step("strided batches"):
        one, zero, apart = c_float(1), c_float(0), ctypes.c_longlong(64 * 64)
        blas.call("cublasSgemmStridedBatched", handle, 0, 0, 64, 64, 64, byref(one), a, 64, apart, b,
                  64, apart, byref(zero), c, 64, apart, 8)
    with step("vector calls, result in host memory"):
        factor, result = c_float(3), c_float(1)
        blas.call("cublasSscal_v2", handle, N, byref(factor), a, 1)
        blas.call("cublasSaxpy_v2", handle, N, byref(factor), a, 1, b, 1)
        blas.call("cublasSdot_v2", handle, N, a, 1, b, 1, byref(result))
    workspace = rt.malloc(32 * MIB)
    with step("workspace"):
        blas.call("cublasSetWorkspace_v2", handle, workspace, c_size_t(32 * MIB))
        gemm(handle, "S", c_float, a, b, c)
    with step("gemm in a captured graph"):
        with rt.captured(stream):
            gemm(handle, "S", c_float, a, b, c)
            gemm_ex(handle, R_16F, COMPUTE_32F, a, b, c)
    with step("destroy"):
        blas.call("cublasDestroy_v2", handle)
        for pointer in (a, b, c, workspace):
            rt.free(pointer)
        rt.synchronize()
    number = version.value
    finish(f"{number // 10000}.{number // 100 % 100}.{number % 100}")


main()
