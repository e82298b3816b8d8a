// memory-throughput: how many pairs of cuMemAlloc and cuMemFree many threads get done, through the
// client library and straight at the driver, in one run:
//
//   prorata run --memory 4GiB -- memory-throughput --bare BUILD/sim/libcuda.so.1 [--json]
//       [--rounds N] [--batch-ms N] [--case NAME]
//
// Batches of the bare driver, of the library, and of the bare driver again alternate; all of them
// end in the same loaded driver, so that a noisy machine disturbs them alike. A round's ratio is
// the library's batch against the mean of the two beside it. The two bare ones against each other
// tell the noise: what a ratio of equals was.
//
// Exit status: 0; 1 a bar is broken; 2 it could not measure.

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "generated/cuda_abi.h"

namespace prorata::bench {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr double kBar = 0.8;  // docs/reports/call-costs.md
constexpr int kPhases = 3;    // bare, governed, bare
constexpr int kMaxRounds = 1000;
constexpr size_t kSizes[] = {size_t{4} << 10, size_t{1} << 20, size_t{2} << 20, size_t{8} << 20};

struct Case {
  const char* name;
  int processes, threads;  // of each process
};
constexpr Case kCases[] = {{"16_threads", 1, 16}, {"4_processes", 4, 4}};

struct Options {
  std::string bare;
  std::string only;
  int rounds = 40;
  int batch_ms = 20;
  bool json = false;
};

// The functions of one library.
struct Api {
  decltype(&::cuInit) init;
  decltype(&::cuDevicePrimaryCtxRetain) retain;
  decltype(&::cuCtxSetCurrent) set_current;
  decltype(&::cuMemAlloc_v2) alloc;
  decltype(&::cuMemFree_v2) free;
  CUcontext context;
};

[[noreturn]] void Die(const char* what, const char* why) {
  std::fprintf(stderr, "memory-throughput: %s: %s\n", what, why);
  std::_Exit(2);
}

Api Open(const char* path) {
  void* library = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) Die("cannot load a driver", ::dlerror());
  Api api = {};
  const auto find = [library](const char* name, auto* function) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(::dlsym(library, name));
    if (*function == nullptr) Die(name, "the driver has no such function");
  };
  find("cuInit", &api.init);
  find("cuDevicePrimaryCtxRetain", &api.retain);
  find("cuCtxSetCurrent", &api.set_current);
  find("cuMemAlloc_v2", &api.alloc);
  find("cuMemFree_v2", &api.free);
  if (api.init(0) != CUDA_SUCCESS || api.retain(&api.context, 0) != CUDA_SUCCESS) {
    Die(path, "cannot make a context");
  }
  return api;
}

// In memory of all processes of a case.
struct Board {
  pthread_barrier_t barrier;
  std::atomic<uint64_t> pairs[kMaxRounds][kPhases] = {};
  std::atomic<uint64_t> failed{0};
};

// Pairs in one batch: from the barrier on, for so long.
uint64_t Batch(const Api& api, int batch_ms, Board* board) {
  api.set_current(api.context);
  ::pthread_barrier_wait(&board->barrier);
  const auto end = SteadyClock::now() + std::chrono::milliseconds(batch_ms);
  uint64_t pairs = 0;
  while (SteadyClock::now() < end) {
    CUdeviceptr address = 0;
    if (api.alloc(&address, kSizes[pairs % std::size(kSizes)]) != CUDA_SUCCESS ||
        api.free(address) != CUDA_SUCCESS) {
      board->failed.fetch_add(1);
      return pairs;
    }
    ++pairs;
  }
  return pairs;
}

void RunThread(const Api& bare, const Api& governed, const Options& options, Board* board) {
  const Api* phases[kPhases] = {&bare, &governed, &bare};
  for (int round = 0; round < options.rounds; ++round) {
    for (int phase = 0; phase < kPhases; ++phase) {
      board->pairs[round][phase].fetch_add(Batch(*phases[phase], options.batch_ms, board));
    }
  }
}

// In a process that has used no driver yet: a driver does not survive a fork.
void RunProcess(const Case& one, const Options& options, Board* board) {
  const Api governed = Open("libcuda.so.1");
  const Api bare = Open(options.bare.c_str());
  if (governed.alloc == bare.alloc) Die("libcuda.so.1", "is the bare driver: use prorata run");
  std::vector<std::jthread> threads;
  for (int i = 0; i < one.threads; ++i) {
    threads.emplace_back([&] { RunThread(bare, governed, options, board); });
  }
}

