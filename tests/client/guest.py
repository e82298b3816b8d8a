"""What a program does in a test of the client library: guest.py SCENARIO (see test_on_fixture.py).

It calls the library by ctypes, as any program could, and prints one JSON object.
"""

import ctypes
import json
import mmap
import os
import signal
import struct
import sys
import threading
import time

LIB = os.environ["GUEST_LIBRARY"]
MIB = 1 << 20
LEASE_AT = 256 + 128      # DeviceLimits.lease of device 0 in the limits file
OVERHEAD_AT = 256 + 48 + 8
HEARTBEAT_AT = 128         # LimitsHeader.heartbeat
SILENT_S = 0.06           # after that an agent is taken for gone, and a closed lease holds nobody
OPEN = 1


def fds():
    return len(os.listdir("/proc/self/fd"))


def threads():
    return len(os.listdir("/proc/self/task"))


class Cuda:
    def __init__(self):
        self.lib = ctypes.CDLL(LIB)

    def init(self):
        return self.lib.cuInit(0)

    def start(self):
        """cuInit and a current primary context; the first error, or 0."""
        result = self.init()
        if result:
            return result
        self.context = ctypes.c_void_p()
        result = self.lib.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), 0)
        return result or self.lib.cuCtxSetCurrent(self.context)

    def alloc(self, size):
        address = ctypes.c_uint64()
        result = self.lib.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
        return result, address.value

    def free(self, address):
        return self.lib.cuMemFree_v2(ctypes.c_uint64(address))

    def info(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.lib.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def launch(self):
        return self.lib.cuLaunchKernel(ctypes.c_void_p(0x5000), 1, 1, 1, 1, 1, 1, 0, None, None,
                                       None)


class DecompressParams(ctypes.Structure):
    _fields_ = [("src_bytes", ctypes.c_size_t), ("dst_bytes", ctypes.c_size_t),
                ("dst_actual", ctypes.c_void_p), ("src", ctypes.c_void_p),
                ("dst", ctypes.c_void_p), ("algorithm", ctypes.c_int),
                ("padding", ctypes.c_ubyte * 20)]


class Limits:
    def __init__(self):
        with open(os.path.join(os.environ["PRORATA_SHARE"], "limits"), "r+b") as file:
            self.pages = mmap.mmap(file.fileno(), 0)

    def lease(self, sequence, bits):
        struct.pack_into("<I", self.pages, LEASE_AT, sequence << 2 | bits)

    def heartbeat(self):
        return struct.unpack_from("<Q", self.pages, HEARTBEAT_AT)[0]

    def longest_pause(self, over, limit_s):
        """Watches the heart until over() or the limit: for how long it may have stood still."""
        at = since = time.monotonic()
        beat, end, longest = self.heartbeat(), at + limit_s, 0
        while not over() and at < end:
            time.sleep(0.001)
            before, at = at, time.monotonic()  # of the last look and this one, each before it
            if (now := self.heartbeat()) != beat:
                longest = max(longest, time.monotonic() - since)
                beat, since = now, before
        return max(longest, time.monotonic() - since)

    def await_beat(self):
        """When the count before the one that stands there now was last seen."""
        before, beat = time.monotonic(), self.heartbeat()
        while True:
            at = time.monotonic()
            if self.heartbeat() != beat:
                return before
            before = at
            time.sleep(0.001)

    def overhead(self, size):
        struct.pack_into("<Q", self.pages, OVERHEAD_AT, size)


def loading():
    before = fds(), threads()
    Cuda()
    maps = open("/proc/self/maps").read()
    return {"same": (fds(), threads()) == before,
            "driver_loaded": os.environ.get("PRORATA_DRIVER_DIR", "/nonexistent") in maps}


def init():
    start = time.monotonic()
    return {"result": Cuda().init(), "seconds": time.monotonic() - start,
            "visible": os.environ.get("CUDA_VISIBLE_DEVICES")}


def memory():
    cuda = Cuda()
    assert cuda.start() == 0
    held = []
    while (got := cuda.alloc(128 * MIB))[0] == 0:
        held.append(got[1])
    full = cuda.info()
    small = cuda.alloc(4096)[0]
    for address in held:
        cuda.free(address)
    shared = [cuda.alloc(4096) for _ in range(100)]
    after_small = cuda.info()
    for _, address in shared:
        cuda.free(address)
    return {"count": len(held), "refusal": got[0], "full": full, "small_when_full": small,
            "after_small": after_small, "at_end": cuda.info()}


def overhead():
    Limits().overhead(100 * MIB)
    cuda = Cuda()
    assert cuda.start() == 0
    one = cuda.info()
    again = ctypes.c_void_p()
    cuda.lib.cuDevicePrimaryCtxRetain(ctypes.byref(again), 0)
    two = cuda.info()
    cuda.alloc(64 * MIB)
    cuda.lib.cuDevicePrimaryCtxRelease_v2(0)
    cuda.lib.cuDevicePrimaryCtxRelease_v2(0)
    # The context is gone, and everything in it; asking needs one.
    Limits().overhead(0)
    assert cuda.start() == 0
    return {"one": one, "two": two, "end": cuda.info()}


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class PoolProps(ctypes.Structure):
    _fields_ = [("alloc_type", ctypes.c_int), ("handle_types", ctypes.c_int),
                ("location", Location), ("rest", ctypes.c_char * 72)]


def pools():
    """By location type: what making a pool, an allocation above the limit and its end answered."""
    cuda = Cuda()
    assert cuda.start() == 0
    answers = {}
    for location in (1, 2, 3, 4):  # device, host, host NUMA node, the current one
        pool, address = ctypes.c_void_p(), ctypes.c_uint64()
        props = PoolProps(alloc_type=1, location=Location(location, 0))
        made = cuda.lib.cuMemPoolCreate(ctypes.byref(pool), ctypes.byref(props))
        results = [cuda.lib.cuMemAllocFromPoolAsync(
            ctypes.byref(address), ctypes.c_size_t(2048 * MIB), pool, None)]
        before = cuda.info()
        if results[0] == 0:
            results.append(cuda.lib.cuMemFreeAsync(address, None))
        results.append(cuda.lib.cuMemPoolDestroy(pool))
        # The handle may be another pool's from now on.
        results.append(cuda.lib.cuMemAllocFromPoolAsync(
            ctypes.byref(address), ctypes.c_size_t(2048 * MIB), pool, None))
        answers[location] = [made, *results, before == cuda.info()]
    return answers


def many_host_pools():
    """Of 600 pools of the host's memory: which allocations above the limit were refused."""
    cuda = Cuda()
    assert cuda.start() == 0
    refused, address = [], ctypes.c_uint64()
    props = PoolProps(alloc_type=1, location=Location(2, 0))
    for number in range(600):
        pool = ctypes.c_void_p()
        assert cuda.lib.cuMemPoolCreate(ctypes.byref(pool), ctypes.byref(props)) == 0
        if cuda.lib.cuMemAllocFromPoolAsync(ctypes.byref(address), ctypes.c_size_t(2048 * MIB),
                                            pool, None) != 0:
            refused.append(number)
    return refused


def too_small():
    Limits().overhead(2048 * MIB)
    cuda = Cuda()
    result = cuda.start()
    flags, active = ctypes.c_uint(), ctypes.c_int()
    cuda.lib.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active))
    return {"result": result, "active": active.value}


