"""cudart 11.8, 12 or 13: everything that a program does before and around its kernels."""
import sys
import threading

from exercise import *  # pylint: disable=wildcard-import,unused-wildcard-import

FloatArray = ctypes.c_float * 1024
BYTES = ctypes.sizeof(FloatArray)
HOST_FUNCTION = ctypes.CFUNCTYPE(None, c_void_p)

rt = Runtime()


def attribute(number):
    value = c_int()
    rt.call("cudaDeviceGetAttribute", byref(value), number, 0)
    return value.value


def devices():
    count = c_int()
    rt.call("cudaGetDeviceCount", byref(count))
    expect_equal(count.value, 1, "devices")
    driver = c_int()
    rt.call("cudaDriverGetVersion", byref(driver))
    expect(driver.value // 1000 >= MAJOR, f"the driver says {driver.value}")


def properties():
    # cudaDeviceProp grows; name, memory and capability have stayed where they are since 11.0.
    memory = ctypes.create_string_buffer(8192)
    name = "cudaGetDeviceProperties" + ("_v2" if MAJOR == 12 else "")
    rt.call(name, memory, 0)
    expect(memory.value.startswith(b"Simulated GPU"), f"the name {memory.value!r}")
    total = c_size_t.from_buffer(memory, 288).value
    if TOTAL_BYTES is not None:
        expect_equal(total, TOTAL_BYTES, "totalGlobalMem")
    major, minor = c_int.from_buffer(memory, 360).value, c_int.from_buffer(memory, 364).value
    expect_equal((major, minor), (attribute(75), attribute(76)), "the compute capability")
    expect(attribute(16) > 0, "no multiprocessors")


def copies():
    free_before, _ = rt.memory()
    source = FloatArray(*range(1024))
    a = rt.malloc(64 * MIB)
    free_after, _ = rt.memory()
    expect_equal(free_before - free_after, 64 * MIB, "what an allocation of 64 MiB took")
    b = rt.malloc(BYTES)
    rt.call("cudaMemset", a, 0, c_size_t(64 * MIB))
    rt.call("cudaMemcpy", a, source, c_size_t(BYTES), rt.H2D)
    rt.call("cudaMemcpy", b, a, c_size_t(BYTES), rt.D2D)
    expect_equal(list(rt.download(b, FloatArray)), list(source), "bytes copied by the device")
    rt.call("cudaMemset2D", b, c_size_t(64), 0, c_size_t(16), c_size_t(4))
    back = list(rt.download(b, FloatArray))
    expect_equal(back[0:6] + back[16:22], [0, 0, 0, 0, 4, 5] * 1 + [0, 0, 0, 0, 20, 21],
                 "bytes set in rows")
    rt.free(b)
    rt.free(a)


def out_of_memory():
    pointer = c_void_p()
    rt.refuses(rt.MALLOC_ERROR, "cudaMalloc", byref(pointer), c_size_t(1 << 45))
    expect_equal(rt.result("cudaGetLastError"), rt.MALLOC_ERROR, "the error that is kept")
    expect_equal(rt.result("cudaGetLastError"), 0, "the error after it was read")
    rt.free(rt.malloc(MIB))


def pinned():
    pinned_memory, device_view = c_void_p(), c_void_p()
    rt.call("cudaHostAlloc", byref(pinned_memory), c_size_t(MIB), 2)  # mapped
    rt.call("cudaHostGetDevicePointer", byref(device_view), pinned_memory, 0)
    expect(device_view.value, "no device address for pinned memory")
    rt.call("cudaFreeHost", pinned_memory)
    own = ctypes.create_string_buffer(MIB)
    rt.call("cudaHostRegister", own, c_size_t(MIB), 0)
    rt.call("cudaHostUnregister", own)
    managed = c_void_p()
    rt.call("cudaMallocManaged", byref(managed), c_size_t(MIB), 1)
    ctypes.memset(managed, 7, MIB)
    expect_equal(rt.download(managed, ctypes.c_ubyte * 4)[3], 7, "a managed byte")
    rt.free(managed)


def pointer_attributes():
    unregistered, host, device, managed = range(4)
    pinned_memory, managed_memory = c_void_p(), c_void_p()
    rt.call("cudaMallocHost", byref(pinned_memory), c_size_t(MIB))
    rt.call("cudaMallocManaged", byref(managed_memory), c_size_t(MIB), 1)
    device_memory, own = rt.malloc(MIB), ctypes.create_string_buffer(MIB)
    for pointer, wanted in ((pinned_memory, host), (managed_memory, managed), (device_memory, device),
                            (ctypes.cast(own, c_void_p), unregistered)):
        for offset in (0, 100):
            found = (c_int * 64)(*[-1] * 64)
            rt.call("cudaPointerGetAttributes", found, c_void_p(pointer.value + offset))
            expect_equal(found[0], wanted, "the type of memory")
    rt.call("cudaFreeHost", pinned_memory)
    rt.free(managed_memory)
    rt.free(device_memory)


def streams_and_events():
    low, high = c_int(), c_int()
    rt.call("cudaDeviceGetStreamPriorityRange", byref(low), byref(high))
    first, second = c_void_p(), c_void_p()
    rt.call("cudaStreamCreate", byref(first))
    rt.call("cudaStreamCreateWithPriority", byref(second), 1, high.value)
    start, end = c_void_p(), c_void_p()
    rt.call("cudaEventCreate", byref(start))
    rt.call("cudaEventCreateWithFlags", byref(end), 0)
    data = rt.malloc(MIB)
    rt.call("cudaEventRecord", start, first)
    rt.call("cudaMemsetAsync", data, 3, c_size_t(MIB), first)
    rt.call("cudaEventRecord", end, first)
    rt.call("cudaStreamWaitEvent", second, end, 0)
    back = (ctypes.c_ubyte * MIB)()
    rt.call("cudaMemcpyAsync", back, data, c_size_t(MIB), rt.D2H, second)
    rt.call("cudaStreamSynchronize", second)
    expect_equal((back[0], back[MIB - 1]), (3, 3), "bytes that passed two streams")
    expect_equal(rt.result("cudaStreamQuery", first), 0, "the first stream's state")
    milliseconds = c_float()
    rt.call("cudaEventElapsedTime", byref(milliseconds), start, end)
    expect(0 < milliseconds.value < 10000, f"{milliseconds.value} ms passed between the events")
    for event in (start, end):
        rt.call("cudaEventDestroy", event)
    for stream in (first, second):
        rt.call("cudaStreamDestroy", stream)
    rt.free(data)


def pool():
    stream = rt.stream()
    the_pool, value = c_void_p(), ctypes.c_uint64()
    rt.call("cudaDeviceGetDefaultMemPool", byref(the_pool), 0)
    pointer = c_void_p()
    rt.call("cudaMallocAsync", byref(pointer), c_size_t(8 * MIB), stream)
    rt.call("cudaMemPoolGetAttribute", the_pool, 7, byref(value))  # used now
    expect_equal(value.value, 8 * MIB, "what the pool has handed out")
    rt.call("cudaFreeAsync", pointer, stream)
    rt.call("cudaStreamSynchronize", stream)
    rt.call("cudaMemPoolTrimTo", the_pool, c_size_t(0))
    rt.call("cudaMemPoolGetAttribute", the_pool, 5, byref(value))  # reserved now
    expect_equal(value.value, 0, "what the pool keeps after a trim")
    rt.call("cudaStreamDestroy", stream)


def host_function():
    stream = rt.stream()
    called = threading.Event()
    function = HOST_FUNCTION(lambda user: called.set() if user == 42 else None)
    rt.call("cudaLaunchHostFunc", stream, function, c_void_p(42))
    rt.call("cudaStreamSynchronize", stream)
    expect(called.is_set(), "the host function did not run before its stream was done")
    rt.call("cudaStreamDestroy", stream)


def registered_kernel(image):
    """As the start of a program compiled by nvcc does it; returns the handle that launches take."""
    class Wrapper(ctypes.Structure):
        _fields_ = [("magic", c_int), ("version", c_int), ("image", c_void_p), ("more", c_void_p)]
    kept = ctypes.create_string_buffer(image, len(image) + 16)
    wrapper = Wrapper(0x466243B1, 1, ctypes.cast(kept, c_void_p), None)
    host_side = ctypes.create_string_buffer(16)
    rt.raw.__cudaRegisterFatBinary.restype = c_void_p
    handle = c_void_p(rt.raw.__cudaRegisterFatBinary(byref(wrapper)))
    rt.raw.__cudaRegisterFunction(handle, host_side, b"exercise_scale", b"exercise_scale", -1, None, None, None,
                                  None, None)
    rt.raw.__cudaRegisterVar(handle, byref(host_side, 8), b"exercise_counter", b"exercise_counter", 0,
                             c_size_t(4), 0, 0)
    if hasattr(rt.raw, "__cudaRegisterFatBinaryEnd"):
        rt.raw.__cudaRegisterFatBinaryEnd(handle)
    return host_side, (kept, wrapper, handle)


def launch(kernel, data, stream):
    values = (data, c_float(2.0), c_int(1024))
    arguments = (c_void_p * 3)(*[ctypes.addressof(value) for value in values])
    rt.call("cudaLaunchKernel", kernel, Dim3(4, 1, 1), Dim3(256, 1, 1), arguments, c_size_t(0), stream)


def kernel_of_nvcc(kernel):
    attributes = ctypes.create_string_buffer(512)
    rt.call("cudaFuncGetAttributes", attributes, kernel)
    blocks = c_int()
    rt.call("cudaOccupancyMaxActiveBlocksPerMultiprocessor", byref(blocks), kernel, 256, c_size_t(0))
    expect(blocks.value > 0, "no block of the kernel fits")
    data, stream = rt.malloc(BYTES), rt.stream()
    for _ in range(10):
        launch(kernel, data, stream)
    rt.call("cudaStreamSynchronize", stream)
    counter, address, size = c_int(5), c_void_p(), c_size_t()
    symbol = c_void_p(ctypes.addressof(kernel) + 8)
    rt.call("cudaMemcpyToSymbol", symbol, byref(counter), c_size_t(4), c_size_t(0), rt.H2D)
    rt.call("cudaGetSymbolAddress", byref(address), symbol)
    rt.call("cudaGetSymbolSize", byref(size), symbol)
    expect_equal(size.value, 4, "the size of a __device__ variable")
    expect_equal(rt.download(address, c_int * 1)[0], 5, "a __device__ variable")
    rt.call("cudaStreamDestroy", stream)
    rt.free(data)


def graph(kernel):
    stream = rt.stream()
    source, result = c_void_p(), c_void_p()
    for pointer in (source, result):
        rt.call("cudaMallocHost", byref(pointer), c_size_t(BYTES))
    view = ctypes.cast(source, ctypes.POINTER(c_float))
    data = rt.malloc(BYTES)
    captured, executable, nodes = c_void_p(), c_void_p(), c_size_t()
    rt.call("cudaStreamBeginCapture", stream, 0)
    rt.call("cudaMemcpyAsync", data, source, c_size_t(BYTES), rt.H2D, stream)
    launch(kernel, data, stream)
    rt.call("cudaMemcpyAsync", result, data, c_size_t(BYTES), rt.D2H, stream)
    rt.call("cudaStreamEndCapture", stream, byref(captured))
    rt.call("cudaGraphGetNodes", captured, None, byref(nodes))
    expect_equal(nodes.value, 3, "nodes captured")
    rt.call("cudaGraphInstantiateWithFlags", byref(executable), captured, ctypes.c_ulonglong(0))
    for value in (1.5, 2.5):  # each replay copies what is there then
        view[7] = value
        rt.call("cudaGraphLaunch", executable, stream)
        rt.call("cudaStreamSynchronize", stream)
        expect_equal(ctypes.cast(result, ctypes.POINTER(c_float))[7], value, "what a replay copied")
    rt.call("cudaGraphExecDestroy", executable)
    rt.call("cudaGraphDestroy", captured)
    rt.call("cudaStreamDestroy", stream)
    for pointer in (source, result):
        rt.call("cudaFreeHost", pointer)
    rt.free(data)


def main():
    with step("version"):
        version = rt.version()
        expect_equal(version // 1000, MAJOR, "the major version")
    with step("devices"):
        devices()
    with step("properties"):
        properties()
    with step("memory"):
        rt.expect_share()
    with step("malloc, memset, copies"):
        copies()
    with step("out of memory and after"):
        out_of_memory()
    with step("pinned, registered and managed memory"):
        pinned()
    with step("pointer attributes"):
        pointer_attributes()
    with step("streams, events, elapsed time"):
        streams_and_events()
    with step("pool"):
        pool()
    with step("host function"):
        host_function()
    if len(sys.argv) > 1:
        with step("kernel and variable compiled by nvcc"):
            with open(sys.argv[1], "rb") as file:
                kernel, _kept = registered_kernel(file.read())
            kernel_of_nvcc(kernel)
        with step("graph captured and replayed"):
            graph(kernel)
    with step("reset and start again"):
        rt.call("cudaDeviceReset")
        rt.free(rt.malloc(MIB))
    finish(f"{version // 1000}.{version % 1000 // 10}")


main()
