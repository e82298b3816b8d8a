"""A CUDA program that does what it is told, a line at a time, through whatever libcuda.so.1 it finds:

    alloc BYTES   -> {"result": 0, "address": 1234}    the driver's own result
    free ADDRESS  -> {"result": 0}
    info          -> {"result": 0, "free": ..., "total": ...}
    total         -> {"result": 0, "bytes": ...}
    capture       -> {"result": 0}      begins to capture a stream, relaxed
    end           -> {"result": 0}      ends that capture
    callback BYTES -> {"result": ...}   what an allocation in a host function came to

Tests drive it over its standard streams (harness-independent: it runs under `prorata run` too).
"""
import ctypes
import json
import sys


def main():
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    for result in (cuda.cuInit(0), cuda.cuDeviceGet(ctypes.byref(device), 0),
                   cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device)):
        if result != 0:
            print(json.dumps({"result": result}), flush=True)
            sys.exit(1)
    print(json.dumps({"result": 0}), flush=True)
    for line in sys.stdin:
        words = line.split()
        answer = {}
        if words[0] == "alloc":
            address = ctypes.c_uint64()
            answer["result"] = cuda.cuMemAlloc_v2(ctypes.byref(address),
                                                  ctypes.c_size_t(int(words[1])))
            answer["address"] = address.value
        elif words[0] == "free":
            answer["result"] = cuda.cuMemFree_v2(ctypes.c_uint64(int(words[1])))
        elif words[0] == "capture":
            stream = ctypes.c_void_p()
            answer["result"] = (cuda.cuStreamCreate(ctypes.byref(stream), 1) or
                                cuda.cuStreamBeginCapture_v2(stream, 2))
        elif words[0] == "end":
            graph = ctypes.c_void_p()
            answer["result"] = cuda.cuStreamEndCapture(stream, ctypes.byref(graph))
        elif words[0] == "callback":
            seen, address = [], ctypes.c_uint64()

            def allocate(_, size=int(words[1]), seen=seen, address=address):
                seen.append(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)))
            function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(allocate)
            answer["result"] = (cuda.cuLaunchHostFunc(None, function, None) or
                                cuda.cuCtxSynchronize() or seen[0])
        elif words[0] == "info":
            free, total = ctypes.c_size_t(), ctypes.c_size_t()
            answer["result"] = cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
            answer |= {"free": free.value, "total": total.value}
        elif words[0] == "total":
            size = ctypes.c_size_t()
            answer["result"] = cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device)
            answer["bytes"] = size.value
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
