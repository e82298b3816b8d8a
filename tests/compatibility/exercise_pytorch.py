"""PyTorch's CUDA build: memory, copies, running out, streams, events, graphs.

With an argument (`expandable_segments:True`, `backend:cudaMallocAsync`) its allocator is set so.
"""
import gc
import os
import sys
import warnings

SETTING = sys.argv[1] if len(sys.argv) > 1 else None
if SETTING:
    os.environ["PYTORCH_ALLOC_CONF"] = SETTING
warnings.filterwarnings("ignore", message="Failed to initialize NumPy")

# pylint: disable=wrong-import-position
import torch
from exercise import GIB, MIB, TOTAL_BYTES, expect, expect_equal, finish, step

ASYNC = SETTING == "backend:cudaMallocAsync"


def mebibytes(count):
    return torch.empty(count * MIB, dtype=torch.uint8, device="cuda")


def device():
    expect(torch.cuda.is_available(), "torch.cuda.is_available() is false")
    expect_equal(torch.cuda.device_count(), 1, "devices")
    properties = torch.cuda.get_device_properties(0)
    expect_equal(properties.name, "Simulated GPU", "the device's name")
    if TOTAL_BYTES is not None:
        expect_equal(properties.total_memory, TOTAL_BYTES, "total_memory of the properties")


def memory():
    free, total = torch.cuda.mem_get_info()
    expect(0 < free < total, f"free {free} of {total}")
    if TOTAL_BYTES is not None:
        expect_equal(total, TOTAL_BYTES, "mem_get_info's total")
    held = mebibytes(256)
    torch.cuda.synchronize()
    taken = free - torch.cuda.mem_get_info()[0]
    expect(256 * MIB <= taken <= 320 * MIB, f"256 MiB took {taken} bytes of the device")
    expect_equal(torch.cuda.memory_allocated(), 256 * MIB, "memory_allocated")
    del held
    expect_equal(torch.cuda.memory_allocated(), 0, "memory_allocated after the tensor is gone")
    expect_equal(torch.cuda.max_memory_allocated(), 256 * MIB, "max_memory_allocated")


def statistics():
    tensors = [mebibytes(size) for size in (3, 40, 7)]
    stats = torch.cuda.memory_stats()
    expect_equal(stats["allocated_bytes.all.current"], torch.cuda.memory_allocated(), "memory_stats")
    expect(stats["reserved_bytes.all.current"] >= 50 * MIB, f"reserved too little: {stats}")
    if not ASYNC:
        segments = sum(segment["total_size"] for segment in torch.cuda.memory_snapshot())
        expect_equal(segments, torch.cuda.memory_reserved(), "segments of memory_snapshot")
    del tensors


def empty_cache():
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.mem_get_info()[0]
    held = mebibytes(512)
    del held
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    expect_equal(torch.cuda.memory_reserved(), 0, "memory_reserved after empty_cache")
    expect_equal(torch.cuda.mem_get_info()[0], before, "free memory after empty_cache")


def out_of_memory():
    try:
        mebibytes(1 << 25)
        raise AssertionError("32 TiB were allocated")
    except torch.OutOfMemoryError as error:
        expect("out of memory" in str(error).lower(), f"the error says {error}")
    held = []
    try:
        while True:
            held.append(mebibytes(512))
    except torch.OutOfMemoryError:
        pass
    total = torch.cuda.mem_get_info()[1]
    expect(total - GIB - 512 * MIB <= len(held) * 512 * MIB < total,
           f"{len(held)} times 512 MiB fit into {total} bytes")
    held.pop()
    held.append(mebibytes(512))  # from the cache
    held.clear()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    # What fitted in pieces of 512 MiB fits in larger ones after the cache is emptied.
    del held
    large = mebibytes(2048)
    expect_equal(large.numel(), 2 * GIB, "bytes allocated after recovery")
    del large
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def copies():
    source = torch.arange(1 << 20)
    there = source.cuda()
    expect(torch.equal(there.cpu(), source), "bytes that went to the device and back")
    expect(torch.equal(there.clone().cpu(), source), "bytes that were cloned on the device")
    expect(torch.equal(there[1000:2000].cpu(), source[1000:2000]), "bytes of a view")


def pinned():
    source = torch.arange(1 << 20).pin_memory()
    expect(source.is_pinned(), "memory is not pinned")
    there = torch.empty_like(source, device="cuda")
    back = torch.empty(1 << 20, dtype=torch.int64, pin_memory=True)
    there.copy_(source, non_blocking=True)
    back.copy_(there, non_blocking=True)
    torch.cuda.current_stream().synchronize()
    expect(torch.equal(back, source), "bytes that went by pinned memory")


def streams():
    side = torch.cuda.Stream(priority=-1)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    source = torch.arange(1 << 20).pin_memory()
    there = torch.empty(1 << 20, dtype=torch.int64, device="cuda")
    start.record()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        there.copy_(source, non_blocking=True)
        for _ in range(20):
            torch.relu(there)
        end.record()
    there.record_stream(side)
    torch.cuda.current_stream().wait_event(end)
    back = there.cpu()
    expect(torch.equal(back, source), "bytes that passed two streams")
    expect(end.query(), "an event that was waited for is not done")
    elapsed = start.elapsed_time(end)
    expect(0.05 < elapsed < 60000, f"{elapsed} ms for twenty kernels of at least 2 us and a copy of 8 MiB")


def graph():
    source = torch.zeros(1 << 16, dtype=torch.int64, device="cuda")
    result = torch.empty_like(source)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # warm up, as the documentation asks
        result.copy_(source)
        torch.relu(source)
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        between = source.clone()
        torch.relu(between)
        result.copy_(between)
    for factor in (3, 5):
        wanted = torch.arange(1 << 16) * factor
        source.copy_(wanted)
        captured.replay()
        expect(torch.equal(result.cpu(), wanted), "what a replay computed from new bytes")
    captured.reset()


def main():
    with step("device"):
        device()
    with step("mem_get_info, memory_allocated"):
        memory()
    with step("memory_stats"):
        statistics()
    with step("empty_cache"):
        empty_cache()
    with step("copies"):
        copies()
    with step("pinned memory"):
        pinned()
    with step("out of memory, caught, and after"):
        out_of_memory()
    with step("streams, events, elapsed time"):
        streams()
    with step("graph captured and replayed"):
        graph()
    finish(torch.__version__)


main()
