"""The assembler files link into shared objects that behave as the client library needs."""

import json
import unittest

import support
from model import load

# A resolver that behaves as badly as the ABI allows: it overwrites every register a callee may.
RESOLVER = r"""
#include <stdint.h>
#define CAT2(a, b) a##b
#define CAT(a, b) CAT2(a, b)
extern void* CAT(CAT(prorata_, LIB), _slots)[];
extern const char* const CAT(CAT(prorata_, LIB), _names)[];
static void* target_function;
static int asked, last_index, misaligned;
__attribute__((visibility("default"))) void test_target(void* p) { target_function = p; }
__attribute__((visibility("default"))) int test_asked(void) { return asked; }
__attribute__((visibility("default"))) int test_misaligned(void) { return misaligned; }
__attribute__((visibility("default"))) const char* test_last_name(void) {
  return CAT(CAT(prorata_, LIB), _names)[last_index];
}
__attribute__((visibility("default"))) void test_fill(int index) {
  CAT(CAT(prorata_, LIB), _slots)[index] = target_function;
}
__attribute__((visibility("default"))) int test_last_index(void) { return last_index; }
__attribute__((visibility("hidden"))) void* CAT(CAT(prorata_, LIB), _resolve)(uint32_t index) {
  asked++;
  last_index = (int)index;
  misaligned += ((uintptr_t)__builtin_frame_address(0) & 15) != 0;
  __asm__ volatile(
      "mov $-1, %%rdi\n mov $-1, %%rsi\n mov $-1, %%rdx\n mov $-1, %%rcx\n mov $-1, %%r8\n"
      "mov $-1, %%r9\n mov $-1, %%r10\n mov $-1, %%rax\n"
      "pcmpeqd %%xmm0, %%xmm0\n pcmpeqd %%xmm1, %%xmm1\n pcmpeqd %%xmm2, %%xmm2\n"
      "pcmpeqd %%xmm3, %%xmm3\n pcmpeqd %%xmm4, %%xmm4\n pcmpeqd %%xmm5, %%xmm5\n"
      "pcmpeqd %%xmm6, %%xmm6\n pcmpeqd %%xmm7, %%xmm7\n" ::
      : "rdi", "rsi", "rdx", "rcx", "r8", "r9", "r10", "rax", "xmm0", "xmm1", "xmm2", "xmm3",
        "xmm4", "xmm5", "xmm6", "xmm7");
  return target_function;
}
"""

# One function takes what registers and stack can carry; another is variadic.
CALLER = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
typedef int Many(long, long, long, long, long, long, double, double, double, double, double, double,
                 double, double, long, double, const char*);
static int many(long a, long b, long c, long d, long e, long f, double p, double q, double r,
                double s, double t, double u, double v, double w, long on_stack, double also,
                const char* text) {
  return a == 1 && b == 2 && c == 3 && d == 4 && e == 5 && f == 6 && p == .5 && q == 1.5 &&
         r == 2.5 && s == 3.5 && t == 4.5 && u == 5.5 && v == 6.5 && w == 7.5 && on_stack == 7 &&
         also == 8.5 && strcmp(text, "tail") == 0 ? 4711 : 0;
}
// Answers the register in which a variadic call says how many vector registers it uses.
int vector_count(int, ...);
__asm__("vector_count: movzbl %al, %eax\n ret\n");
static int nothing(void) { return 11; }
#define GET(type, name) __typeof__(type)* name = (__typeof__(type)*)dlsym(lib, #name)
#define CHECK(ok) if (!(ok)) return printf("line %d: %s\n", __LINE__, #ok), 1
int main(int argc, char** argv) {
  void* lib = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (!lib) return printf("%s\n", dlerror()), 1;
  GET(void(void*), test_target);
  GET(int(void), test_asked);
  GET(int(void), test_misaligned);
  GET(int(void), test_last_index);
  GET(const char*(void), test_last_name);
  GET(void(int), test_fill);
  CHECK(test_asked() == 0);
  Many* call = (Many*)dlsym(lib, argv[2]);
  test_target((void*)many);
  for (int round = 1; round <= 3; round++) {
    CHECK(call(1, 2, 3, 4, 5, 6, .5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 7, 8.5, "tail") == 4711);
    CHECK(test_asked() == (round < 3 ? round : 2));
    if (round == 2) test_fill(test_last_index());
  }
  int (*sum)(int, ...) = (int (*)(int, ...))dlsym(lib, argv[3]);
  test_target((void*)vector_count);
  CHECK(sum(3, 1.0, 2.0, 3.5) == 3);
  CHECK(test_misaligned() == 0);
  test_target((void*)nothing);
  for (int i = 4; i < argc; i++) {  // every export asks for its own index
    int (*f)(void) = (int (*)(void))dlsym(lib, argv[i]);
    if (!f || f() != 11 || strcmp(test_last_name(), argv[i])) return printf("%s\n", argv[i]), 1;
  }
  CHECK(test_asked() == 3 + argc - 4);
  CHECK(test_misaligned() == 0);
  return 0;
}
"""


class TrampolineTest(support.ToolTest):
    def check(self, lib, assembly, version_script):
        library = load(lib)
        exports = [f.symbol for f in library.functions if not f.overridden]
        resolver = self.write("resolver.c", RESOLVER)
        word = "driver" if lib == "cuda" else lib
        # The map exports nothing but the library's names; the test's own come on top.
        text = (support.built() / version_script).read_text()
        script = self.write("test.map", text.replace("global:", "global: test_*;", 1))
        self.run_tool("gcc", "-shared", "-fPIC", "-O1", f"-DLIB={word}", "-Wl,-z,defs",
                      "-Wl,-z,relro,-z,now,-z,text", "-Wl,--fatal-warnings",
                      f"-Wl,--version-script={script}", resolver, support.built() / assembly,
                      "-o", "lib.so")
        caller = self.write("caller.c", CALLER)
        self.run_tool("gcc", "-O1", caller, "-ldl", "-o", "caller")
        found = {s for s in self.dynamic_symbols("lib.so") if not s.startswith("test_")}
        self.assertEqual(found, set(exports))
        for function in library.functions:
            if function.overridden:
                self.assertNotIn(function.symbol, found)
        first, second, *rest = exports
        self.run_tool(self.scratch / "caller", self.scratch / "lib.so", first, second, *rest)
        stack = [line for line in self.run_tool("readelf", "-lW", "lib.so").splitlines()
                 if "GNU_STACK" in line]
        self.assertEqual([("E" in line.split()[6]) for line in stack], [False])

    def test_driver_calls_keep_their_arguments(self):
        self.check("cuda", "driver_trampolines.S", "client_cuda.map")

    def test_nvml_calls_keep_their_arguments(self):
        self.check("nvml", "nvml_trampolines.S", "client_nvml.map")

    def test_an_override_calls_the_driver_through_its_slot(self):
        source = self.write("override.c", RESOLVER + r"""
