#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace prorata::gpuload {

// How the program reaches the driver: each is a way that real programs take, and each must lead
// through the client library.
enum class LoadMode {
  kDlopen,          // libcuda.so.1, RTLD_GLOBAL, symbols by dlsym
  kDlopenLocal,     // libcuda.so.1, RTLD_LOCAL
  kDlopenDev,       // libcuda.so, RTLD_LOCAL
  kAbsolute,        // a path
  kGetProcAddress,  // dlsym of cuGetProcAddress_v2 alone, all else through it
  kGetProcAddressV1,
};

// kVmmReleased: the handle is released at once, and the mapping alone holds the memory.
enum class Allocator { kPlain, kAsync, kManaged, kVmm, kVmmReleased, kPitch, kArray };

struct Options {
  LoadMode load = LoadMode::kDlopen;
  std::string library;              // of kAbsolute
  int api_version = 12000;          // that cuGetProcAddress is asked for
  bool per_thread_default = false;  // its flag CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
  int device = 0;

  // Kernels: only when a duration or a count is given.
  double seconds = 0;
  uint64_t kernels = 0;                    // per thread
  uint64_t kernel_us = 1000;               // of each; with kernel_most_us the least
  uint64_t kernel_most_us = 0;             // not 0: uniform up to here
  std::vector<uint64_t> kernel_choice_us;  // not empty: one of these
  // Launches are of so many functions, at random; more than one: each always takes the same.
  uint32_t functions = 1;
  uint64_t gap_us = 0;     // asleep on the host after each synchronisation
  uint64_t every_us = 0;   // not 0: a request of per_sync launches comes so often (open loop)
  bool poisson = false;    // and at random, so often in the mean
  uint32_t per_sync = 16;  // 0: never synchronises before the end, and queues what it may
  uint32_t threads = 1;
  uint32_t streams = 1;  // per thread
  uint32_t graph = 0;    // kernels captured in a graph that is replayed
  // Not 0: every so manieth launch is a collective of `collective_size` processes that say the same
  // `collective_job`; each must make as many launches as the others, or they wait.
  uint64_t collective_every = 0;
  uint32_t collective_size = 2;
  uint32_t collective_job = 1;
  int priority = 0;
  uint32_t blocks = 0;  // 0: fill sm_fraction of the device
  double sm_fraction = 1;
  uint32_t block_threads = 1024;
  uint64_t stamp_capacity = 1 << 18;
  std::string stamps_file;
  bool capture_beside = false;  // one more thread captures in global mode all the while

  // Memory, before the kernels.
  uint64_t allocate_bytes = 0;
  uint64_t allocate_count = 1;
  bool until_refused = false;
  bool again = false;  // free it all, and allocate the same once more
  Allocator allocator = Allocator::kPlain;
  bool verify = false;
  bool stress = false;  // `threads` threads allocate and free at random, for `seconds`
  uint64_t stress_max_bytes = 64 << 20;
  uint64_t seed = 1;

  double hold_s = 0;  // keep everything this long after the work, or until SIGTERM
  bool watch_memory = false;
  double delay_s = 0;  // after `wait_for`: begin so much later
  // So many real seconds are one of `seconds`, `delay_s`, `gap_us` and `every_us`: on a simulated
  // GPU whose clock is slowed down.
  double dilation = 1;
  std::string wait_for;  // a file: with the context made, nothing more happens before it exists
  // Print {"event": ...} lines: ready (before wait_for, with the pid), memory held, kernels begin,
  // work done.
  bool announce = false;
  bool fork_after_init = false;
};

// Reads the command line; on --help or an error prints a text and gives the exit status.
struct Parsed {
  Options options;
  int exit_status = -1;  // not -1: end with it
};
Parsed ParseOptions(int argc, char** argv);

}  // namespace prorata::gpuload
