"""A program on a share that asks CUDA and NVML what it is told to, one Python expression a line:

    memory(0)  ->  [8589934592, 8589934592, 0]

It loads libcuda.so.1 and libnvidia-ml.so.1 as any program does; the functions below are what the
expressions call. Answers are JSON; an NVML error is {"error": number}.
"""
import ctypes
import json
import os
import sys

U32, U64 = ctypes.c_uint, ctypes.c_ulonglong
INSUFFICIENT = 7
nvml = ctypes.CDLL("libnvidia-ml.so.1")
cuda = None
held = []


class NvmlError(Exception):
    pass


def struct(name, *fields):
    return type(name, (ctypes.Structure,), {"_fields_": list(fields)})


Memory = struct("Memory", ("total", U64), ("free", U64), ("used", U64))
Memory2 = struct("Memory2", ("version", U32), ("total", U64), ("reserved", U64), ("free", U64),
                 ("used", U64))
Process1 = struct("Process1", ("pid", U32), ("used", U64))
Process2 = struct("Process2", ("pid", U32), ("used", U64), ("gpu_instance", U32),
                  ("compute_instance", U32))
Detail = struct("Detail", ("pid", U32), ("used", U64), ("gpu_instance", U32),
                ("compute_instance", U32), ("protected", U64))
DetailList = struct("DetailList", ("version", U32), ("mode", U32), ("count", U32),
                    ("entries", ctypes.POINTER(Detail)))
Private = struct("Private", ("pid", U32), ("unknown_1", U32), ("used", U64),
                 ("gpu_instance", U32), ("compute_instance", U32), ("unknown_2", U64),
                 ("name", ctypes.c_char * 4096))
Rates = struct("Rates", ("gpu", U32), ("memory", U32))
Sample = struct("Sample", ("time", U64), ("value", U64))
ProcessSample = struct("ProcessSample", ("pid", U32), ("time", U64), ("sm", U32), ("memory", U32),
                       ("encoder", U32), ("decoder", U32))


def check(result):
    if result != 0:
        raise NvmlError(result)


def handle(index=0):
    device = ctypes.c_void_p()
    check(nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)))
    return device


def number(name, *arguments, kind=U32):
    value = kind()
    check(getattr(nvml, name)(*arguments, ctypes.byref(value)))
    return value.value


def uuid(device=None):
    text = ctypes.create_string_buffer(96)
    check(nvml.nvmlDeviceGetUUID(device or handle(), text, 96))
    return text.value.decode()


def by_uuid(text):
    device = ctypes.c_void_p()
    check(nvml.nvmlDeviceGetHandleByUUID(text.encode(), ctypes.byref(device)))
    return number("nvmlDeviceGetIndex", device)


def by_bus(text):
    device = ctypes.c_void_p()
    check(nvml.nvmlDeviceGetHandleByPciBusId_v2(text.encode(), ctypes.byref(device)))
    return number("nvmlDeviceGetIndex", device)


def memory(index=0):
    out = Memory()
    check(nvml.nvmlDeviceGetMemoryInfo(handle(index), ctypes.byref(out)))
    return out.total, out.free, out.used


def memory2(index=0):
    out = Memory2(version=ctypes.sizeof(Memory2) | 2 << 24)
    check(nvml.nvmlDeviceGetMemoryInfo_v2(handle(index), ctypes.byref(out)))
    return out.total, out.free, out.used, out.reserved


def processes(kind="Compute", suffix="_v3", room=64, entries=True):
    info = Process1 if suffix == "" else Process2
    count, infos = U32(room), (info * 64)()
    ask = getattr(nvml, f"nvmlDeviceGet{kind}RunningProcesses{suffix}")
    result = ask(handle(), ctypes.byref(count), infos if entries else None)
    if result == INSUFFICIENT:
        return {"error": result, "count": count.value}
    check(result)
    return {infos[i].pid: infos[i].used for i in range(count.value)}


def details(mode=0, version=ctypes.sizeof(DetailList) | 1 << 24, room=64):
    entries = (Detail * 64)()
    out = DetailList(version, mode, room, entries)
    check(nvml.nvmlDeviceGetRunningProcessDetailList(handle(), ctypes.byref(out)))
    return {entries[i].pid: entries[i].used for i in range(out.count)}


