#pragma once

// What the simulated driver itself takes of a processor, in the calls that prorata's helper thread
// makes. Each of them is system calls and a step of the simulation here, where NVIDIA's driver
// reads a word: whoever measures what prorata costs subtracts it (tests/cost).
//
// Only where PRORATA_SIM_CALL_TIMES names a folder: there each process has a file named by its pid,
// of CallTimeRow, one for each thread that made such a call, zero beyond the last. Readable all the
// time. Threads beyond kCallTimeRows are not counted. What it takes to measure is in what is
// measured.

#include <atomic>
#include <cstdint>

namespace prorata::simgpu::driver {

struct CallTimeRow {
  std::atomic<uint64_t> tid;  // as gettid() says
  std::atomic<uint64_t> calls;
  std::atomic<uint64_t> ns;  // of the thread's processor time
};
inline constexpr uint32_t kCallTimeRows = 64;

// Around such a call. Calls may nest: the outermost counts.
class CallTime {
 public:
  CallTime();
  ~CallTime();
  CallTime(const CallTime&) = delete;
  CallTime& operator=(const CallTime&) = delete;

 private:
  CallTimeRow* row_;
  int64_t began_ns_ = 0;
};

}  // namespace prorata::simgpu::driver
