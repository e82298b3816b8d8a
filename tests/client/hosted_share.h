#pragma once

// The client library inside a test program: its own sources, linked into the test with libstdc++
// and whatever sanitizer the build has, over the null driver, on a share that a fixture answers for
// (bench/micro/fixture_share.h). One process joins once: every test is a process of its own.

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "bench/micro/fixture_share.h"
#include "generated/cuda_abi.h"

namespace prorata {

class HostedShare : public testing::Test {
 protected:
  static constexpr uint64_t kLimitBytes = 16ull << 30;

  HostedShare();
  ~HostedShare() override;
  void SetUp() override;

  // cuInit, and the primary context is the calling thread's.
  void Start();
  // What the member has told the agent of itself.
  const shm::DeviceUsage& usage() const { return share_->usage()->devices[0]; }

  std::string folder_;
  std::unique_ptr<bench::FixtureShare> share_;
  CUcontext primary_ = nullptr;
};

// Waits for a child, for so long at the most; its status as waitpid gives it, -1 if it had to be
// killed.
int StatusOf(pid_t child);

}  // namespace prorata