def private(slot=213):
    """As nvidia-smi does it."""
    identity = bytes((0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e,
                      0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4))
    table = ctypes.POINTER(ctypes.c_void_p)()
    check(nvml.nvmlInternalGetExportTable(ctypes.byref(table), identity))
    ask = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(U32),
                           ctypes.c_void_p)(table[slot])
    count, entries = U32(16), (Private * 16)()
    check(ask(handle(), ctypes.byref(count), entries))
    return {entries[i].pid: [entries[i].used, entries[i].name.decode()]
            for i in range(count.value)}


def name(pid):
    text = ctypes.create_string_buffer(256)
    check(nvml.nvmlSystemGetProcessName(pid, text, 256))
    return text.value.decode()


def rates():
    out = Rates()
    check(nvml.nvmlDeviceGetUtilizationRates(handle(), ctypes.byref(out)))
    return out.gpu


def samples(last_seen=0):
    kind, count, out = U32(), U32(64), (Sample * 64)()
    check(nvml.nvmlDeviceGetSamples(handle(), 1, U64(last_seen), ctypes.byref(kind),
                                    ctypes.byref(count), out))
    return [(out[i].time, out[i].value & 0xffffffff) for i in range(count.value)]


def process_samples(last_seen=0):
    count, out = U32(64), (ProcessSample * 64)()
    check(nvml.nvmlDeviceGetProcessUtilization(handle(), out, ctypes.byref(count), U64(last_seen)))
    return [(out[i].pid, out[i].time, out[i].sm) for i in range(count.value)]


def nearest(level=50):
    count, out = U32(0), (ctypes.c_void_p * 64)()
    check(nvml.nvmlDeviceGetTopologyNearestGpus(handle(), level, ctypes.byref(count), None))
    room = count.value
    if room:
        check(nvml.nvmlDeviceGetTopologyNearestGpus(handle(), level, ctypes.byref(count), out))
    return [uuid(ctypes.c_void_p(out[i])) for i in range(room)]


def join(device=0):
    """Becomes a member, with a context."""
    global cuda  # pylint: disable=global-statement
    cuda = ctypes.CDLL("libcuda.so.1")
    check(cuda.cuInit(0))
    context = ctypes.c_void_p()
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    check(cuda.cuCtxSetCurrent(context))
    return os.getpid()


def alloc(size):
    address = ctypes.c_uint64()
    result = cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
    if result == 0:
        held.append(address)
    return result


def free():
    check(cuda.cuMemFree_v2(held.pop()))


def cuda_memory():
    left, total = ctypes.c_size_t(), ctypes.c_size_t()
    check(cuda.cuMemGetInfo_v2(ctypes.byref(left), ctypes.byref(total)))
    return total.value, left.value


def cuda_total(device=0):
    total = ctypes.c_size_t()
    check(cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device))
    return total.value


def cuda_uuids():
    count = ctypes.c_int()
    check(cuda.cuDeviceGetCount(ctypes.byref(count)))
    out = []
    for i in range(count.value):
        raw = (ctypes.c_ubyte * 16)()
        check(cuda.cuDeviceGetUuid_v2(raw, i))
        digits = bytes(raw).hex()
        out.append("GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20],
                                      digits[20:])))
    return out


def in_child(text):
    """The expression, in a forked child."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, json.dumps(answer(text)).encode())
        os._exit(0)  # pylint: disable=protected-access
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    return json.loads(said) if status == 0 else {"status": status}


def view():
    """All that is told of memory, at one moment: the same numbers by every way."""
    total, left, used = memory()
    return {"nvml": [total, left, used], "v2": list(memory2()), "sum": sum(processes().values()),
            "cuda": list(cuda_memory()) if cuda else [total, left],
            "cuda_total": cuda_total() if cuda else total}


def watch(times):
    """Looks again and again; what must hold in every answer by itself. The totals that were seen."""
    totals = set()
    for _ in range(times):
        total, left, used = memory()
        assert left <= total and left + used == total, ("memory", total, left, used)
        totals.add(total)
        total, left, used, reserved = memory2()
        assert left + used + reserved == total and left <= total, ("v2", total, left, used, reserved)
        totals.add(total)
        assert all(size < 1 << 40 for size in processes().values())
        if cuda:
            total, left = cuda_memory()
            assert left <= total, ("cuda", total, left)
            totals.add(total)
    return sorted(totals)


def answer(text):
    try:
        return eval(text)  # pylint: disable=eval-used
    except NvmlError as error:
        return {"error": error.args[0]}
    except AssertionError as error:
        return {"failed": error.args}


def main():
    check(nvml.nvmlInit_v2())
    print(json.dumps(os.getpid()), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(line.strip())), flush=True)


if __name__ == "__main__":
    main()
