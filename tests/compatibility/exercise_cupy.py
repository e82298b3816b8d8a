"""CuPy: memory and its pools, copies, running out, kernels compiled by NVRTC, NVIDIA's libraries below
it, streams, events, graphs. Nothing is computed, so only bytes that were copied are looked at.
"""
import cupy
import numpy
from exercise import GIB, MIB, TOTAL_BYTES, expect, expect_equal, finish, step

runtime = cupy.cuda.runtime


def free_bytes():
    cupy.cuda.Device().synchronize()
    return runtime.memGetInfo()[0]


def device():
    expect_equal(runtime.getDeviceCount(), 1, "devices")
    properties = runtime.getDeviceProperties(0)
    expect_equal(properties["name"], b"Simulated GPU", "the device's name")
    expect_equal(cupy.cuda.Device(0).compute_capability, "90", "compute capability")
    if TOTAL_BYTES is not None:
        expect_equal(properties["totalGlobalMem"], TOTAL_BYTES, "totalGlobalMem of the properties")
        expect_equal(runtime.memGetInfo()[1], TOTAL_BYTES, "memGetInfo's total")


def pool():
    memory = cupy.get_default_memory_pool()
    before = free_bytes()
    held = cupy.empty(256 * MIB, dtype=cupy.uint8)
    expect_equal(memory.used_bytes(), 256 * MIB, "used_bytes of the pool")
    taken = before - free_bytes()
    expect(256 * MIB <= taken <= 320 * MIB, f"256 MiB took {taken} bytes of the device")
    del held
    expect_equal(memory.used_bytes(), 0, "used_bytes after the array is gone")
    expect(memory.total_bytes() >= 256 * MIB, "the pool kept nothing")
    memory.free_all_blocks()
    expect_equal(free_bytes(), before, "free memory after free_all_blocks")


def managed():
    with cupy.cuda.using_allocator(cupy.cuda.MemoryPool(cupy.cuda.malloc_managed).malloc):
        source = numpy.arange(1 << 20)
        there = cupy.asarray(source)
        expect(numpy.array_equal(there.get(), source), "bytes that went to managed memory and back")


def stream_ordered():
    memory = cupy.cuda.MemoryAsyncPool()
    before = free_bytes()
    with cupy.cuda.using_allocator(memory.malloc):
        held = [cupy.empty(64 * MIB, dtype=cupy.uint8) for _ in range(4)]
        expect(free_bytes() <= before - 256 * MIB, "256 MiB of cudaMallocAsync took less of the device")
        expect_equal(memory.used_bytes(), 256 * MIB, "used_bytes of the pool")
        held.clear()
        expect_equal(memory.used_bytes(), 0, "used_bytes after the arrays are gone")
        cupy.cuda.Device().synchronize()
        memory.free_all_blocks()
    expect_equal(free_bytes(), before, "free memory after free_all_blocks")


def copies():
    source = numpy.arange(1 << 20)
    there = cupy.asarray(source)
    expect(numpy.array_equal(there.get(), source), "bytes that went to the device and back")
    other = cupy.empty_like(there)  # copy() is a kernel of its own
    other.data.copy_from_device_async(there.data, there.nbytes, cupy.cuda.get_current_stream())
    expect(numpy.array_equal(other.get(), source), "bytes that were copied on the device")
    expect(numpy.array_equal(there[1000:2000].get(), source[1000:2000]), "bytes of a view")
    pinned = cupy.cuda.alloc_pinned_memory(source.nbytes)
    back = numpy.frombuffer(pinned, source.dtype, source.size)
    there.get(out=back)
    expect(numpy.array_equal(back, source), "bytes that came back to pinned memory")


def out_of_memory():
    try:
        cupy.empty(1 << 45, dtype=cupy.uint8)
        raise AssertionError("32 TiB were allocated")
    except cupy.cuda.memory.OutOfMemoryError as error:
        expect("Out of memory allocating" in str(error), f"the error says {error}")
    held = []
    try:
        while True:
            held.append(cupy.empty(512 * MIB, dtype=cupy.uint8))
    except cupy.cuda.memory.OutOfMemoryError:
        pass
    total = runtime.memGetInfo()[1]
    expect(total - GIB - 512 * MIB <= len(held) * 512 * MIB < total,
           f"{len(held)} times 512 MiB fit into {total} bytes")
    held.clear()
    # What fitted in pieces of 512 MiB fits in larger ones: CuPy empties its pool before it gives up.
    large = cupy.empty(2 * GIB, dtype=cupy.uint8)
    expect_equal(large.nbytes, 2 * GIB, "bytes allocated after recovery")
    del large
    cupy.get_default_memory_pool().free_all_blocks()


