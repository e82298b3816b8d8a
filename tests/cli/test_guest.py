"""Programs that use no GPU do not notice the client library: no driver, no socket, no thread, and
they start as fast as without it."""
import re
import shutil
import statistics
import subprocess
import time
import unittest

import pytest

import harness
import quiet

pytestmark = pytest.mark.alone

PYTHON = shutil.which("python3")
# Prints the libraries that are mapped, what the descriptors lead to, and the number of threads.
LOOK_AROUND = r"""
import os
maps = open("/proc/self/maps").read()
print("libraries", *sorted({os.path.realpath(line.split()[-1]) for line in maps.splitlines()
                            if ".so" in line}))
print("threads", len(os.listdir("/proc/self/task")))
for fd in os.listdir("/proc/self/fd"):
    try:
        print("fd", os.readlink("/proc/self/fd/" + fd))
    except OSError:
        pass
"""


class Guest(harness.MachineTestCase):
    def setUp(self):
        super().setUp()
        self.machine.start_agent()

    def test_python_opens_no_driver_socket_or_thread(self):
        status, out, err = self.machine.call(
            self.machine.command([], [PYTHON, "-c", LOOK_AROUND]))
        self.assertEqual((status, err), (0, ""))
        self.assertIn(str((harness.LIB_DIR / "libcuda.so.1").resolve()), out)
        self.assertNotIn(str(harness.SIM_DIR.resolve()), out)
        self.assertIn("threads 1\n", out)
        self.assertNotIn("socket:", out)
        self.assertNotIn("memfd", out)
        self.assertNotIn("libstdc++", out)
        self.assertEqual(self.machine.ps(), [])

    def traced(self, program, under=(harness.PRORATA, "run", "--")):
        """The system calls of a program (under prorata), from the exec of it on."""
        strace = shutil.which("strace")
        if not strace:
            self.skipTest("strace is not installed")
        log = self.machine.folder / "strace"
        status, _, err = self.machine.call([strace, "-f", "-o", log, *under, *program])
        if "Operation not permitted" in err and "ptrace" in err:
            self.skipTest("ptrace is not allowed here")
        self.assertEqual(status, 0, err)
        text = log.read_text()
        # The last exec that succeeded is the program's: prorata becomes it.
        execs = [m.start() for m in re.finditer(r"execve\(.*= 0$", text, re.MULTILINE)]
        return text[execs[-1]:]

    def test_no_driver_socket_or_thread_by_system_call(self):
        for program in (["/bin/true"], ["bash", "-c", "true"], [PYTHON, "-c", "pass"]):
            with self.subTest(program=program):
                calls = self.traced(program)
                self.assertIn("libcuda.so.1", calls)
                # bash looks its user up, and may ask a name service by socket, without prorata too.
                bare = self.traced(program, under=())
                for call in ("socket(", "connect(", "clone(", "clone3(", "vfork(", "memfd_create("):
                    self.assertEqual(calls.count(call), bare.count(call), call)
                self.assertNotIn(str(harness.SIM_DIR), calls)
                self.assertNotIn("/limits", calls)

    def environment(self):
        lib = str(harness.LIB_DIR)
        return {**self.machine.environment, "LD_LIBRARY_PATH": lib,
                "LD_PRELOAD": f"{lib}/libcuda.so.1",
                "PRORATA_SHARE": str(self.machine.runtime_dir / "shares" / "x")}

    def test_starts_as_fast_as_without(self):
        """Paired and interleaved: with the library, without, without again (the noise)."""
        with_library, without = self.environment(), self.machine.environment
        # A preloaded library costs its mapping and relocations, about 0.1 ms; /bin/true alone, 1 ms.
        allowed_s = 0.0005

        def once(environment):
            begin = time.perf_counter()
            subprocess.run(["/bin/true"], env=environment, check=True)
            return time.perf_counter() - begin

        with quiet.Watch() as watch:
            for _ in range(3):
                pairs = [(once(with_library), once(without), once(without)) for _ in range(150)]
                added = statistics.median(w - o for w, o, _ in pairs)
                noise = statistics.median(abs(o - p) for _, o, p in pairs)
                print(f"added {added * 1e6:.0f} us, noise {noise * 1e6:.0f} us")
                if added <= allowed_s + noise:
                    break
        watch.judge(self, added <= allowed_s + noise,
                    f"/bin/true starts {added * 1e6:.0f} us later than without prorata")


if __name__ == "__main__":
    unittest.main()
