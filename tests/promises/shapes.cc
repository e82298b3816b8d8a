// shapes: a program of one shape on the GPU, for ever or for --rounds.
//
//   shapes MODE --kernels FILE --progress FILE [--wait-for FILE] [--dilation K] [--option N ...]
//
// It makes what it needs, prints {"event": "ready"}, waits until the file of --wait-for exists, and
// works. Its progress is one word in a mapped file: each kernel adds its nanoseconds when it is
// done (host kernels run in the program and may write there), so that whoever looks at two moments
// knows its speed. Times are the simulated machine's; --dilation says how many real ones one of
// them is.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/promises/device.h"

namespace prorata::shapes {
namespace {

class Program {
 public:
  explicit Program(const Options& options)
      : options_(options),
        dilation_(options.Number("dilation", 1)),
        rounds_(options.Number("rounds", INT64_MAX)),
        kernel_ns_(1000 * options.Number("kernel-us", 1000)),
        kernel_ns_max_(1000 * options.Number("kernel-max-us", 0)),
        random_(static_cast<uint64_t>(options.Number("seed", 1))),
        progress_(MapProgress(options.Text("progress"))) {
    SHAPES_CALL(cuInit, 0);
    for (int i = static_cast<int>(options.Number("devices", 1)) - 1; i >= 0; --i) {
      devices_.insert(devices_.begin(), Device(i, options.Text("kernels")));
    }
    // A sleep is part of the shape: the kernel's 50 us of timer slack would lengthen it.
    ::prctl(PR_SET_TIMERSLACK, 1);
  }

  int Run() {
    static const std::map<std::string, void (Program::*)()> modes = {
        {"busy", &Program::Busy},
        {"requests", &Program::Requests},
        {"idle-streams", &Program::IdleStreams},
        {"blocked", &Program::Blocked},
        {"self-release", &Program::SelfRelease},
        {"host-function", &Program::HostFunction},
        {"graph-two-devices", &Program::GraphTwoDevices},
        {"liar", &Program::Liar},
    };
    const auto mode = modes.find(options_.mode);
    if (mode == modes.end()) {
      std::fprintf(stderr, "unknown mode '%s'\n", options_.mode.c_str());
      return 2;
    }
    (this->*mode->second)();
    std::printf("{\"event\": \"done\"}\n");
    return 0;
  }

 private:
  uint64_t NextNs() {
    if (kernel_ns_max_ <= kernel_ns_) return static_cast<uint64_t>(kernel_ns_);
    // What a kernel takes depends on its data alone: now and then very long, or anything between.
    if (const int64_t rare = options_.Number("rare", 0); rare > 0) {
      const bool is_long = std::uniform_int_distribution<int64_t>(1, rare)(random_) == 1;
      return static_cast<uint64_t>(is_long ? kernel_ns_max_ : kernel_ns_);
    }
    std::uniform_real_distribution<double> exponent(0, 1);
    return static_cast<uint64_t>(
        static_cast<double>(kernel_ns_) *
        std::pow(static_cast<double>(kernel_ns_max_) / static_cast<double>(kernel_ns_),
                 exponent(random_)));
  }

  void Launch(const Device& device, CUstream stream, uint64_t ns, unsigned blocks = kBlocks) {
    device.Launch(progress_, stream, ns, blocks);
  }

  void SleepUs(int64_t us) const {
    if (us > 0) std::this_thread::sleep_for(std::chrono::microseconds(us * dilation_));
  }

