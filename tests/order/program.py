"""A program whose result tells the order of what it did on the device: program.py SCENARIO.

Prints one JSON object: what is the same whatever the times ("order"), and numbers that may differ a
little ("overlap", "device_us": by the stamps of its kernels, and how much of it ran at once).
It calls the driver's library by ctypes, as any program could.
"""
import ctypes
import json
import pathlib
import sys
import time

NOT_READY = 600
NON_BLOCKING = 1
MODES = {"global": 0, "thread-local": 1, "relaxed": 2}
U64, PTR = ctypes.c_uint64, ctypes.c_void_p
CUDA = ctypes.CDLL("libcuda.so.1")
IMAGE = pathlib.Path(sys.argv[2])
UNIT_NS = 2_000_000


def call(name, *arguments, allowed=()):
    result = getattr(CUDA, name)(*arguments)
    if result != 0 and result not in allowed:
        raise SystemExit(f"{name} answered {result}")
    return result


def made(name, *arguments, kind=PTR):
    out = kind()
    call(name, ctypes.byref(out), *arguments)
    return out


class Context:
    """A context with its kernels and words."""

    def __init__(self, device=0):
        self.handle = made("cuCtxCreate_v2", 0, device)
        self.module = made("cuModuleLoad", str(IMAGE).encode())
        self.step_kernel = made("cuModuleGetFunction", self.module, b"step")
        self.stamp_kernel = made("cuModuleGetFunction", self.module, b"stamp")

    def alloc(self, words):
        memory = made("cuMemAlloc_v2", ctypes.c_size_t(8 * words), kind=U64)
        call("cuMemsetD8_v2", memory, 0, ctypes.c_size_t(8 * words))
        return memory.value

    def stream(self):
        return made("cuStreamCreate", NON_BLOCKING)

    def _launch(self, kernel, stream, *values):
        held = [U64(value) for value in values]
        params = (PTR * len(held))(*[ctypes.cast(ctypes.byref(v), PTR) for v in held])
        call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, None)

    def step(self, stream, word, times, plus, ns=UNIT_NS):
        self._launch(self.step_kernel, stream, word, times, plus, ns)

    def stamp(self, stream, out, ns=UNIT_NS):
        self._launch(self.stamp_kernel, stream, out, ns)


def words(address, count):
    out = (U64 * count)()
    call("cuMemcpyDtoH_v2", out, U64(address), ctypes.c_size_t(8 * count))
    return list(out)


def overlap(address, count):
    """How much of the kernels' time ran beside another one of them."""
    stamps = words(address, 2 * count)
    spans = sorted(zip(stamps[::2], stamps[1::2]))
    together, union, end = sum(b - a for a, b in spans), 0, 0
    for a, b in spans:
        union += max(0, b - max(a, end))
        end = max(end, b)
    return {"overlap": round(1 - union / together, 4), "device_us": union / 1000}


def streams(ctx):
    """Four streams with kernels, joined by events into one."""
    all_streams = [ctx.stream() for _ in range(4)]
    word, stamps = ctx.alloc(1), ctx.alloc(2 * 40)
    for i in range(40):
        ctx.stamp(all_streams[i % 4], stamps + 16 * i)
    for i, stream in enumerate(all_streams):
        ctx.step(stream, word, 3, i + 1)
        event = made("cuEventCreate", 0)
        call("cuEventRecord", event, stream)
        call("cuStreamWaitEvent", all_streams[(i + 1) % 4], event, 0)
    ctx.step(all_streams[0], word, 7, 5)
    call("cuCtxSynchronize")
    return {"order": words(word, 1), **overlap(stamps, 40)}


