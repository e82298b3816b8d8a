"""A CUDA program that takes device memory in two steps and tries the second again until it has it.
It knows nothing of prorata. `two_steps.py NAME STEP_BYTES SECOND_BYTES TRIES`; after the first step
it says so and waits for a line on its standard input, so that two of them can be brought to hold
their first step at the same time. Exit status 0: it got both steps; 3: it gave up."""
import ctypes
import sys
import time

name, first, second, tries = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
cuda = ctypes.CDLL("libcuda.so.1")
device, context = ctypes.c_int(), ctypes.c_void_p()
for result in (cuda.cuInit(0), cuda.cuDeviceGet(ctypes.byref(device), 0),
               cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device)):
    if result != 0:
        sys.exit(f"{name}: CUDA error {result}")


def take(size):
    address = ctypes.c_uint64()
    return cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) == 0


def say(text):
    print(f"{name}: {text}", flush=True)


if not take(first):
    say("no memory for the first step")
    sys.exit(3)
say("has its first step")
sys.stdin.readline()
for attempt in range(tries):
    if take(second):
        say("has its second step, computes, and ends")
        sys.exit(0)
    time.sleep(0.1)
say(f"was refused its second step {tries} time(s) and gives up")
sys.exit(3)
