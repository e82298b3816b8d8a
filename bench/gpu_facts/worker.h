#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "bench/gpu_facts/bench.h"
#include "bench/gpu_facts/timeline.h"

namespace prorata::gpufacts {

// A second process on the same device: this program again, with --worker. The two talk in lines
// over pipes; the worker goes a step on for every line that it reads, and ends when its input ends
// or its parent dies.
//
//   --worker context   says "context" when it has one; told: runs a kernel, says "kernel"
//   --worker slice     says "ready"; told: launches for Options::slice_seconds, then says
//                      "stamps N" and N pairs of 64-bit numbers as they lie in memory
class Worker {
 public:
  static Result<Worker> Start(const Options& options, const std::string& what);
  Worker(Worker&& other) noexcept;
  Worker& operator=(Worker&&) = delete;
  ~Worker();  // ends the process, by force if need be, and reaps it

  pid_t pid() const { return pid_; }
  // The worker's next line; what it says in place of `expected` is the error.
  Result<std::string> Hear(const std::string& expected);
  Status Notify();
  Result<std::vector<Stamp>> HearStamps();

 private:
  Worker(pid_t pid, UniqueFd to, UniqueFd from);
  Status ReadSome(char* buffer, size_t size);

  pid_t pid_;
  UniqueFd to_;
  UniqueFd from_;
  HostClock::time_point end_;
};

// What such a process does; the exit status.
int RunWorker(const Options& options);

}  // namespace prorata::gpufacts