def capture(ctx, mode):
    """A graph captured over two streams and launched between kernels; what was captured did not run."""
    first, second, other = ctx.stream(), ctx.stream(), ctx.stream()
    word, stamps = ctx.alloc(1), ctx.alloc(2 * 16)
    ctx.step(first, word, 1, 9)
    call("cuStreamSynchronize", first)
    fork, join = made("cuEventCreate", 2), made("cuEventCreate", 2)
    call("cuStreamBeginCapture_v2", first, MODES[mode])
    ctx.step(first, word, 2, 1)
    call("cuEventRecord", fork, first)
    call("cuStreamWaitEvent", second, fork, 0)
    for i in range(8):
        ctx.stamp((first, second)[i % 2], stamps + 16 * i)
    ctx.step(other, word, 5, 3)  # beside the capture, at once
    call("cuEventRecord", join, second)
    call("cuStreamWaitEvent", first, join, 0)
    call("cuMemsetD8Async", U64(stamps + 8 * 31), 7, ctypes.c_size_t(8), first)
    ctx.step(first, word, 3, 2)
    graph = made_graph(first)
    call("cuStreamSynchronize", other)
    before = words(word, 1)
    executable = PTR()
    call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, U64(0))
    for _ in range(3):
        call("cuGraphLaunch", executable, first)
        ctx.step(first, word, 1, 1)
    call("cuStreamSynchronize", first)
    return {"order": before + words(word, 1) + words(stamps + 8 * 31, 1), **overlap(stamps, 8)}


def made_graph(stream):
    graph = PTR()
    call("cuStreamEndCapture", stream, ctypes.byref(graph))
    return graph


def wait_value(ctx):
    """More work than any backlog bound behind a word that the program writes last of all."""
    gated, free = ctx.stream(), ctx.stream()
    flag, word, stamps = ctx.alloc(1), ctx.alloc(1), ctx.alloc(2 * 60)
    call("cuStreamWaitValue32_v2", gated, U64(flag), 1, 0)
    for i in range(30):
        ctx.stamp(gated, stamps + 16 * i)
        ctx.step(gated, word, 1, 1, 1000)
    for i in range(30, 60):
        ctx.stamp(free, stamps + 16 * i)
    ctx.step(free, word, 0, 1000, 1000)
    call("cuStreamSynchronize", free)
    before = words(word, 1)
    time.sleep(0.2)  # time in which the device is nobody's
    call("cuStreamWriteValue32_v2", free, U64(flag), 1, 0)
    call("cuCtxSynchronize")
    return {"order": before + words(word, 1), **overlap(stamps, 60)}


def self_release(ctx):
    """Launches behind a wait that the same thread ends after the last of them."""
    number, kernel_us = int(sys.argv[3]), int(sys.argv[4])
    stream = ctx.stream()
    word = ctx.alloc(1)
    host = made("cuMemHostAlloc", ctypes.c_size_t(4096), 0)
    flag = ctypes.c_uint32.from_address(host.value)
    for turn in range(1, 4):
        flag.value = 0
        call("cuStreamWaitValue32_v2", stream, U64(host.value), 1, 0)
        for _ in range(number):
            ctx.step(stream, word, 1, turn, 1000 * kernel_us)
        flag.value = 1
        call("cuStreamSynchronize", stream)
    return {"order": words(word, 1)}


def host_function(ctx):
    """A host function that the streams wait for, and work behind it."""
    stream, done = ctx.stream(), []
    word, stamps = ctx.alloc(1), ctx.alloc(2 * 20)
    callback = ctypes.CFUNCTYPE(None, PTR)(lambda _: (time.sleep(0.1), done.append(1)) and None)
    for i in range(20):
        ctx.stamp(stream, stamps + 16 * i)
        ctx.step(stream, word, 2, i, 1000)
        if i == 5:
            call("cuLaunchHostFunc", stream, callback, None)
    call("cuStreamSynchronize", stream)
    return {"order": words(word, 1) + done, **overlap(stamps, 20)}


def polling(ctx):
    """A program that waits by asking."""
    stream, event = ctx.stream(), made("cuEventCreate", 0)
    word, stamps = ctx.alloc(1), ctx.alloc(2 * 20)
    for i in range(20):
        ctx.stamp(stream, stamps + 16 * i)
        ctx.step(stream, word, 2, i, 1000)
        call("cuEventRecord", event, stream)
        name, what = ("cuEventQuery", event) if i % 2 else ("cuStreamQuery", stream)
        while call(name, what, allowed=(NOT_READY,)) == NOT_READY:
            pass
    return {"order": words(word, 1), **overlap(stamps, 20)}