struct Outcome {
  double bare_per_s = 0, governed_per_s = 0;
  double ratio = 0;
  double noise = 0;  // how far the two bare phases are apart, which are equals
};

// Of all rounds together: others who come and go between two batches disturb all phases alike.
Outcome Summarize(const Options& options, const Board& board) {
  double pairs[kPhases] = {1, 0, 1};
  for (int round = 0; round < options.rounds; ++round) {
    for (int phase = 0; phase < kPhases; ++phase) {
      pairs[phase] += static_cast<double>(board.pairs[round][phase].load());
    }
  }
  const double bare = (pairs[0] + pairs[2]) / 2;
  const double seconds = options.rounds * options.batch_ms / 1e3;
  return {bare / seconds, pairs[1] / seconds, pairs[1] / bare,
          std::max(pairs[0], pairs[2]) / std::min(pairs[0], pairs[2]) - 1};
}

Outcome Measure(const Case& one, const Options& options) {
  void* pages =
      ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) Die("map the board", std::strerror(errno));
  Board* board = new (pages) Board;
  pthread_barrierattr_t shared;
  ::pthread_barrierattr_init(&shared);
  ::pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
  ::pthread_barrier_init(&board->barrier, &shared,
                         static_cast<unsigned>(one.processes * one.threads));
  for (int i = 0; i < one.processes; ++i) {
    const pid_t pid = ::fork();
    if (pid < 0) Die("fork", std::strerror(errno));
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      RunProcess(one, options, board);
      std::_Exit(0);
    }
  }
  for (int i = 0; i < one.processes; ++i) {
    int status = 0;
    ::wait(&status);
    // The others may wait for it at the barrier: they end with us.
    if (status != 0) Die(one.name, "a process ended before its time");
  }
  if (board->failed != 0) Die(one.name, "an allocation or its free failed");
  const Outcome outcome = Summarize(options, *board);
  ::munmap(pages, sizeof(Board));
  return outcome;
}

int Run(const Options& options) {
  bool broken = false, first = true;
  std::printf(options.json ? "{\"bar\": %.2f, \"cases\": ["
                           : "pairs per second, bar %.2f  bare  governed  ratio  noise\n",
              kBar);
  for (const Case& one : kCases) {
    if (!options.only.empty() && options.only != one.name) continue;
    const Outcome outcome = Measure(one, options);
    const bool holds = outcome.ratio >= kBar;
    broken |= !holds;
    std::printf(options.json
                    ? "%s{\"name\": \"%s\", \"bare_per_s\": %.0f, \"governed_per_s\": %.0f, "
                      "\"ratio\": %.3f, \"noise\": %.3f, \"holds\": %s}"
                    : "%s%-20s %9.0f %9.0f %6.3f %6.3f%s\n",
                options.json && !first ? ", " : "", one.name, outcome.bare_per_s,
                outcome.governed_per_s, outcome.ratio, outcome.noise,
                options.json ? holds ? "true" : "false"
                : holds      ? ""
                             : "  broken");
    std::fflush(stdout);
    first = false;
  }
  if (options.json) std::printf("]}\n");
  return broken ? 1 : 0;
}

}  // namespace
}  // namespace prorata::bench

int main(int argc, char** argv) {
  prorata::bench::Options options;
  bool good = true;
  for (int i = 1; i < argc && good; ++i) {
    const bool more = i + 1 < argc;
    if (std::strcmp(argv[i], "--json") == 0) {
      options.json = true;
    } else if (std::strcmp(argv[i], "--bare") == 0 && more) {
      options.bare = argv[++i];
    } else if (std::strcmp(argv[i], "--case") == 0 && more) {
      options.only = argv[++i];
    } else if (std::strcmp(argv[i], "--rounds") == 0 && more) {
      options.rounds = std::clamp(std::atoi(argv[++i]), 1, prorata::bench::kMaxRounds);
    } else if (std::strcmp(argv[i], "--batch-ms") == 0 && more) {
      options.batch_ms = std::max(1, std::atoi(argv[++i]));
    } else {
      good = false;
    }
  }
  if (!good || options.bare.empty()) {
    std::fprintf(stderr,
                 "usage: prorata run -- memory-throughput --bare DRIVER [--json] [--rounds N]\n"
                 "           [--batch-ms N] [--case 16_threads|4_processes]\n");
    return 2;
  }
  return prorata::bench::Run(options);
}
