"""The simulated driver by ctypes: just enough to allocate, launch, wait, and see what is answered.

Run as a program it does what its arguments say, one after the other, and prints the answers as JSON, each
with the milliseconds at which it was begun and ended:

    driver.py alloc:64 launch:1000 sync free:0

Its file may be copied under another name: faults know programs by the names of their files.
"""
import ctypes
import json
import os
import pathlib
import sys
import threading
import time

BUILD = pathlib.Path(os.environ.get("PRORATA_BUILD_DIR", "build"))
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
MIB = 1 << 20


class Driver:
    def __init__(self):
        self.library = ctypes.CDLL(str(BUILD / "sim" / "libcuda.so.1"))
        self.context = ctypes.c_void_p()
        self.stream = ctypes.c_void_p()
        self.event = ctypes.c_void_p()
        self.memory = []
        self.called = []
        self.device = 0
        self.stamps = []  # addresses of each stamped kernel's begin and end
        self._keep = []  # what ctypes must not collect while the driver knows its address
        self._kernel = None
        self._released = threading.Event()

    def call(self, name, *arguments):
        """The name of what it answers, without CUDA_ERROR_."""
        result = getattr(self.library, name)(*arguments)
        text = ctypes.c_char_p()
        self.library.cuGetErrorName(result, ctypes.byref(text))
        return text.value.decode().removeprefix("CUDA_ERROR_").removeprefix("CUDA_")

    def must(self, name, *arguments):
        answer = self.call(name, *arguments)
        if answer != "SUCCESS":
            raise RuntimeError(f"{name} answered {answer}")

    # What arguments can ask for; each returns the driver's answer.

    def init(self):
        return self.call("cuInit", 0)

    def use(self, device):
        self.device = int(device)
        return "SUCCESS"

    def ctx(self):
        return self.call("cuCtxCreate_v2", ctypes.byref(self.context), 0, self.device)

    def destroy(self):
        self._kernel = None
        return self.call("cuCtxDestroy_v2", self.context)

    def objects(self):
        self.must("cuStreamCreate", ctypes.byref(self.stream), 1)
        self.must("cuEventCreate", ctypes.byref(self.event), 0)
        return "SUCCESS"

    def alloc(self, mib):
        address = ctypes.c_uint64()
        answer = self.call("cuMemAlloc_v2", ctypes.byref(address),
                           ctypes.c_size_t(int(float(mib) * MIB)))
        if answer == "SUCCESS":
            self.memory.append(address)
        return answer

    def pool_alloc(self, mib):
        address = ctypes.c_uint64()
        return self.call("cuMemAllocAsync", ctypes.byref(address),
                         ctypes.c_size_t(int(mib) * MIB), self.stream)

    def free(self, index):
        return self.call("cuMemFree_v2", self.memory[int(index)])

    def info(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        return self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))

    def function(self, name):
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        path = str(BUILD / "tests" / "conformance_kernels.so").encode()
        self.must("cuModuleLoad", ctypes.byref(module), path)
        self.must("cuModuleGetFunction", ctypes.byref(function), module, name)
        return function

    def stamped(self):
        """What stamp() needs, made before the device is busy."""
        self._stamp = self.function(b"stamp")
        for _ in range(4):
            address = ctypes.c_uint64()
            self.must("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(16))
            self.stamps.append(address)
        self._stamped = []
        return "SUCCESS"

    def stamp(self, microseconds):
        """One kernel of so long, that notes when it ran by the device's own clock."""
        values = [self.stamps[len(self._stamped)], ctypes.c_uint64(int(microseconds) * 1000)]
        self._stamped.append(values[0])
        pointers = (ctypes.c_void_p * 2)(*(ctypes.addressof(value) for value in values))
        return self.call("cuLaunchKernel", self._stamp, 1, 1, 1, 1, 1, 1, 0, self.stream, pointers,
                         None)

    def times(self):
        """[begin, end] of each stamped kernel, in milliseconds of the device's clock."""
        found = []
        for address in self._stamped:
            pair = (ctypes.c_uint64 * 2)()
            self.must("cuMemcpyDtoH_v2", pair, address, ctypes.c_size_t(16))
            found.append([value / 1e6 for value in pair])
        return found

    def launch(self, microseconds):
        """One kernel of so long, that adds 1 to a word."""
        if self._kernel is None:
            kernel = self.function(b"step")
            word = ctypes.c_uint64()
            self.must("cuMemAlloc_v2", ctypes.byref(word), ctypes.c_size_t(8))
            self._kernel, self._word = kernel, word
        values = [self._word, ctypes.c_uint64(1), ctypes.c_uint64(1),
                  ctypes.c_uint64(int(float(microseconds) * 1000))]
        pointers = (ctypes.c_void_p * 4)(*(ctypes.addressof(value) for value in values))
        return self.call("cuLaunchKernel", self._kernel, 1, 1, 1, 1, 1, 1, 0, self.stream,
                         pointers, None)

    def beside(self, microseconds):
        """One kernel, launched by another thread; the longest query of an event meanwhile, in seconds."""
        def launch():
            self.must("cuCtxSetCurrent", self.context)
            self.launch(microseconds)

        thread = threading.Thread(target=launch)
        thread.start()
        longest_s = 0
        while thread.is_alive():
            begun_s = time.monotonic()
            self.event_query()
            longest_s = max(longest_s, time.monotonic() - begun_s)
        return longest_s

    def copy(self, mib):
        """To the device, from pinned memory."""
        host = ctypes.c_void_p()
        size = ctypes.c_size_t(int(mib) * MIB)
        self.must("cuMemAllocHost_v2", ctypes.byref(host), size)
        return self.call("cuMemcpyHtoDAsync_v2", self.memory[-1], host, size, self.stream)

    def sync(self):
        return self.call("cuCtxSynchronize")

    def fill(self, address):
        """In the stream, captured or not."""
        return self.call("cuMemsetD32Async", ctypes.c_uint64(int(address, 0)), 7,
                         ctypes.c_size_t(4), self.stream)

    def capture(self):
        return self.call("cuStreamBeginCapture_v2", self.stream, 2)

    def captured(self):
        graph, self.exec = ctypes.c_void_p(), ctypes.c_void_p()
        self.must("cuStreamEndCapture", self.stream, ctypes.byref(graph))
        node, count = ctypes.c_void_p(), ctypes.c_size_t(1)
        self.must("cuGraphGetNodes", graph, ctypes.byref(node), ctypes.byref(count))
        self.node = node
        return self.call("cuGraphInstantiateWithFlags", ctypes.byref(self.exec), graph,
                         ctypes.c_ulonglong(0))

    def aim(self):
        """The fill of the graph is of this process's first allocation."""
        class Fill(ctypes.Structure):
            _fields_ = [("dst", ctypes.c_uint64), ("pitch", ctypes.c_size_t),
                        ("value", ctypes.c_uint), ("element", ctypes.c_uint),
                        ("width", ctypes.c_size_t), ("height", ctypes.c_size_t)]
        fill = Fill(self.memory[0], 0, 7, 4, 4, 1)
        return self.call("cuGraphExecMemsetNodeSetParams", self.exec, self.node,
                         ctypes.byref(fill), self.context)

    def replay(self):
        return self.call("cuGraphLaunch", self.exec, self.stream)

    def stream_sync(self):
        return self.call("cuStreamSynchronize", self.stream)

    def stream_query(self):
        return self.call("cuStreamQuery", self.stream)

    def record(self):
        return self.call("cuEventRecord", self.event, self.stream)

    def event_sync(self):
        return self.call("cuEventSynchronize", self.event)

    def event_query(self):
        return self.call("cuEventQuery", self.event)

    def host(self):
        """A host function, and after it a callback of the older kind."""
        function = HOST_FUNCTION(lambda _: self.called.append("function"))
        self._keep.append(function)
        answer = self.call("cuLaunchHostFunc", self.stream, function, None)
        callback = CALLBACK(lambda stream, status, _: self.called.append(f"callback {status}"))
        self._keep.append(callback)
        self.call("cuStreamAddCallback", self.stream, callback, None, 0)
        return answer

    def hold(self):
        """What is put into the stream from here on waits for release()."""
        self._released.clear()
        function = HOST_FUNCTION(lambda _: self._released.wait())
        self._keep.append(function)
        return self.call("cuLaunchHostFunc", self.stream, function, None)

    def release(self):
        self._released.set()
        return "SUCCESS"

    def told(self):
        """What host functions and callbacks have been called with; waits for the first."""
        end = time.monotonic() + 120
        while not self.called and time.monotonic() < end:
            time.sleep(0.001)
        return self.called

    def sleep(self, milliseconds):
        time.sleep(float(milliseconds) / 1000)
        return "SUCCESS"

    def wait(self):
        """Until the other side closes its end of standard input."""
        print(json.dumps({"ready": True}), flush=True)
        sys.stdin.read()
        return "SUCCESS"


def main():
    driver = Driver()
    answers = []
    start = time.monotonic()
    for argument in sys.argv[1:]:
        name, _, value = argument.partition(":")
        began = time.monotonic()
        answer = getattr(driver, name)(*([value] if value else []))
        answers.append([argument, answer, (began - start) * 1000, (time.monotonic() - start) * 1000])
    print(json.dumps(answers), flush=True)
    os._exit(0)  # as a program that just ends: nothing is destroyed by hand


if __name__ == "__main__":
    main()
