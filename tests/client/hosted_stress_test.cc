// 64 threads that do what programs do to a driver, all at once, for a sanitizer to look at. What is
// right is that nothing is left: no charge, no work, no child that waits. PRORATA_TEST_SEED and
// PRORATA_STRESS_SECONDS choose another run, and a longer one.

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "tests/client/hosted_share.h"

namespace prorata {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int kThreads = 64;
constexpr size_t kBytes = 4 << 20;

unsigned Setting(const char* name, unsigned otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? static_cast<unsigned>(std::strtoul(text, nullptr, 10)) : otherwise;
}

// Streams of the primary context that all threads use, and an event of each.
struct Common {
  CUcontext primary = nullptr;
  CUstream streams[4] = {};
  CUevent events[4] = {};
  std::atomic<bool> over{false};
  std::atomic<int> errors{0}, children{0};
  std::atomic<uint64_t> done[8] = {};
};

class Worker {
 public:
  Worker(Common& all, unsigned seed) : all_(all), random_(seed) {}

  void Run() {
    Expect(cuCtxSetCurrent(all_.primary));
    while (!all_.over.load(std::memory_order_relaxed)) {
      const unsigned what = random_() % 64;
      if (what < 16)
        Shared();
      else if (what < 28)
        OwnStream();
      else if (what < 36)
        Capture();
      else if (what < 50)
        Memory();
      else if (what < 56)
        Pool();
      else if (what < 60)
        Context();
      else if (what == 60)
        Child(random_() % 2 == 0);
      else
        Look();
    }
  }

 private:
  void Expect(CUresult result) {
    if (result != CUDA_SUCCESS) all_.errors.fetch_add(1);
  }
  void Did(int what) { all_.done[what].fetch_add(1, std::memory_order_relaxed); }

  void Launch(CUstream stream, int count) {
    for (int i = 0; i < count; ++i) {
      const auto function = reinterpret_cast<CUfunction>(0x5000 + random_() % 8 * 16);
      Expect(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, nullptr, nullptr));
    }
  }

  void Shared() {
    const unsigned at = random_() % 4, other = random_() % 4;
    Launch(all_.streams[at], 8);
    Expect(cuEventRecord(all_.events[at], all_.streams[at]));
    Expect(cuStreamWaitEvent(all_.streams[other], all_.events[at], 0));
    Launch(random_() % 2 == 0 ? nullptr : CU_STREAM_PER_THREAD, 2);
    if (random_() % 4 == 0) Expect(cuStreamSynchronize(all_.streams[other]));
    Did(0);
  }

