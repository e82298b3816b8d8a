"""A program that takes device memory past prorata: it loads the driver itself, by its path.

    bypass.py DRIVER     then a line at a time: alloc BYTES | take BYTES | give ADDRESS | info

`alloc` is an honest cuMemAlloc, `take` and `give` are the driver's own. Answers as interactive.py.
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
            sys.exit(f"the driver answered {result}")
    driver = ctypes.CDLL(sys.argv[1])
    print(json.dumps({"result": 0}), flush=True)
    for line in sys.stdin:
        what, *numbers = line.split()
        answer = {}
        if what in ("alloc", "take"):
            library = cuda if what == "alloc" else driver
            address = ctypes.c_uint64()
            answer["result"] = library.cuMemAlloc_v2(ctypes.byref(address),
                                                     ctypes.c_size_t(int(numbers[0])))
            answer["address"] = address.value
        elif what == "give":
            answer["result"] = driver.cuMemFree_v2(ctypes.c_uint64(int(numbers[0])))
        elif what == "info":
            free, total = ctypes.c_size_t(), ctypes.c_size_t()
            answer["result"] = cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
            answer |= {"free": free.value, "total": total.value}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
