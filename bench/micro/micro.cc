// What the client library adds to a driver call, in nanoseconds, over a driver that costs next to
// nothing (bench/null_driver), limits on, lease open. Bare and governed batches alternate in one
// run and both end in the same loaded driver, so that a noisy machine disturbs both alike; medians.
//
//   micro [--json] [--rounds N] [--dir BUILD] [--case NAME]      exit 1: a bar of DESIGN "The bars"
//   is broken

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "bench/micro/fixture_share.h"
#include "bench/null_driver/null_driver.h"
#include "generated/cuda_abi.h"

namespace prorata::bench {
namespace {

constexpr int kCalls = 1000;
constexpr int kBatches = 31;

// The functions of one library.
struct Api {
  decltype(&::cuInit) init;
  decltype(&::cuDevicePrimaryCtxRetain) retain;
  decltype(&::cuCtxSetCurrent) set_current;
  decltype(&::cuCtxGetCurrent) get_current;
  decltype(&::cuStreamCreate) stream_create;
  decltype(&::cuLaunchKernel) launch;
  decltype(&::cuMemGetInfo_v2) mem_get_info;
  decltype(&::cuMemAlloc_v2) alloc;
  decltype(&::cuMemFree_v2) free;
  decltype(&::cuMemAllocAsync) alloc_async;
  decltype(&::cuMemFreeAsync) free_async;
  CUstream stream;
};

template <typename F>
void Find(void* library, const char* name, F* function) {
  *function = reinterpret_cast<F>(dlsym(library, name));
  if (*function == nullptr) {
    std::fprintf(stderr, "micro: %s\n", dlerror());
    std::exit(2);
  }
}

void Must(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "micro: %s answered %d\n", what, static_cast<int>(result));
  std::exit(2);
}

Api Open(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "micro: cannot load %s: %s\n", path.c_str(), dlerror());
    std::exit(2);
  }
  Api api = {};
  Find(library, "cuInit", &api.init);
  Find(library, "cuDevicePrimaryCtxRetain", &api.retain);
  Find(library, "cuCtxSetCurrent", &api.set_current);
  Find(library, "cuCtxGetCurrent", &api.get_current);
  Find(library, "cuStreamCreate", &api.stream_create);
  Find(library, "cuLaunchKernel", &api.launch);
  Find(library, "cuMemGetInfo_v2", &api.mem_get_info);
  Find(library, "cuMemAlloc_v2", &api.alloc);
  Find(library, "cuMemFree_v2", &api.free);
  Find(library, "cuMemAllocAsync", &api.alloc_async);
  Find(library, "cuMemFreeAsync", &api.free_async);
  CUcontext context;
  Must(api.init(0), "cuInit");
  Must(api.retain(&context, 0), "cuDevicePrimaryCtxRetain");
  Must(api.set_current(context), "cuCtxSetCurrent");
  Must(api.stream_create(&api.stream, 0), "cuStreamCreate");
  return api;
}

void Launch(const Api& api) {
  api.launch(reinterpret_cast<CUfunction>(0x5000), 1, 1, 1, 32, 1, 1, 0, api.stream, nullptr,
             nullptr);
}

void GetCurrent(const Api& api) {
  CUcontext context;
  api.get_current(&context);
}

void MemGetInfo(const Api& api) {
  size_t free, total;
  api.mem_get_info(&free, &total);
}

template <size_t kBytes>
void AllocFree(const Api& api) {
  CUdeviceptr address;
  if (api.alloc(&address, kBytes) == CUDA_SUCCESS) api.free(address);
}

void PoolAllocFree(const Api& api) {
  CUdeviceptr address;
  if (api.alloc_async(&address, 4096, api.stream) == CUDA_SUCCESS) {
    api.free_async(address, api.stream);
  }
}

double NsPerCall(const Api& api, void (*call)(const Api&), int calls) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) call(api);
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
  return took.count() / calls;
}

double OneThread(const Api& api, void (*call)(const Api&)) { return NsPerCall(api, call, kCalls); }