  // All is made: what follows is measured.
  void AwaitBegin() {
    std::printf("{\"event\": \"ready\"}\n");
    std::fflush(stdout);
    const std::string barrier = options_.Text("wait-for");
    while (!barrier.empty() && ::access(barrier.c_str(), F_OK) != 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }

  // Kernels round and round over --streams, a synchronisation of each after --per-sync of them, and
  // then --gap-us asleep.
  void Busy() {
    const Device& device = devices_[0];
    std::vector<CUstream> streams;
    for (int64_t i = 0; i < options_.Number("streams", 1); ++i) streams.push_back(device.Stream());
    const int64_t per_sync = options_.Number("per-sync", 4);
    const int64_t gap_us = options_.Number("gap-us", 0);
    const auto blocks = static_cast<unsigned>(options_.Number("blocks", kBlocks));
    AwaitBegin();
    for (int64_t round = 0; round < rounds_; ++round) {
      for (int64_t i = 0; i < per_sync; ++i) {
        Launch(device, streams[static_cast<size_t>(i) % streams.size()], NextNs(), blocks);
      }
      for (CUstream stream : streams) SHAPES_CALL(cuStreamSynchronize, stream);
      SleepUs(gap_us);
    }
  }

  // A stream per request.
  void Requests() {
    AwaitBegin();
    for (int64_t round = 0; round < rounds_; ++round) {
      const CUstream stream = devices_[0].Stream();
      Launch(devices_[0], stream, NextNs());
      SHAPES_CALL(cuStreamSynchronize, stream);
      SHAPES_CALL(cuStreamDestroy_v2, stream);
    }
  }

  // --idle streams live on, --used of them after a kernel; work in one that was made after them.
  void IdleStreams() {
    const Device& device = devices_[0];
    for (int64_t i = 0; i < options_.Number("idle", 1100); ++i) {
      const CUstream stream = device.Stream();
      if (i < options_.Number("used", 0)) Launch(device, stream, 1000, 1);
    }
    SHAPES_CALL(cuCtxSynchronize);
    Busy();
  }

  // --batches in a stream behind a word that nobody writes, each followed by a little in another
  // stream and a pause, so that they are batches; then work in other streams.
  void Blocked() {
    const Device& device = devices_[0];
    const CUstream blocked = device.Stream();
    const CUstream free = device.Stream();
    CUdeviceptr flag = 0;
    SHAPES_CALL(cuMemAlloc_v2, &flag, 4096);
    SHAPES_CALL(cuMemsetD8_v2, flag, 0, 4096);
    SHAPES_CALL(cuStreamWaitValue32_v2, blocked, flag, 1, kGeq);
    for (int64_t i = 0; i < options_.Number("batches", 300); ++i) {
      Launch(device, blocked, 1000 * static_cast<uint64_t>(options_.Number("blocked-us", 10)));
      Launch(device, free, 5'000);
      SHAPES_CALL(cuStreamSynchronize, free);
      SleepUs(options_.Number("pause-us", 0));
    }
    Busy();
  }

  // Kernels behind a wait that this thread ends afterwards, by a word of host memory or by a write
  // in another stream; now more of them than any bound holds, now one. Up to --pause-us before the
  // wait nothing is launched: then the library fences what is under way by itself.
  void SelfRelease() {
    const Device& device = devices_[0];
    const CUstream gated = device.Stream();
    const CUstream other = device.Stream();
    void* shared = nullptr;
    SHAPES_CALL(cuMemHostAlloc, &shared, 4096, 0);
    auto* word = static_cast<uint32_t*>(shared);
    std::memset(shared, 0, 4096);
    const auto address = static_cast<CUdeviceptr>(reinterpret_cast<uint64_t>(shared));
    AwaitBegin();
    const int64_t rounds = options_.Number("rounds", 12);
    const int64_t before = options_.Number("before", 0);
    const int64_t pause_us = options_.Number("pause-us", 0);
    for (int64_t round = 1; round <= rounds; ++round) {
      const auto value = static_cast<uint32_t>(round);
      const uint64_t behind = std::uniform_int_distribution<uint64_t>(1, 60)(random_);
      for (int64_t i = 0; i < before; ++i) Launch(device, gated, NextNs());
      if (pause_us > 0) SleepUs(std::uniform_int_distribution<int64_t>(0, pause_us)(random_));
      SHAPES_CALL(cuStreamWaitValue32_v2, gated, address, value, kGeq);
      for (uint64_t i = 0; i < behind; ++i) {
        Launch(device, gated, NextNs());
        if (round % 3 == 0) Launch(device, other, NextNs() / 4);
      }
      if (round % 2 == 0) {
        SHAPES_CALL(cuStreamWriteValue32_v2, other, address, value, 0);
      } else {
        __atomic_store_n(word, value, __ATOMIC_SEQ_CST);
      }
      SHAPES_CALL(cuStreamSynchronize, gated);
    }
  }

  // A host function of --host-us, then kernels of --work-us in all behind it.
  void HostFunction() {
    const Device& device = devices_[0];
    const CUstream stream = device.Stream();
    const int64_t kernels = options_.Number("work-us", 200'000) * 1000 / kernel_ns_;
    host_us_ = options_.Number("host-us", 20'000);
    AwaitBegin();
    const CUhostFn sleep = [](void* self) {
      const auto* program = static_cast<Program*>(self);
      program->SleepUs(program->host_us_);
    };
    for (int64_t round = 0; round < rounds_; ++round) {
      SHAPES_CALL(cuLaunchHostFunc, stream, sleep, this);
      for (int64_t i = 0; i < kernels; ++i) Launch(device, stream, NextNs());
      SHAPES_CALL(cuStreamSynchronize, stream);
    }
  }

  // A graph with a small kernel on the first device, in whose stream it is launched, and the work
  // on the second.
  void GraphTwoDevices() {
    CUgraph graph = nullptr;
    SHAPES_CALL(cuGraphCreate, &graph, 0);
    uint64_t values[] = {reinterpret_cast<uint64_t>(progress_), 1, 0, 0};
    void* params[] = {&values[0], &values[1], &values[2], &values[3]};
    CUgraphNode last = nullptr;
    for (size_t i = 0; i < 2; ++i) {
      CUDA_KERNEL_NODE_PARAMS node;
      std::memset(&node, 0, sizeof node);
      node.func = devices_[i].step;
      node.ctx = devices_[i].context;
      node.gridDimX = kBlocks;
      node.gridDimY = node.gridDimZ = 1;
      node.blockDimX = kThreads;
      node.blockDimY = node.blockDimZ = 1;
      node.kernelParams = params;
      values[2] = values[3] = i == 0 ? 10'000 : NextNs();
      SHAPES_CALL(cuGraphAddKernelNode_v2, &last, graph, i == 0 ? nullptr : &last, i, &node);
    }
    devices_[0].Use();
    CUgraphExec executable = nullptr;
    SHAPES_CALL(cuGraphInstantiateWithFlags, &executable, graph, 0);
    const CUstream stream = devices_[0].Stream();
    AwaitBegin();
    for (int64_t round = 0; round < rounds_; ++round) {
      SHAPES_CALL(cuGraphLaunch, executable, stream);
      SHAPES_CALL(cuStreamSynchronize, stream);
    }
  }

  // Works, and writes random words into the usage memory by which the agent knows it.
  void Liar() {
    std::thread([seed = random_()] {
      std::mt19937_64 random(seed);
      const auto [begin, end] = UsageMemory();
      while (begin != end) {
        begin[random() % static_cast<uint64_t>(end - begin)] =
            random() % 2 == 0 ? random() : random() % 1'000'000;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }).detach();
    Busy();
  }

  // Begin and end of what the client library has mapped; the same where there is none.
  static std::pair<volatile uint64_t*, volatile uint64_t*> UsageMemory() {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      unsigned long begin = 0;
      unsigned long end = 0;
      if (line.find("prorata-usage") != std::string::npos &&
          std::sscanf(line.c_str(), "%lx-%lx", &begin, &end) == 2) {
        return {reinterpret_cast<volatile uint64_t*>(begin),
                reinterpret_cast<volatile uint64_t*>(end)};
      }
    }
    return {nullptr, nullptr};
  }

  const Options& options_;
  const int64_t dilation_;
  const int64_t rounds_;
  const int64_t kernel_ns_;
  const int64_t kernel_ns_max_;
  std::mt19937_64 random_;
  uint64_t* const progress_;
  int64_t host_us_ = 0;
  std::vector<Device> devices_;
};

}  // namespace
}  // namespace prorata::shapes

int main(int argc, char** argv) {
  const prorata::shapes::Options options = prorata::shapes::Parse(argc, argv);
  return prorata::shapes::Program(options).Run();
}
