#pragma once

// A process that has device memory without CUDA, as a Vulkan program would (sim_exporter.cc), and a
// file descriptor of it. Only on the simulated GPU.

#include <sys/types.h>

#include <cstdint>

namespace prorata::conformance {

class Exporter {
 public:
  explicit Exporter(uint64_t bytes);  // fails the test when there is none
  ~Exporter();                        // ends it, and waits until it is gone
  Exporter(const Exporter&) = delete;
  Exporter& operator=(const Exporter&) = delete;

  pid_t pid() const { return pid_; }
  int fd() const { return fd_; }  // an import that succeeds takes it; else it is the receiver's
  // The first word of the memory as that process sees it. Without CUDA it is kFilled.
  uint64_t FirstWord() const;
  static constexpr uint64_t kFilled = 0x5a5a5a5a5a5a5a5a;

 private:
  pid_t pid_ = -1;
  int socket_ = -1;
  int fd_ = -1;
};

}  // namespace prorata::conformance