// Four threads at once, long enough to be really at once (a batch of one thread would be over
// before the next one is awake); the mean of what each of them saw per call.
double FourThreads(const Api& api, void (*call)(const Api&)) {
  constexpr int kThreads = 4;
  double ns[kThreads] = {};
  std::barrier start(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      CUcontext context;
      api.retain(&context, 0);
      api.set_current(context);
      call(api);
      start.arrive_and_wait();
      ns[t] = NsPerCall(api, call, 20 * kCalls);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return (ns[0] + ns[1] + ns[2] + ns[3]) / kThreads;
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

struct Case {
  const char* name;
  double bar_ns;
  void (*call)(const Api&);
  double (*measure)(const Api&, void (*)(const Api&));
};

struct Outcome {
  double bare_ns, governed_ns;
};

// Each round gives a median of each; the round with the smallest difference is the least disturbed.
Outcome Measure(const Case& one, const Api& bare, const Api& governed, int rounds) {
  std::vector<double> bare_ns, governed_ns;
  for (int round = 0; round < rounds; ++round) {
    for (int batch = 0; batch < kBatches; ++batch) {
      bare_ns.push_back(one.measure(bare, one.call));
      governed_ns.push_back(one.measure(governed, one.call));
    }
  }
  return {Median(bare_ns), Median(governed_ns)};
}

constexpr Case kCases[] = {
    {"launch", 15, Launch, OneThread},
    {"untouched", 1, GetCurrent, OneThread},
    {"mem_get_info", 20, MemGetInfo, OneThread},
    {"alloc_free_4KiB", 100, AllocFree<4096>, OneThread},
    {"alloc_free_8MiB", 100, AllocFree<(8u << 20)>, OneThread},
    {"alloc_free_4_threads", 300, AllocFree<4096>, FourThreads},
    {"pool_4_threads", 300, PoolAllocFree, FourThreads},
};

bool HasCase(const char* name) {
  return std::ranges::any_of(kCases,
                             [name](const Case& one) { return std::strcmp(one.name, name) == 0; });
}

int Run(const std::string& build, int rounds, bool json, const char* only) {
  std::string folder = "/tmp/prorata-micro-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) {
    std::perror("micro: cannot make a folder in /tmp");
    return 2;
  }
  int broken = 0;
  {
    FixtureShare share(folder, kNullUuidText, uint64_t{8} << 30);
    setenv("PRORATA_DRIVER_DIR", (build + "/null").c_str(), 1);
    setenv("PRORATA_SHARE", folder.c_str(), 1);
    const Api bare = Open(build + "/null/libcuda.so.1");
    const Api governed = Open(build + "/lib/libcuda.so.1");
    size_t free_bytes, total_bytes;
    governed.mem_get_info(&free_bytes, &total_bytes);
    if (share.joins() != 1 || total_bytes != uint64_t{8} << 30) {
      std::fprintf(stderr, "micro: the library under test did not join the share\n");
      return 2;
    }
    std::printf(json ? "{\"cases\": [" : "%-22s %9s %9s %9s %9s\n", "ns per call", "bare",
                "governed", "added", "bar");
    bool first = true;
    for (const Case& one : kCases) {
      if (only != nullptr && std::strcmp(one.name, only) != 0) continue;
      const Outcome outcome = Measure(one, bare, governed, rounds);
      const double added = outcome.governed_ns - outcome.bare_ns;
      const bool holds = added <= one.bar_ns;
      broken += !holds;
      std::printf(json ? "%s{\"name\": \"%s\", \"bare_ns\": %.1f, \"governed_ns\": %.1f, "
                         "\"added_ns\": %.1f, \"bar_ns\": %.0f, \"holds\": %s}"
                       : "%s%-22s %9.1f %9.1f %9.1f %9.0f%s\n",
                  json && !first ? ", " : "", one.name, outcome.bare_ns, outcome.governed_ns, added,
                  one.bar_ns,
                  json    ? holds ? "true" : "false"
                  : holds ? ""
                          : "  broken");
      first = false;
    }
    if (json) std::printf("]}\n");
  }
  rmdir(folder.c_str());
  return broken != 0 ? 1 : 0;
}

}  // namespace
}  // namespace prorata::bench

int main(int argc, char** argv) {
  char self[4096] = {};
  if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) return 2;
  std::string build = self;
  for (int up = 0; up < 2; ++up) build.erase(build.rfind('/'));  // BUILD/bin/micro
  bool json = false;
  int rounds = 5;
  const char* only = nullptr;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0) {
      json = true;
    } else if (std::strcmp(argv[i], "--rounds") == 0 && i + 1 < argc) {
      rounds = std::max(1, std::atoi(argv[++i]));
    } else if (std::strcmp(argv[i], "--dir") == 0 && i + 1 < argc) {
      build = argv[++i];
    } else if (std::strcmp(argv[i], "--case") == 0 && i + 1 < argc) {
      only = argv[++i];
      if (!prorata::bench::HasCase(only)) {
        std::fprintf(stderr, "micro: no case %s; run without --case to see them all\n", only);
        return 2;
      }
    } else {
      std::fprintf(stderr, "usage: micro [--json] [--rounds N] [--dir BUILD] [--case NAME]\n");
      return 2;
    }
  }
  const int status = prorata::bench::Run(build, rounds, json, only);
  std::fflush(stdout);
  _exit(status);  // the helper thread of the library under test must not see the fixture go
}