  void OwnStream() {
    CUstream stream = nullptr;
    CUevent event = nullptr;
    Expect(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    Expect(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    Launch(stream, 20);
    Expect(cuEventRecord(event, stream));
    Expect(cuStreamWaitEvent(all_.streams[0], event, 0));
    Expect(cuMemsetD8Async(0x1000, 0, 4096, stream));
    if (random_() % 2 == 0) Expect(cuStreamSynchronize(stream));
    Expect(cuEventDestroy_v2(event));
    Expect(cuStreamDestroy_v2(stream));
    Did(1);
  }

  void Capture() {
    CUstream stream = nullptr;
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    Expect(cuStreamCreate(&stream, 0));
    Expect(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    Launch(stream, 4);
    Expect(cuStreamEndCapture(stream, &graph));
    Expect(cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int i = 0; i < 3; ++i) Expect(cuGraphLaunch(exec, stream));
    Expect(cuGraphExecDestroy(exec));
    Expect(cuGraphDestroy(graph));
    Expect(cuStreamDestroy_v2(stream));
    Did(2);
  }

  void Memory() {
    CUdeviceptr plain = 0, ordered = 0;
    Expect(cuMemAlloc_v2(&plain, kBytes));
    Expect(cuMemAllocAsync(&ordered, kBytes, all_.streams[1]));
    Expect(cuMemFreeAsync(ordered, all_.streams[2]));
    Expect(cuMemFree_v2(plain));
    Did(3);
  }

  void Pool() {
    CUmemPoolProps props = {};
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemoryPool pool = nullptr;
    CUdeviceptr address = 0;
    Expect(cuMemPoolCreate(&pool, &props));
    Expect(cuMemAllocFromPoolAsync(&address, kBytes, pool, all_.streams[0]));
    Expect(cuMemFreeAsync(address, all_.streams[0]));
    Expect(cuMemPoolTrimTo(pool, 0));
    Expect(cuMemPoolDestroy(pool));
    Did(4);
  }

  void Context() {
    CUcontext context = nullptr;
    CUstream stream = nullptr;
    Expect(cuCtxCreate_v2(&context, 0, 0));
    Expect(cuStreamCreate(&stream, 0));
    Launch(stream, 10);
    Launch(nullptr, 2);
    CUdeviceptr address = 0;
    Expect(cuMemAlloc_v2(&address, kBytes));
    if (random_() % 2 == 0) Expect(cuCtxSynchronize());
    if (random_() % 2 == 0) Expect(cuStreamDestroy_v2(stream));
    Expect(cuCtxDestroy_v2(context));
    Expect(cuCtxSetCurrent(all_.primary));
    Did(5);
  }

  // A child of a process that uses CUDA has no CUDA: its calls are the driver's alone, whatever the
  // threads that it does not have were in the middle of.
  void Child(bool uses) {
    constexpr int kMaxChildren = 60;
    if (all_.children.fetch_add(1) >= kMaxChildren) return;
    const pid_t child = fork();
    if (child == 0) {
      bool good = true;
      if (uses) {
        CUdeviceptr address = 0;
        CUstream stream = nullptr;
        good = cuInit(0) == CUDA_SUCCESS && cuMemAlloc_v2(&address, kBytes) == CUDA_SUCCESS &&
               cuStreamCreate(&stream, 0) == CUDA_SUCCESS &&
               cuLaunchKernel(reinterpret_cast<CUfunction>(0x5000), 1, 1, 1, 1, 1, 1, 0, stream,
                              nullptr, nullptr) == CUDA_SUCCESS &&
               cuMemFree_v2(address) == CUDA_SUCCESS && cuStreamDestroy_v2(stream) == CUDA_SUCCESS;
      }
      _exit(good ? 0 : 1);
    }
    if (child < 0 || StatusOf(child) != 0) all_.errors.fetch_add(1);
    Did(6);
  }

  void Look() {
    size_t free = 0, total = 0;
    Expect(cuMemGetInfo_v2(&free, &total));
    void* function = nullptr;
    Expect(cuGetProcAddress_v2("cuLaunchKernel", &function, 12000, 0, nullptr));
    if (random_() % 8 == 0) Expect(cuCtxSynchronize());
    Did(7);
  }

  Common& all_;
  std::minstd_rand random_;
};

// The agent takes the lease away and gives it again, for 2 ms of 5.
void Revoke(shm::DeviceLimits& limits, const std::atomic<bool>& over) {
  for (uint32_t sequence = 1; !over; ++sequence) {
    const uint32_t word = sequence << shm::kLeaseSequenceShift;
    std::this_thread::sleep_for(milliseconds(3));
    limits.lease.store(word | shm::kLeaseContended);
    std::this_thread::sleep_for(milliseconds(2));
    limits.lease.store(word | 2 << shm::kLeaseSequenceShift | shm::kLeaseOpen);
  }
}

TEST_F(HostedShare, SixtyFourThreadsAtOnceLeaveNothingBehind) {
  setenv("NULL_PENDING", "2", 1);
  Start();
  Common all;
  all.primary = primary_;
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(cuStreamCreate(&all.streams[i], i % 2), CUDA_SUCCESS);
    ASSERT_EQ(cuEventCreate(&all.events[i], CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  }
  const unsigned first = Setting("PRORATA_TEST_SEED", 1);
  const unsigned seconds = Setting("PRORATA_STRESS_SECONDS", 6);
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kThreads; ++i) {
    threads.emplace_back([&all, seed = first + i] { Worker(all, seed).Run(); });
  }
  std::thread agent([&] { Revoke(share_->limits().devices[0], all.over); });
  std::this_thread::sleep_for(std::chrono::seconds(seconds));
  all.over = true;
  agent.join();
  share_->limits().devices[0].lease.store(shm::kLeaseOpen);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(all.errors.load(), 0);
  for (int i = 0; i < 8; ++i) EXPECT_NE(all.done[i].load(), 0u) << i;
  for (CUstream stream : all.streams) EXPECT_EQ(cuStreamDestroy_v2(stream), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
  EXPECT_EQ(usage().used_bytes.load(), 0u);
  EXPECT_EQ(usage().overhead_bytes.load(), 0u);
}

}  // namespace
}  // namespace prorata
