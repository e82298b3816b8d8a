"""A CUDA program on several devices that does what it is told, a line at a time; a context for each
device it sees is made at its start. DEVICE is the program's own number of it, CURRENT that of the
device whose context is current meanwhile.

    uuids                          -> {"uuids": ["GPU-...", ...]}    in the program's order
    nvml                           -> {"uuids": [...]}               in the order of NVML's indices
    alloc CURRENT BYTES            -> {"result": 0, "address": 1234}
    array CURRENT BYTES            -> {"result": 0}
    physical CURRENT DEVICE BYTES  -> {"result": 0, "handle": 1}     cuMemCreate on DEVICE
    release CURRENT HANDLE         -> {"result": 0}
    pool DEVICE                    -> {"result": 0, "pool": 1234}
    default CURRENT DEVICE         -> {"result": 0, "pool": 1234}    DEVICE's default pool
    from CURRENT POOL BYTES        -> {"result": 0, "address": 1234}
    async CURRENT DEVICE BYTES     -> the same, in a stream of DEVICE
    free CURRENT ADDRESS           -> {"result": 0}
    info CURRENT                   -> {"result": 0, "free": ..., "total": ...}
    peer FROM TO                   -> {"can": 1, "result": 0}        and enables it if it can
    copy FROM TO BYTES             -> {"result": 0, "same": true}    by a pointer of each
"""
import ctypes
import json
import os
import sys

POINTER, SIZE = ctypes.c_uint64, ctypes.c_size_t


class Props(ctypes.Structure):
    """CUmemAllocationProp and, in its beginning, CUmemPoolProps: pinned memory of a device."""
    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location", ctypes.c_int),
                ("device", ctypes.c_int), ("rest", ctypes.c_char * 256)]

    def __init__(self, device):
        super().__init__(type=1, location=1, device=device)


class ArrayShape(ctypes.Structure):
    _fields_ = [("width", SIZE), ("height", SIZE), ("format", ctypes.c_int),
                ("channels", ctypes.c_uint)]


class Program:
    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.check(self.cuda.cuInit(0))
        count = ctypes.c_int()
        self.check(self.cuda.cuDeviceGetCount(ctypes.byref(count)))
        self.contexts, self.streams = [], []
        for device in range(count.value):
            context, stream = ctypes.c_void_p(), ctypes.c_void_p()
            self.check(self.cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device))
            self.check(self.cuda.cuStreamCreate(ctypes.byref(stream), 1))
            self.contexts.append(context)
            self.streams.append(stream)

    @staticmethod
    def check(result):
        if result != 0:
            print(json.dumps({"result": result}), flush=True)
            sys.exit(1)

    def enter(self, current):
        self.check(self.cuda.cuCtxSetCurrent(self.contexts[current]))

    def uuids(self):
        found = []
        for device in range(len(self.contexts)):
            raw = (ctypes.c_ubyte * 16)()
            self.check(self.cuda.cuDeviceGetUuid_v2(raw, device))
            text = bytes(raw).hex()
            found.append("GPU-" + "-".join(
                (text[:8], text[8:12], text[12:16], text[16:20], text[20:])))
        return {"uuids": found}

    @staticmethod
    def nvml():
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        nvml.nvmlInit_v2()
        count, handle = ctypes.c_uint(), ctypes.c_void_p()
        text = ctypes.create_string_buffer(96)
        nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        found = []
        for index in range(count.value):
            nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
            nvml.nvmlDeviceGetUUID(handle, text, 96)
            found.append(text.value.decode())
        return {"uuids": found}

    def alloc(self, current, size):
        self.enter(current)
        address = POINTER()
        result = self.cuda.cuMemAlloc_v2(ctypes.byref(address), SIZE(size))
        return {"result": result, "address": address.value}

    def array(self, current, size):
        self.enter(current)
        array, width = ctypes.c_void_p(), 1 << 12
        shape = ArrayShape(width, size // (4 * width), 0x20, 1)  # floats
        return {"result": self.cuda.cuArrayCreate_v2(ctypes.byref(array), ctypes.byref(shape))}

    def physical(self, current, device, size):
        self.enter(current)
        handle, props = POINTER(), Props(device)
        result = self.cuda.cuMemCreate(ctypes.byref(handle), SIZE(size), ctypes.byref(props),
                                       ctypes.c_ulonglong(0))
        return {"result": result, "handle": handle.value}

    def release(self, current, handle):
        self.enter(current)
        return {"result": self.cuda.cuMemRelease(POINTER(handle))}

    def pool(self, device):
        pool, props = ctypes.c_void_p(), Props(device)
        result = self.cuda.cuMemPoolCreate(ctypes.byref(pool), ctypes.byref(props))
        return {"result": result, "pool": pool.value}

    def default(self, current, device):
        self.enter(current)
        pool = ctypes.c_void_p()
        result = self.cuda.cuDeviceGetDefaultMemPool(ctypes.byref(pool), device)
        return {"result": result, "pool": pool.value}

    def take(self, current, pool, size):
        self.enter(current)
        address = POINTER()
        result = self.cuda.cuMemAllocFromPoolAsync(ctypes.byref(address), SIZE(size),
                                                   ctypes.c_void_p(pool), self.streams[current])
        return {"result": result, "address": address.value}

    def take_async(self, current, device, size):
        self.enter(current)
        address = POINTER()
        result = self.cuda.cuMemAllocAsync(ctypes.byref(address), SIZE(size), self.streams[device])
        return {"result": result, "address": address.value}

    def free(self, current, address):
        self.enter(current)
        return {"result": self.cuda.cuMemFree_v2(POINTER(address))}

    def info(self, current):
        self.enter(current)
        free, total = SIZE(), SIZE()
        result = self.cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        return {"result": result, "free": free.value, "total": total.value}

    def peer(self, start, end):
        self.enter(start)
        can = ctypes.c_int()
        self.check(self.cuda.cuDeviceCanAccessPeer(ctypes.byref(can), start, end))
        return {"can": can.value,
                "result": self.cuda.cuCtxEnablePeerAccess(self.contexts[end], 0)}

    def copy(self, start, end, size):
        """Fills memory of `end` from `start`'s context, and reads it in `end`'s."""
        there = self.alloc(end, size)["address"]
        self.enter(start)
        result = self.cuda.cuMemsetD8_v2(POINTER(there), ctypes.c_ubyte(0x5a), SIZE(size))
        self.cuda.cuCtxSynchronize()
        self.enter(end)
        data = ctypes.create_string_buffer(size)
        self.check(self.cuda.cuMemcpyDtoH_v2(data, POINTER(there), SIZE(size)))
        return {"result": result, "same": data.raw == b"\x5a" * size,
                "freed": self.free(start, there)["result"]}


def main():
    program = Program()
    print(json.dumps({"result": 0, "pid": os.getpid()}), flush=True)
    commands = {"from": program.take, "async": program.take_async}
    for line in sys.stdin:
        word, *numbers = line.split()
        command = commands.get(word) or getattr(program, word)
        print(json.dumps(command(*map(int, numbers))), flush=True)


if __name__ == "__main__":
    main()
