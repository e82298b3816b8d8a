"""A program with the client library that finds no share says so: once, in one line, whatever it calls. So does
one whose C library is musl, which finds no driver that it could load."""
import shutil
import subprocess
import unittest

import harness

CUDA = """
import ctypes
driver = ctypes.CDLL("libcuda.so.1")
for _ in range(3):
    print(driver.cuInit(0), flush=True)
"""
NVML = """
import ctypes
nvml = ctypes.CDLL("libnvidia-ml.so.1")
device, memory = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
print(nvml.nvmlInit_v2())
for _ in range(3):
    nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
    print(nvml.nvmlDeviceGetMemoryInfo(device, memory))
"""
# Opens a library, and calls one of its functions as often as it is asked to.
MUSL = """
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char** argv) {
  void* library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : 0;
  int (*function)(unsigned) = library ? (int (*)(unsigned))dlsym(library, argv[2]) : 0;
  for (int i = 0; function && i < atoi(argv[3]); ++i) printf("%d\\n", function(0));
  puts(argc > 1 && !library ? dlerror() : "ended");
  return 0;
}
"""
NO_DEVICE, LIBRARY_NOT_FOUND = 100, 12  # of CUDA, and of NVML


class LostShare(harness.MachineTestCase):
    def run_python(self, program, **environment):
        status, out, err = self.machine.call(
            ["python3", "-c", program],
            environment={"LD_LIBRARY_PATH": str(harness.LIB_DIR), **environment})
        self.assertEqual(status, 0, err)
        return [int(line) for line in out.split()], err

    def said(self, err, *words):
        self.assertEqual((err.count("\n"), err[:9]), (1, "prorata: "), err)
        for word in words:
            self.assertIn(word, err)

    def test_no_share_is_named(self):
        # It runs as without prorata, and nobody takes it for held.
        results, err = self.run_python(CUDA)
        self.assertEqual(results, [0, 0, 0])
        self.said(err, "PRORATA_SHARE is not set", "/run/prorata/share", "no limits",
                  "prorata run")

    def test_preloaded_and_the_name_is_empty(self):
        results, err = self.run_python(CUDA, LD_PRELOAD=str(harness.LIB_DIR / "libcuda.so.1"),
                                       PRORATA_SHARE="")
        self.assertEqual(results, [0, 0, 0])
        self.said(err, "PRORATA_SHARE is empty", "no limits")

    def test_the_share_is_gone(self):
        for folder in ("/no/such", str(self.machine.folder)):
            results, err = self.run_python(CUDA, PRORATA_SHARE=folder)
            self.assertNotIn(0, results)
            self.said(err, folder, "PRORATA_SHARE")

    def test_a_name_that_is_too_long_is_not_skipped(self):
        results, err = self.run_python(CUDA, PRORATA_SHARE="/" + "x" * 600)
        self.assertNotIn(0, results)
        self.said(err, "PRORATA_SHARE", "too long")

    def test_nvml_says_that_it_shows_the_whole_gpu(self):
        for environment, word in (({"PRORATA_SHARE": "/no/such"}, "/no/such"),
                                  ({"PRORATA_SHARE": "/" + "x" * 600}, "too long")):
            results, err = self.run_python(NVML, **environment)
            self.assertEqual(results, [0] * 4)
            self.said(err, word, "whole GPU")

    def test_a_program_that_never_uses_the_gpu_says_nothing(self):
        status, out, err = self.machine.call(
            ["echo", "x"], environment={"LD_PRELOAD": str(harness.LIB_DIR / "libcuda.so.1")})
        self.assertEqual((status, out, err), (0, "x\n", ""))

    def run_musl(self, *arguments, shell=False):
        compiler = shutil.which("musl-gcc")
        if compiler is None:
            self.skipTest("no musl-gcc (scripts/setup.sh build)")
        program = self.machine.folder / "program"
        subprocess.run([compiler, "-x", "c", "-o", program, "-"], input=MUSL, text=True, check=True)
        command = ["sh", "-c", "\"$0\" \"$@\"; exit $?", program] if shell else [program]
        status, out, err = self.machine.call(
            self.machine.command(["--name", "musl", "--memory", "1GiB"], [*command, *arguments]))
        self.assertEqual(status, 0, err)
        return out.split(), err

    def test_a_program_of_musl_starts(self):
        for shell in (False, True):
            self.assertEqual(self.run_musl(shell=shell), (["ended"], ""))

    def test_a_program_of_musl_that_wants_the_gpu_is_reported(self):
        for library, function, answer in (("libcuda.so.1", "cuInit", NO_DEVICE),
                                          ("libnvidia-ml.so.1", "nvmlInit_v2", LIBRARY_NOT_FOUND)):
            with self.subTest(library=library):
                answers, err = self.run_musl(library, function, 3)
                self.assertEqual(answers, [str(answer)] * 3 + ["ended"])
                self.said(err, library, "not glibc", "no limits", "not counted")


if __name__ == "__main__":
    unittest.main()
