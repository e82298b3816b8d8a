"""Numba (numba-cuda): memory, copies, running out, kernels compiled from Python, streams, events. Nothing
is computed, so only bytes that were copied are looked at.
"""
import importlib.metadata
import math
import warnings

import numpy
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError
from numba.cuda.core.errors import NumbaPerformanceWarning
from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_uniform_float32
from exercise import GIB, MIB, TOTAL_BYTES, expect, expect_equal, finish, step

# pylint: disable=no-value-for-parameter
warnings.simplefilter("ignore", NumbaPerformanceWarning)  # of small grids


@cuda.jit
def scale(data, factor):
    at = cuda.grid(1)
    if at < data.size:
        data[at] *= factor


@cuda.jit
def shared_sum(data, out):
    part = cuda.shared.array(128, numpy.float32)
    at = cuda.threadIdx.x
    part[at] = data[at]
    cuda.syncthreads()
    cuda.atomic.add(out, 0, math.sqrt(part[at]))


@cuda.jit
def noise(states, out):
    at = cuda.grid(1)
    if at < out.size:
        out[at] = xoroshiro128p_uniform_float32(states, at)


@cuda.jit
def together(data):
    cuda.cg.this_grid().sync()
    data[cuda.grid(1)] = 1


@cuda.vectorize(["float32(float32, float32)"])
def multiply(left, right):
    return left * right


def bytes_of(count):
    return cuda.device_array(count, numpy.uint8)


def free_bytes():
    cuda.synchronize()
    cuda.current_context().memory_manager.deallocations.clear()  # what is freed waits in a list
    return cuda.current_context().get_memory_info().free


def device():
    found = cuda.get_current_device()
    expect_equal(found.name, b"Simulated GPU" if isinstance(found.name, bytes) else "Simulated GPU",
                 "the device's name")
    expect_equal(tuple(found.compute_capability), (9, 0), "compute capability")
    expect_equal(len(cuda.gpus), 1, "devices")
    info = cuda.current_context().get_memory_info()
    expect(0 < info.free < info.total, f"free {info.free} of {info.total}")
    if TOTAL_BYTES is not None:
        expect_equal(info.total, TOTAL_BYTES, "get_memory_info's total")


def memory():
    before = free_bytes()
    held = bytes_of(256 * MIB)
    taken = before - free_bytes()
    expect_equal(taken, 256 * MIB, "bytes that an array of 256 MiB took of the device")
    del held
    expect_equal(free_bytes(), before, "free memory after the array is gone")


def copies():
    source = numpy.arange(1 << 20)
    there = cuda.to_device(source)
    expect(numpy.array_equal(there.copy_to_host(), source), "bytes that went to the device and back")
    other = cuda.device_array_like(there)
    other.copy_to_device(there)
    expect(numpy.array_equal(other.copy_to_host(), source), "bytes that were copied on the device")
    expect(numpy.array_equal(there[1000:2000].copy_to_host(), source[1000:2000]), "bytes of a view")
    pinned = cuda.pinned_array_like(source)
    stream = cuda.stream()
    there.copy_to_host(pinned, stream)
    stream.synchronize()
    expect(numpy.array_equal(pinned, source), "bytes that came back to pinned memory")
    for host in (cuda.mapped_array(1 << 10, numpy.int64), cuda.managed_array(1 << 10, numpy.int64)):
        host[:] = source[:1 << 10]
        scale[8, 128](host, 1)
        cuda.synchronize()
        expect(numpy.array_equal(host, source[:1 << 10]), "bytes of memory that host and device see")
    with cuda.pinned(source):
        expect(numpy.array_equal(cuda.to_device(source).copy_to_host(), source), "bytes of registered memory")


def out_of_memory():
    try:
        bytes_of(1 << 45)
        raise AssertionError("32 TiB were allocated")
    except CudaAPIError as error:
        expect("CUDA_ERROR_OUT_OF_MEMORY" in str(error), f"the error says {error}")
    held = []
    try:
        while True:
            held.append(bytes_of(512 * MIB))
    except CudaAPIError as error:
        expect("CUDA_ERROR_OUT_OF_MEMORY" in str(error), f"the error says {error}")
    total = cuda.current_context().get_memory_info().total
    expect(total - GIB - 512 * MIB <= len(held) * 512 * MIB < total,
           f"{len(held)} times 512 MiB fit into {total} bytes")
    held.clear()
    # What is freed waits in a list, which Numba empties before it gives up.
    large = bytes_of(2 * GIB)
    expect_equal(large.nbytes, 2 * GIB, "bytes allocated after recovery")


def kernels():
    data = cuda.to_device(numpy.ones(1 << 16, numpy.float32))
    out = cuda.to_device(numpy.zeros(1, numpy.float32))
    scale[64, 256](data, numpy.float32(2))
    scale.forall(data.size)(data, numpy.float32(3))
    shared_sum[1, 128](data, out)
    states = create_xoroshiro128p_states(256, seed=1)
    noise[2, 128](states, cuda.device_array(256, numpy.float32))
    together[4, 64](data)
    add = cuda.reduce(lambda left, right: left + right)
    add(data)
    multiply(data, data)
    cuda.synchronize()
    expect(min(scale.get_regs_per_thread().values()) > 0, "a kernel without registers")
    expect(all(".visible .entry" in text for text in scale.inspect_asm().values()), "no PTX of a kernel")


def streams():
    side = cuda.stream()
    start, end = cuda.event(), cuda.event()
    source = cuda.pinned_array(1 << 20, numpy.int64)
    source[:] = numpy.arange(1 << 20)
    scratch = cuda.device_array(1 << 16, numpy.float32)
    scale[64, 256, side](scratch, numpy.float32(2))  # compiled before it is timed
    start.record(side)
    there = cuda.to_device(source, stream=side)
    for _ in range(20):
        scale[64, 256, side](scratch, numpy.float32(2))
    end.record(side)
    other = cuda.stream()
    end.wait(other)
    back = there.copy_to_host(stream=other)
    other.synchronize()
    expect(numpy.array_equal(back, source), "bytes that passed two streams")
    expect(end.query(), "an event that was waited for is not done")
    elapsed = start.elapsed_time(end)
    expect(0.1 < elapsed < 60000, f"{elapsed} ms for twenty kernels of at least 5 us and a copy of 8 MiB")


def main():
    with step("device"):
        device()
    with step("memory, counted and given back"):
        memory()
    with step("copies; pinned, registered, mapped and managed memory"):
        copies()
    with step("out of memory, caught, and after"):
        out_of_memory()
    with step("kernels compiled from Python: shared memory, random numbers, cooperative, reduce, vectorize"):
        kernels()
    with step("streams, events, elapsed time"):
        streams()
    finish(importlib.metadata.version("numba-cuda"))


main()
