"""generated/device_work.inc: overrides of the calls that copy, fill or wait in a stream.

Each says what it is to the device (src/client/device_work.h), and calls the driver.
"""

import re

ELEMENT = {"D8": 1, "D16": 2, "D32": 4}
# What a base function does, in the names of its arguments; the order matters.
COPIES = (
    (r"cuMemcpy(HtoD|DtoH|HtoA|AtoH)(Async)?", "HostCopy(ByteCount)"),
    (r"cuMemcpyDtoD(Async)?", "Copy(dstDevice, srcDevice, ByteCount)"),
    (r"cuMemcpy(Async)?", "Copy(dst, src, ByteCount)"),
    (r"cuMemcpy(AtoA|AtoD|DtoA)", "DeviceCopy(ByteCount)"),
    (r"cuMemcpyPeer(Async)?", "PeerCopy(dstContext, srcContext, ByteCount)"),
    (r"cuMemcpy3DPeer(Async)?", "PeerCopyRegion(pCopy)"),
    (r"cuMemcpy2D(Async|Unaligned)?", "Box2D(pCopy)"),
    (r"cuMemcpy3D(Async)?", "Box3D(pCopy)"),
    (r"cuMemcpyBatchAsync", "CopyBatch(dsts, srcs, sizes, count)"),
    (r"cuMemcpy3DBatchAsync", "BoxBatch(opList, numOps)"),
    (r"cuMemBatchDecompressAsync", "Decompression(paramsArray, count)"),
)
WAITS = r"cuStreamWaitEvent|cuStreamWaitValue(32|64)|cuStreamBatchMemOp|cuLaunchHostFunc|" \
        r"cuStreamAddCallback|cuWaitExternalSemaphoresAsync"


def work_of(function):
    """What the function does to the device, as C++; None: it is not of these."""
    if fill := re.fullmatch(r"cuMemsetD(2D)?(D?\d+)(Async)?", function.base):
        bytes_each = int(fill[2].removeprefix("D")) // 8
        count = "uint64_t{Width} * Height" if fill[1] else "uint64_t{N}"
        return f"Fill({count} * {bytes_each})"
    for pattern, work in COPIES:
        if re.fullmatch(pattern, function.base):
            return work
    return "Wait()" if re.fullmatch(WAITS, function.base) else None


def generate(cuda):
    lines = []
    for f in cuda.functions:
        work = work_of(f)
        if work is None or not f.overridden:
            continue
        params = ", ".join(f"{p.type} {p.name}" for p in f.params)
        names = ", ".join(p.name for p in f.params)
        stream = next((p.name for p in f.params if p.type == "CUstream"), "nullptr")
        per_thread = "true" if f.symbol.endswith(("_ptds", "_ptsz")) else "false"
        lines += [f"CUresult {f.symbol}({params}) {{",
                  f"  return InStream([&] {{ return {work}; }}, {stream}, {per_thread},",
                  f"                  [&] {{ return PRORATA_REAL({f.symbol})({names}); }});",
                  "}"]
    return lines
