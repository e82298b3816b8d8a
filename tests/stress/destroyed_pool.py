"""A program for test_pools.py: destroys a pool while the free of its last allocation still waits.

Prints "destroyed" then; reads a byte, upon which the device goes on; prints "freed" when it has got
past the free; ends with its standard input."""
import ctypes
import os

BYTES = 256 << 20


class PoolProperties(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int),
                ("location_type", ctypes.c_int), ("location_id", ctypes.c_int),
                ("security", ctypes.c_void_p), ("max_size", ctypes.c_size_t),
                ("rest", ctypes.c_ubyte * 56)]


cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    result = getattr(cuda, name)(*arguments)
    if result != 0:
        raise SystemExit(f"{name} answered {result}")


def main():
    context, stream, pool = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    address = ctypes.c_uint64()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuStreamCreate", ctypes.byref(stream), 1)
    properties = PoolProperties(type=1, location_type=1)
    call("cuMemPoolCreate", ctypes.byref(pool), ctypes.byref(properties))
    call("cuDeviceSetMemPool", 0, pool)  # whose end makes the default pool current again
    call("cuMemAllocFromPoolAsync", ctypes.byref(address), ctypes.c_size_t(BYTES), pool, stream)
    call("cuStreamSynchronize", stream)
    wait = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: os.read(0, 1) and None)
    call("cuLaunchHostFunc", stream, wait, None)
    call("cuMemFreeAsync", address, stream)
    call("cuMemPoolDestroy", pool)
    print("destroyed", flush=True)
    call("cuStreamSynchronize", stream)
    print("freed", flush=True)
    current, default = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuDeviceGetMemPool", ctypes.byref(current), 0)
    call("cuDeviceGetDefaultMemPool", ctypes.byref(default), 0)
    print(current.value == default.value, flush=True)
    print(cuda.cuMemPoolDestroy(default) == 1, flush=True)  # INVALID_VALUE
    os.read(0, 1)


main()
