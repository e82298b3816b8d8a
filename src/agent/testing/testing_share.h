#pragma once

// For tests of what works on shares, without an agent: real shares in a folder of their own, on a
// device of 8 GiB, and members of them whose usage memory the test writes.

#include <memory>
#include <string>
#include <vector>

#include "agent/share/shares.h"
#include "agent/testing/testing_agent.h"

namespace prorata::agent::testing {

// What the client library of a member writes.
struct TestUsage {
  shm::UsageFile* file = nullptr;
  shm::DeviceUsage& operator[](uint32_t device) const { return file->devices[device]; }
};

class TestShares {
 public:
  Shares& table() { return shares_; }
  // Of `memory_bytes` on each of these devices, kept by nobody in particular.
  Share& Add(const std::string& name, std::vector<size_t> devices = {0},
             uint64_t memory_bytes = kGiB);
  // A process joins with memory of its own; null: there was no slot.
  Member* Join(Share& share, pid_t pid, TestUsage* usage);

 private:
  TemporaryFolder folder_;
  Shares shares_;
};

}  // namespace prorata::agent::testing
