#pragma once

// A share without an agent: a limits file, and a thread that answers a member as an agent would who
// grants whatever is within the limit. The lease is open for good. For benchmarks and for tests of
// the client library alone.

#include <sys/types.h>

#include <atomic>
#include <string>
#include <thread>

#include "base/unique_fd.h"
#include "shm/limits_file.h"
#include "shm/usage_file.h"
#include "wire/messages.h"

namespace prorata::bench {

class FixtureShare {
 public:
  // Makes FOLDER/limits and FOLDER/socket with one device; exits with a message if it cannot.
  FixtureShare(const std::string& folder, const char* uuid, uint64_t limit_bytes);
  ~FixtureShare();

  // Members that join from now on are welcomed so late, as by an agent on a busy machine.
  void WelcomeAfter(int ms) { welcome_after_ms_ = ms; }
  shm::LimitsFile& limits() { return *limits_; }
  uint64_t joins() const { return joins_.load(); }
  // The usage memory of the member that joined last (it may be gone); nullptr: none did. After the
  // member has ended.
  const shm::UsageFile* usage() const { return usage_.load(); }

 private:
  void Serve();
  void ServeMember(int fd);
  ssize_t Receive(int fd, uint8_t* space, size_t bytes);
  void Answer(int fd, uint16_t type, const uint8_t* body);
  void Beat();

  std::string folder_;
  shm::LimitsFile* limits_ = nullptr;
  UniqueFd listener_;
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> joins_{0};
  std::atomic<int> welcome_after_ms_{0};
  std::atomic<shm::UsageFile*> usage_{nullptr};
  std::thread server_, heart_;
};

}  // namespace prorata::bench