def held(cuda, call):
    """Whether a closed lease holds the call, and lets it go on when it opens."""
    limits = Limits()
    assert cuda.start() == 0 and cuda.launch() == 0
    sequence = 2
    for _ in range(100):
        limits.lease(sequence, 0)
        done = threading.Event()

        def work(finished=done):
            cuda.lib.cuCtxSetCurrent(cuda.context)
            call()
            finished.set()

        threading.Thread(target=work, daemon=True).start()
        pause_s = limits.longest_pause(done.is_set, 0.3)
        blocked = not done.is_set()
        limits.lease(sequence + 1, OPEN)
        went_on = done.wait(60)
        # A heart that stood still lets everybody go on: that shows nothing of the lease.
        if blocked or pause_s < SILENT_S - 0.01:
            return {"blocked": blocked, "went_on": went_on, "beats_ms": 0}
        sequence += 2
    return {"blocked": blocked, "went_on": went_on, "beats_ms": pause_s * 1000}


def lease():
    cuda = Cuda()
    return held(cuda, cuda.launch)


def lease_decompression():
    cuda = Cuda()
    one, failed = DecompressParams(dst_bytes=MIB), ctypes.c_size_t()
    return held(cuda, lambda: cuda.lib.cuMemBatchDecompressAsync(
        ctypes.byref(one), ctypes.c_size_t(1), 0, ctypes.byref(failed), None))


