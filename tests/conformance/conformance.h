#pragma once

// A suite of tests of the driver API, each of one rule and where it is documented. It runs on the
// simulated driver, loaded by path, on a machine of its own; with PRORATA_TEST_GPU=real on the
// machine's own driver (scripts/gpu_check.py).
//
//   RULE_TEST(CaptureTest, NothingRunsUntilLaunched,
//             "work launched into a capturing stream does not run until the graph is launched",
//             "CUDA Driver API, Stream Management, cuStreamBeginCapture") { ... }
//
// `build/tests/conformance_suite --list-rules` prints them all as JSON;
// docs/reference/conformance.md is made of that. What makes a rule's test fail is in
// mutations.toml.
//
// A test must hold on a GPU, too: device memory is read by copies (ReadWord) or is pinned memory of
// the host (HostWord), order is forced by gates (Gate) and not by how long things take.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "generated/cuda_abi.h"

namespace prorata::conformance {

inline constexpr uint64_t kMiB = 1 << 20;
inline constexpr uint64_t kMs = 1'000'000;  // in nanoseconds

// The address of an exported function, and nothing else: so that a test calls what a program would.
void* DriverSymbol(const char* name);

// CUDA(cuMemAlloc_v2)(&address, 100)
#define CUDA(name) (reinterpret_cast<decltype(&name)>(::prorata::conformance::DriverSymbol(#name)))

// The same, and it must succeed.
#define CUDA_OK(name, ...) ASSERT_EQ(CUDA(name)(__VA_ARGS__), CUDA_SUCCESS) << #name
#define CUDA_IS(result, name, ...) EXPECT_EQ(CUDA(name)(__VA_ARGS__), result) << #name

// A TEST_F with the rule that it holds and the document that states it.
#define RULE_TEST(fixture, name, rule, source)                                                \
  static const ::prorata::conformance::RuleRecord fixture##_##name##_rule{#fixture "." #name, \
                                                                          rule, source};      \
  TEST_F(fixture, name)

// Where rules are documented. Texts of the driver API are those of cuda.h 13.0, too.
#define DRIVER_API(where) "CUDA Driver API 13.0, " where
#define STREAM_API(function) DRIVER_API("Stream Management, " function)
#define EVENT_API(function) DRIVER_API("Event Management, " function)
#define DEFAULT_STREAMS(which) \
  DRIVER_API("Stream synchronization behavior, " which " default stream")
#define GUIDE(section) "CUDA C++ Programming Guide 13.0, " section

struct RuleRecord {
  RuleRecord(const char* test, const char* rule, const char* source);
};

// Whether the driver under test is the machine's own.
bool OnRealGpu();

// What the document says and, on a GPU, what an H100's driver (580.159.04) was seen to answer.
template <typename T>
T ButOnGpu(T documented, T seen) {
  return OnRealGpu() ? seen : documented;
}

// First in a test that only the simulated GPU can judge: it needs a host image, a machine's file,
// or states what the model does where the driver's documents leave it open.
#define SIMULATED_ONLY(why) \
  if (::prorata::conformance::OnRealGpu()) GTEST_SKIP() << "only for the simulated GPU: " why

// The image with the kernels of host_kernels.c: a host image for the simulated GPU, PTX for a real
// one.
std::string KernelImage();

// For tests of a process that has not called cuInit:
//
//   if (!InFreshProcess()) return;
//
// runs the current test again in a new process, where it is true; a failure there is one here.
bool InFreshProcess();
// The same on a simulated machine with more in its file (as TOML) than that of the other tests;
// true also on a GPU, which is as it is.
bool InFreshProcessOn(const char* machine);

// How long a stream is kept busy while the test does something meanwhile. A thread that came too
// late for that, and so has seen nothing (DriverTest::IsBusy), tries the next.
inline constexpr uint64_t kEverLongerMs[] = {50, 500, 5'000};

// How long something may take that must happen: far more than it takes.
std::chrono::seconds Patience();

// Holds streams up until it is opened, by a word of pinned memory that they wait for. While one is
// closed nothing may be called that waits for the whole device (cuMemFree, loading a module).
class Gate {
 public:
  Gate();
  ~Gate();  // opens it; the memory goes with the context
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  CUresult Hold(CUstream stream) const;
  void Open();

 private:
  uint32_t* word_ = nullptr;
  CUdeviceptr address_ = 0;
};

// A context on device 0, current. Every test gets its own.
class DriverTest : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  uint64_t FreeBytes();
  // A kernel of host_kernels.c.
  CUfunction Kernel(const char* name);
  // Launches `step`: *word = *word * factor + term, taking `ns` of device time.
  CUresult Step(CUstream stream, CUdeviceptr word, uint64_t factor, uint64_t term, uint64_t ns);
  uint64_t ReadWord(CUdeviceptr word);
  CUdeviceptr NewWord(uint64_t value);
  // A word of pinned memory that the device reaches at the same address, to be read at any time.
  volatile uint64_t* HostWord(uint64_t value);
  static CUdeviceptr AddressOf(const volatile uint64_t* word) {
    return reinterpret_cast<CUdeviceptr>(word);
  }

  CUstream NewStream(unsigned flags = CU_STREAM_NON_BLOCKING);
  CUevent NewEvent(unsigned flags = CU_EVENT_DISABLE_TIMING);
  // Returns when everything that could begin at the call has had its time: what is not done then is
  // held up. It must be of no more than a millisecond. Needs a gate to have been made.
  void Settle();
  static bool IsBusy(CUstream stream);
  // Whether `call` is still not done when it has slept, or has used a processor, for 50 ms; then
  // does `release`, and waits until the call is done. Called in a thread of its own, of this
  // context.
  bool Waits(const std::function<void()>& call, const std::function<void()>& release);
  // Whether the stream becomes idle, be it late: for what hangs when its rule is broken.
  bool Finishes(CUstream stream);
  // A closed gate that is opened, at the latest, before the context goes.
  Gate& NewGate();

  CUcontext ctx_ = nullptr;
  CUmodule module_ = nullptr;

 private:
  std::vector<std::unique_ptr<Gate>> gates_;
  // Settle's, made before a gate is closed.
  CUstream settle_stream_ = nullptr;
  volatile uint64_t* settle_word_ = nullptr;
};

}  // namespace prorata::conformance