#include "driver_index.h"
__attribute__((visibility("default"))) int cuInit(unsigned flags) {
  return 1000 + ((int (*)(unsigned))prorata_driver_slots[kIndex])(flags);
}
""")
        index = load("cuda").by_symbol["cuInit"].index
        self.write("driver_index.h", f"enum {{ kIndex = {index} }};\n")
        main = self.write("main.c", r"""
extern int cuInit(unsigned);
extern void test_target(void*);
static int driver_init(unsigned flags) { return (int)flags + 1; }
int main(void) { test_target((void*)driver_init); return cuInit(5) == 1006 ? 0 : 1; }
""")
        self.run_tool("gcc", "-shared", "-fPIC", "-DLIB=driver", f"-I{self.scratch}", source,
                      support.built() / "driver_trampolines.S", "-o", "liboverride.so")
        self.run_tool("gcc", main, "liboverride.so", f"-Wl,-rpath,{self.scratch}", "-o", "main")
        self.run_tool(self.scratch / "main")


class DefaultsTest(support.ToolTest):
    def build(self, assembly, version_script, strong):
        source = self.write("strong.c", strong)
        self.run_tool("gcc", "-shared", "-fPIC", "-Wl,-z,defs", "-Wl,--fatal-warnings",
                      f"-Wl,--version-script={support.built() / version_script}",
                      support.built() / assembly, source, "-o", "lib.so")

    def call(self, *expectations):
        """Each expectation: C text that must be true, with `lib` the opened library."""
        checks = "\n".join(f"  if (!({e})) return puts({json.dumps(e)}), 1;" for e in expectations)
        source = self.write("calls.c", "#include <dlfcn.h>\n#include <stdio.h>\n"
                            "#include <string.h>\n"
                            "#define CALL(name) ((int (*)(void))dlsym(lib, #name))()\n"
                            "#define TEXT(name) ((const char* (*)(void))dlsym(lib, #name))()\n"
                            "int main(int argc, char** argv) {\n"
                            "  void* lib = dlopen(argv[argc - 1], RTLD_NOW);\n"
                            f"  if (!lib) return 1;\n{checks}\n  return 0;\n}}\n")
        self.run_tool("gcc", source, "-ldl", "-o", "calls")
        self.run_tool(self.scratch / "calls", self.scratch / "lib.so")

    def assert_exports_all(self, name):
        self.assertEqual(self.dynamic_symbols("lib.so"),
                         {f.symbol for f in load(name).functions})

    def test_simulated_driver_answers_not_supported_unless_defined(self):
        self.build("simgpu_cuda_defaults.S", "simgpu_cuda.map", "int cuInit(void) { return 42; }")
        self.assert_exports_all("cuda")
        self.call("CALL(cuInit) == 42", "CALL(cuDriverGetVersion) == 801",
                  "CALL(cuMemAlloc_v2) == 801")

    def test_simulated_nvml_answers_not_supported_unless_defined(self):
        self.build("simgpu_nvml_defaults.S", "simgpu_nvml.map",
                   "int nvmlInit_v2(void) { return 42; }")
        self.assert_exports_all("nvml")
        self.call("CALL(nvmlInit_v2) == 42", "CALL(nvmlShutdown) == 3",
                  "strlen(TEXT(nvmlErrorString)) > 0")

    def test_null_drivers_answer_success(self):
        self.build("null_cuda_driver.S", "simgpu_cuda.map", "")
        self.assert_exports_all("cuda")
        self.call("CALL(cuInit) == 0", "CALL(cuLaunchKernel) == 0")
        self.build("null_nvml_driver.S", "simgpu_nvml.map", "")
        self.assert_exports_all("nvml")
        self.call("CALL(nvmlInit_v2) == 0", "strlen(TEXT(nvmlErrorString)) > 0")


if __name__ == "__main__":
    unittest.main()