def silent():
    """The agent stops answering: what is granted stays, a closed lease no longer holds."""
    cuda, limits = Cuda(), Limits()
    assert cuda.start() == 0 and cuda.launch() == 0 and cuda.alloc(MIB)[0] == 0
    limits.lease(2, 0)
    start = limits.await_beat()
    os.kill(os.getppid(), signal.SIGSTOP)
    try:
        launched = cuda.launch()
        waited = time.monotonic() - start
        return {"launched": launched, "waited": waited, "allocated": cuda.alloc(64 * MIB)[0]}
    finally:
        os.kill(os.getppid(), signal.SIGCONT)


def fork():
    cuda = Cuda()
    assert cuda.start() == 0 and cuda.alloc(MIB)[0] == 0
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, json.dumps({"total": cuda.info()[1], "threads": threads(),
                                      "alloc": cuda.alloc(MIB)[0]}).encode())
        os._exit(0)
    os.waitpid(child, 0)
    return {"child": json.loads(os.read(reading, 1000)), "total": cuda.info()[1],
            "alloc": cuda.alloc(200 * MIB)[0]}


def lookups():
    cuda = Cuda()
    answers = {}
    for name, version, flags in (
            ("cuMemAlloc", 12000, 0), ("cuLaunchKernel", 12000, 0), ("cuLaunchKernel", 12000, 2),
            ("cuGetProcAddress", 11030, 0), ("cuGetProcAddress", 12000, 0),
            ("cuMemAlloc", 99999, 0), ("cuCtxGetCurrent", 12000, 0), ("cuNoSuchThing", 12000, 0)):
        address, status = ctypes.c_void_p(), ctypes.c_int()
        result = cuda.lib.cuGetProcAddress_v2(name.encode(), ctypes.byref(address), version,
                                              ctypes.c_uint64(flags), ctypes.byref(status))
        ours = [symbol for symbol in (name, name + "_v2", name + "_ptsz")
                if hasattr(cuda.lib, symbol)
                and ctypes.cast(getattr(cuda.lib, symbol), ctypes.c_void_p).value == address.value]
        answers[f"{name} {version} {flags}"] = ours or (
            "driver" if address.value else f"none {result}")
    return answers


def unknown_lookups():
    """What the driver has and the spec does not know, before cuInit and after it."""
    cuda = Cuda()

    def look_up(name):
        address = ctypes.c_void_p()
        result = cuda.lib.cuGetProcAddress_v2(name, ctypes.byref(address), 12000,
                                              ctypes.c_uint64(0), None)
        return result == 0 and ctypes.CFUNCTYPE(ctypes.c_int)(address.value)() == 42

    first = look_up(b"cuNullBrandNew")
    assert cuda.start() == 0
    for known in (b"cuMemAlloc", b"cuCtxGetCurrent", b"cuGraphicsMapResources"):
        cuda.lib.cuGetProcAddress_v2(known, ctypes.byref(ctypes.c_void_p()), 12000,
                                     ctypes.c_uint64(0), None)
    return {"passed": [first, look_up(b"cuNullBrandNew"), look_up(b"cuNoSuchThing")]}


def threads_hammer():
    cuda = Cuda()
    assert cuda.start() == 0

    def work(seed):
        cuda.lib.cuCtxSetCurrent(cuda.context)
        for i in range(2000):
            result, address = cuda.alloc((seed * 7919 + i * 104729) % (3 * MIB) + 1)
            if result == 0:
                cuda.free(address)
            cuda.launch()

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return {"end": cuda.info()}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()), flush=True)
    os._exit(0)
