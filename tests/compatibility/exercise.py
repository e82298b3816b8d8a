"""What every exercise of the compatibility suite shares: NVIDIA's library of this environment by ctypes, and a
report of what was done.

An exercise is a program of its own, run by the Python of the environment whose wheels it needs:

    with exercise.step("streams"):          # named on standard error before, in the report after
        runtime.call("cudaStreamCreate", byref(stream))
    exercise.finish(version)                # one line of JSON on standard output

A call that fails, or a check that is not so, ends the program with the step's name. COMPATIBILITY_TOTAL_BYTES
is the memory that the device must say it has (the share's, under prorata).
"""
import contextlib
import ctypes
import json
import os
import pathlib
import sys
from ctypes import byref, c_float, c_int, c_size_t, c_void_p

MIB = 1 << 20
GIB = 1 << 30
ENVIRONMENT = pathlib.Path(sys.prefix)
PACKAGES = ENVIRONMENT / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
TOTAL_BYTES = int(os.environ["COMPATIBILITY_TOTAL_BYTES"]) if "COMPATIBILITY_TOTAL_BYTES" in os.environ else None
# An environment of wheels for CUDA 11.8 is called cuda11, and so on.
MAJOR = int(os.environ["COMPATIBILITY_CUDA_MAJOR"])

_done = []


class NotSo(Exception):
    """A library's answer that is not what it must be."""


def expect(condition, what):
    if not condition:
        raise NotSo(what)


def expect_equal(found, wanted, what):
    expect(found == wanted, f"{what}: {found!r}, not {wanted!r}")


@contextlib.contextmanager
def step(name):
    print(f"compatibility: {name}", file=sys.stderr, flush=True)
    try:
        yield
    except Exception as error:
        print(f"compatibility: FAILED at '{name}': {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        raise
    _done.append(name)


def finish(version, **facts):
    print(json.dumps({"version": str(version), "done": _done, **facts}), flush=True)


def find_library(name):
    found = sorted(PACKAGES.glob(f"nvidia/**/{name}"))
    if not found:
        raise FileNotFoundError(f"no {name} in {PACKAGES}/nvidia")
    return str(found[0])


class Library:
    """One of NVIDIA's libraries; call() raises when a function answers anything but 0."""

    def __init__(self, name, error_text=None):
        self.path = find_library(name)
        self.raw = ctypes.CDLL(self.path, mode=ctypes.RTLD_GLOBAL)
        self._error_text = error_text
        if error_text:
            getattr(self.raw, error_text).restype = ctypes.c_char_p

    def result(self, function, *arguments):
        return getattr(self.raw, function)(*arguments)

    def call(self, function, *arguments):
        result = self.result(function, *arguments)
        if result != 0:
            text = getattr(self.raw, self._error_text)(result).decode() if self._error_text else ""
            raise NotSo(f"{function} answered {result} {text}".rstrip())

    def refuses(self, wanted, function, *arguments):
        expect_equal(self.result(function, *arguments), wanted, f"the answer of {function}")


class Dim3(ctypes.Structure):
    _fields_ = [(axis, ctypes.c_uint) for axis in "xyz"]


class Runtime(Library):
    """cudart of this environment, and what all the other libraries' exercises need of it."""

    MALLOC_ERROR = 2
    H2D, D2H, D2D = 1, 2, 3

    def __init__(self):
        super().__init__("libcudart.so." + ("11.0" if MAJOR == 11 else str(MAJOR)),
                         "cudaGetErrorName")

    def version(self):
        value = c_int()
        self.call("cudaRuntimeGetVersion", byref(value))
        return value.value

    def malloc(self, count):
        pointer = c_void_p()
        self.call("cudaMalloc", byref(pointer), c_size_t(count))
        return pointer

    def free(self, pointer):
        self.call("cudaFree", pointer)

    def memory(self):
        free, total = c_size_t(), c_size_t()
        self.call("cudaMemGetInfo", byref(free), byref(total))
        return free.value, total.value

    def stream(self):
        stream = c_void_p()
        self.call("cudaStreamCreateWithFlags", byref(stream), 1)  # non-blocking
        return stream

    def upload(self, values):
        """A ctypes array's copy on the device."""
        pointer = self.malloc(ctypes.sizeof(values))
        self.call("cudaMemcpy", pointer, byref(values), c_size_t(ctypes.sizeof(values)), self.H2D)
        return pointer

    def download(self, pointer, array_type):
        values = array_type()
        self.call("cudaMemcpy", byref(values), pointer, c_size_t(ctypes.sizeof(values)), self.D2H)
        return values

    def synchronize(self):
        self.call("cudaDeviceSynchronize")

    @contextlib.contextmanager
    def captured(self, stream):
        """Captures the block's calls on `stream` into a graph, and replays it twice."""
        graph, executable = c_void_p(), c_void_p()
        self.call("cudaStreamBeginCapture", stream, 0)
        yield
        self.call("cudaStreamEndCapture", stream, byref(graph))
        nodes = c_size_t()
        self.call("cudaGraphGetNodes", graph, None, byref(nodes))
        expect(nodes.value > 0, "the captured graph is empty")
        self.call("cudaGraphInstantiateWithFlags", byref(executable), graph, ctypes.c_ulonglong(0))
        for _ in range(2):
            self.call("cudaGraphLaunch", executable, stream)
        self.call("cudaStreamSynchronize", stream)
        self.call("cudaGraphExecDestroy", executable)
        self.call("cudaGraphDestroy", graph)

    def expect_share(self):
        """The device says the memory of the share, where this runs on one."""
        free, total = self.memory()
        expect(0 < free <= total, f"free {free} of {total}")
        if TOTAL_BYTES is not None:
            expect_equal(total, TOTAL_BYTES, "cudaMemGetInfo's total")


__all__ = ["MIB", "GIB", "MAJOR", "TOTAL_BYTES", "ENVIRONMENT", "PACKAGES", "NotSo", "expect",
           "expect_equal", "step", "finish", "find_library", "Library", "Runtime", "Dim3", "ctypes",
           "byref", "c_int", "c_size_t", "c_void_p", "c_float"]