def copies(ctx):
    """Copies and fills on the device among kernels."""
    stream, size = ctx.stream(), 256 << 10
    word, stamps = ctx.alloc(1), ctx.alloc(2)
    a, b = (made("cuMemAlloc_v2", ctypes.c_size_t(size), kind=U64) for _ in range(2))
    for i in range(20):
        call("cuMemsetD32Async", a, i, ctypes.c_size_t(size // 4), stream)
        call("cuMemcpyDtoDAsync_v2", b, a, ctypes.c_size_t(size), stream)
        call("cuMemcpyAsync", a, b, ctypes.c_size_t(size), stream)
        ctx.step(stream, word, 2, i, 1000)
    ctx.stamp(stream, stamps)
    call("cuStreamSynchronize", stream)
    return {"order": words(word, 1) + [words(b.value, 1)[0] & 0xffffffff], **overlap(stamps, 1)}


SIDE = [("X", ctypes.c_size_t), ("Y", ctypes.c_size_t)]
END = [("Type", ctypes.c_int), ("Host", PTR), ("Device", U64), ("Array", PTR)]
DEVICE, ARRAY = 2, 3  # CUmemorytype


def named(side, fields):
    return [(side + name, kind) for name, kind in fields]


class Box2D(ctypes.Structure):
    """CUDA_MEMCPY2D."""
    _fields_ = [*named("src", [*SIDE, *END, ("Pitch", ctypes.c_size_t)]),
                *named("dst", [*SIDE, *END, ("Pitch", ctypes.c_size_t)]),
                ("width", ctypes.c_size_t), ("height", ctypes.c_size_t)]


class Box3D(ctypes.Structure):
    """CUDA_MEMCPY3D, and CUDA_MEMCPY3D_PEER, whose contexts stand where the other has a reserve."""
    _SIDE = [*SIDE, ("Z", ctypes.c_size_t), ("Lod", ctypes.c_size_t), *END, ("Context", PTR),
             ("Pitch", ctypes.c_size_t), ("Height", ctypes.c_size_t)]
    _fields_ = [*named("src", _SIDE), *named("dst", _SIDE),
                ("width", ctypes.c_size_t), ("height", ctypes.c_size_t), ("depth", ctypes.c_size_t)]


class ArrayShape(ctypes.Structure):
    """CUDA_ARRAY_DESCRIPTOR."""
    _fields_ = [("width", ctypes.c_size_t), ("height", ctypes.c_size_t), ("format", ctypes.c_int),
                ("channels", ctypes.c_uint)]


class CopyAttributes(ctypes.Structure):
    """CUmemcpyAttributes."""
    _fields_ = [("order", ctypes.c_int), ("src_hint", ctypes.c_int * 2),
                ("dst_hint", ctypes.c_int * 2), ("flags", ctypes.c_uint)]


def boxes(ctx):
    """Every other form of copy and fill on the device: boxes, arrays, pitched fills, batches."""
    stream, rows, pitch = ctx.stream(), 64, 4096
    size = rows * pitch
    word, stamps = ctx.alloc(1), ctx.alloc(2)
    a, b, c = (made("cuMemAlloc_v2", ctypes.c_size_t(size), kind=U64) for _ in range(3))
    array = made("cuArrayCreate_v2", ctypes.byref(ArrayShape(pitch // 4, rows, 0x03, 1)))
    flat = made("cuArrayCreate_v2", ctypes.byref(ArrayShape(size // 256, 0, 0x03, 1)))
    two = Box2D(srcType=DEVICE, srcDevice=a.value, srcPitch=pitch, dstType=DEVICE,
                dstDevice=b.value, dstPitch=pitch, width=pitch, height=rows)
    to_array = Box2D(srcType=DEVICE, srcDevice=b.value, srcPitch=pitch, dstType=ARRAY,
                     dstArray=array, width=pitch, height=rows)
    three = Box3D(srcType=ARRAY, srcArray=array, dstType=DEVICE, dstDevice=c.value, dstPitch=pitch,
                  dstHeight=rows, width=pitch, height=rows, depth=1)
    dsts, srcs, sizes = (U64 * 2)(a.value, a.value + size // 2), (U64 * 2)(
        c.value + size // 2, c.value), (ctypes.c_size_t * 2)(size // 2, size // 2)
    attributes, which = CopyAttributes(order=1), (ctypes.c_size_t * 1)(0)
    for i in range(8):
        call("cuMemsetD2D32Async", a, ctypes.c_size_t(pitch), i + 1, ctypes.c_size_t(pitch // 8),
             ctypes.c_size_t(rows), stream)
        call("cuMemcpy2DAsync_v2", ctypes.byref(two), stream)
        call("cuMemcpy2DAsync_v2", ctypes.byref(to_array), stream)
        call("cuMemcpy3DAsync_v2", ctypes.byref(three), stream)
        call("cuMemcpyBatchAsync_v2", dsts, srcs, sizes, ctypes.c_size_t(2),
             ctypes.byref(attributes), which, ctypes.c_size_t(1), stream)
        ctx.step(stream, word, 2, i, 1000)
        call("cuStreamSynchronize", stream)
        # These wait for the legacy stream by themselves.
        call("cuMemcpyDtoA_v2", flat, ctypes.c_size_t(0), a, ctypes.c_size_t(size // 64))
        call("cuMemcpyAtoD_v2", b, flat, ctypes.c_size_t(0), ctypes.c_size_t(size // 64))
    ctx.stamp(stream, stamps)
    call("cuStreamSynchronize", stream)
    return {"order": words(word, 1) + words(a.value, 2) + words(b.value + 8, 1)
            + words(c.value + size - pitch, 1), **overlap(stamps, 1)}


def peers(first):
    """Copies between two devices among kernels on both: a copy is on neither device's time."""
    second, size = Context(1), 256 << 10
    call("cuCtxPushCurrent_v2", first.handle)
    mine, word, stamps = first.stream(), first.alloc(1), first.alloc(2)
    here = made("cuMemAlloc_v2", ctypes.c_size_t(size), kind=U64)
    call("cuCtxPopCurrent_v2", ctypes.byref(PTR()))
    there = made("cuMemAlloc_v2", ctypes.c_size_t(size), kind=U64)
    other, far = second.stream(), second.alloc(1)
    box = Box3D(srcType=DEVICE, srcDevice=there.value, srcContext=second.handle, srcPitch=4096,
                dstType=DEVICE, dstDevice=here.value, dstContext=first.handle, dstPitch=4096,
                width=4096, height=size // 4096, depth=1)
    for i in range(8):
        call("cuMemsetD32Async", there, i, ctypes.c_size_t(size // 4), other)
        second.step(other, far, 2, i, 1000)
        call("cuStreamSynchronize", other)
        call("cuCtxPushCurrent_v2", first.handle)
        call("cuMemcpyPeerAsync", here, first.handle, there, second.handle,
             ctypes.c_size_t(size // 2), mine)
        call("cuMemcpy3DPeerAsync", ctypes.byref(box), mine)
        first.step(mine, word, 2, i, 1000)
        call("cuStreamSynchronize", mine)
        call("cuCtxPopCurrent_v2", ctypes.byref(PTR()))
    call("cuCtxPushCurrent_v2", first.handle)
    first.stamp(mine, stamps)
    call("cuStreamSynchronize", mine)
    result = {"order": words(word, 1) + words(here.value + size - 8, 1), **overlap(stamps, 1)}
    call("cuCtxPopCurrent_v2", ctypes.byref(PTR()))
    return {**result, "order": result["order"] + words(far, 1)}


def contexts(first):
    """Two contexts; copies into the stream of the one that is not current."""
    mine, word, stamps = first.stream(), first.alloc(2), first.alloc(2 * 10)
    second = Context()
    other, there = second.stream(), second.alloc(1)
    for i in range(10):
        second.step(other, there, 2, i)
        call("cuMemcpyDtoDAsync_v2", U64(word), U64(there), ctypes.c_size_t(8), other)
        call("cuMemsetD8Async", U64(word + 8), i, ctypes.c_size_t(8), mine)
        call("cuCtxPushCurrent_v2", first.handle)
        first.stamp(mine, stamps + 16 * i)
        call("cuCtxPopCurrent_v2", ctypes.byref(PTR()))
    call("cuStreamSynchronize", other)
    call("cuStreamSynchronize", mine)
    return {"order": words(word, 2) + words(there, 1), **overlap(stamps, 10)}


SCENARIOS = {"streams": streams, "wait-value": wait_value, "self-release": self_release,
             "host-function": host_function, "polling": polling, "copies": copies, "boxes": boxes, "peers": peers,
             "contexts": contexts,
             **{f"capture-{mode}": lambda ctx, mode=mode: capture(ctx, mode) for mode in MODES}}


def main():
    call("cuInit", 0)
    print(json.dumps(SCENARIOS[sys.argv[1]](Context())), flush=True)
    if "--stay" in sys.argv:
        sys.stdin.read()  # it lives until it was looked at


if __name__ == "__main__":
    main()