def pool_limit():
    memory = cupy.get_default_memory_pool()
    try:
        memory.set_limit(size=GIB)
        held = cupy.empty(768 * MIB, dtype=cupy.uint8)
        try:
            cupy.empty(512 * MIB, dtype=cupy.uint8)
            raise AssertionError("the pool's own limit was passed")
        except cupy.cuda.memory.OutOfMemoryError:
            pass
        del held
    finally:
        memory.set_limit(size=0)
        memory.free_all_blocks()


@cupy.fuse()
def fused(left, right):
    return cupy.exp(left) + right


def kernels():
    data = cupy.ones((64, 1024), dtype=cupy.float32)
    cupy.sqrt(data * 2 + data)
    data.sum(axis=0)
    cupy.ElementwiseKernel("T x, T y", "T z", "z = x * y + 1", "exercise_elementwise")(data, data)
    cupy.ReductionKernel("T x", "T y", "x * x", "a + b", "y = a", "0", "exercise_reduction")(data)
    raw = cupy.RawKernel(r'extern "C" __global__ void exercise(float* x, int n) { if (n > 0) x[threadIdx.x] = n; }',
                         "compatibility")
    raw((4,), (128,), (data, numpy.int32(4)))
    expect(raw.num_regs > 0, "a kernel without registers")
    module = cupy.RawModule(code="template<typename T> __global__ void two(T* x) { x[threadIdx.x] *= 2; }",
                            name_expressions=["two<float>", "two<double>"])
    module.get_function("two<float>")((1,), (32,), (data,))
    fused(data, data)
    cupy.cuda.Device().synchronize()
    try:
        cupy.RawKernel('extern "C" __global__ void broken( {', "broken").compile()
        raise AssertionError("a kernel with an error in it was compiled")
    except cupy.cuda.compiler.CompileException as error:
        expect("error" in str(error), f"the compiler says {error}")


def libraries():
    data = cupy.ones((64, 64), dtype=cupy.float32)
    cupy.matmul(data, data)
    cupy.fft.ifft2(cupy.fft.fft2(data))
    cupy.linalg.qr(data)
    cupy.linalg.svd(data)
    cupy.random.default_rng(1).standard_normal(1000)
    cupy.random.rand(1000)
    cupy.sort(cupy.ones(1 << 16))
    cupy.cumsum(cupy.ones(1 << 16))
    cupy.cuda.Device().synchronize()


def streams():
    side = cupy.cuda.Stream(non_blocking=True)
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    source = numpy.arange(1 << 20)
    start.record()
    with side:
        there = cupy.asarray(source)
        for _ in range(20):
            cupy.sqrt(there)
        end.record(side)
    cupy.cuda.get_current_stream().wait_event(end)
    expect(numpy.array_equal(there.get(), source), "bytes that passed two streams")
    end.synchronize()
    expect(end.done, "an event that was waited for is not done")
    elapsed = cupy.cuda.get_elapsed_time(start, end)
    expect(0.04 < elapsed < 60000, f"{elapsed} ms for twenty kernels of at least 2 us")


def graph():
    source = cupy.zeros(1 << 16, dtype=cupy.int64)
    result = cupy.empty_like(source)
    square = cupy.ElementwiseKernel("int64 x", "int64 y", "y = x * x", "exercise_square")
    other = cupy.empty_like(source)
    square(source, other)  # compiled before the capture
    side = cupy.cuda.Stream(non_blocking=True)
    with side:
        side.begin_capture()
        runtime.memcpyAsync(result.data.ptr, source.data.ptr, source.nbytes,
                            runtime.memcpyDeviceToDevice, side.ptr)
        square(source, other)
        captured = side.end_capture()
    for factor in (3, 5):
        wanted = numpy.arange(1 << 16) * factor
        source.set(wanted)
        cupy.cuda.Device().synchronize()
        captured.launch(side)
        side.synchronize()
        expect(numpy.array_equal(result.get(), wanted), "what a replay copied")


def main():
    with step("device"):
        device()
    with step("memory pool, counted and given back"):
        pool()
    with step("managed memory"):
        managed()
    with step("MemoryAsyncPool"):
        stream_ordered()
    with step("copies, pinned memory"):
        copies()
    with step("out of memory, caught, and after"):
        out_of_memory()
    with step("the pool's own limit"):
        pool_limit()
    with step("elementwise, reduction, raw and fused kernels compiled by NVRTC; a broken one refused"):
        kernels()
    with step("cuBLAS, cuFFT, cuSOLVER, cuRAND, sort, scan below CuPy"):
        libraries()
    with step("streams, events, elapsed time"):
        streams()
    with step("graph captured and replayed"):
        graph()
    finish(cupy.__version__)


main()
