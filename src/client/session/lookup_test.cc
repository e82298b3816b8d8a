// Versioned lookups, and the list of visible devices.

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <set>
#include <string>

#include "client/session/proc_address.h"
#include "client/session/share.h"

namespace prorata::client {
namespace {

enum Index : uint32_t {
#define PRORATA_DRIVER_SYMBOL(symbol, index, role) k_##symbol = index,
#include "generated/driver_symbols.inc"
#undef PRORATA_DRIVER_SYMBOL
};

constexpr uint64_t kPerThread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
constexpr uint32_t kNothing = ~uint32_t{0};

std::set<uint32_t> g_lacking;

uint32_t Means(const char* name, int version, uint64_t flags = 0) {
  const VersionRow* row =
      FindOverride(name, version, flags, [](uint32_t index) { return !g_lacking.contains(index); });
  return row != nullptr ? row->index : kNothing;
}

TEST(ProcAddress, TheNewestFormNotNewerThanAsked) {
  EXPECT_EQ(Means("cuMemAlloc", 13000), k_cuMemAlloc_v2);
  EXPECT_EQ(Means("cuMemAlloc", 3020), k_cuMemAlloc_v2);
  EXPECT_EQ(Means("cuMemAlloc", 2000), k_cuMemAlloc);
  EXPECT_EQ(Means("cuCtxCreate", 11040), k_cuCtxCreate_v3);
  EXPECT_EQ(Means("cuCtxCreate", 12040), k_cuCtxCreate_v3);
  EXPECT_EQ(Means("cuCtxCreate", 12050), k_cuCtxCreate_v4);
  EXPECT_EQ(Means("cuStreamBeginCapture", 10010), k_cuStreamBeginCapture_v2);
}

TEST(ProcAddress, TheFourArgumentFormBefore12000) {
  EXPECT_EQ(Means("cuGetProcAddress", 11030), k_cuGetProcAddress);
  EXPECT_EQ(Means("cuGetProcAddress", 11080), k_cuGetProcAddress);
  EXPECT_EQ(Means("cuGetProcAddress", 12000), k_cuGetProcAddress_v2);
}

TEST(ProcAddress, ThePerThreadFlagPicksItsFormWhereThereIsOne) {
  EXPECT_EQ(Means("cuLaunchKernel", 12000, kPerThread), k_cuLaunchKernel_ptsz);
  EXPECT_EQ(Means("cuLaunchKernel", 12000), k_cuLaunchKernel);
  EXPECT_EQ(Means("cuLaunchKernel", 12000, CU_GET_PROC_ADDRESS_LEGACY_STREAM), k_cuLaunchKernel);
  EXPECT_EQ(Means("cuMemAlloc", 12000, kPerThread), k_cuMemAlloc_v2);
}

TEST(ProcAddress, AnOlderDriverAnswersItsOwnNewestForm) {
  g_lacking = {k_cuCtxCreate_v4};
  EXPECT_EQ(Means("cuCtxCreate", 13000), k_cuCtxCreate_v3);
  g_lacking.clear();
}

TEST(ProcAddress, WhatIsNotOverriddenIsLeftAlone) {
  EXPECT_EQ(Means("cuCtxGetCurrent", 13000), kNothing);
  EXPECT_EQ(Means("cuMemAlloc_v2", 13000), kNothing) << "names are base names";
  EXPECT_EQ(Means("", 13000), kNothing);
  EXPECT_EQ(Means("cuMemAlloc", 1000), kNothing);
  EXPECT_FALSE(IsOverriddenName("cuCtxGetCurrent"));
  EXPECT_TRUE(IsOverriddenName("cuGraphLaunch"));
}

TEST(ProcAddress, WhatTheSpecHasIsKnown) {
#define PRORATA_DRIVER_VERSION(name, version, flag, symbol) EXPECT_TRUE(IsKnownName(name)) << name;
#include "generated/driver_versions.inc"
#undef PRORATA_DRIVER_VERSION
  for (const char* name :
       {"", "a", "cuBrandNew", "cuMemAlloc_v2", "cuMemAllo", "cuMemAllocs", "zz"})
    EXPECT_FALSE(IsKnownName(name)) << name;
}

constexpr char kA[] = "GPU-0a000000-0000-0000-0000-000000000001";
constexpr char kB[] = "GPU-0b000000-0000-0000-0000-000000000002";

class VisibleDevices : public testing::Test {
 protected:
  VisibleDevices() : limits_(std::make_unique<shm::LimitsFile>()) {
    limits_->header.device_count = 2;
    std::strcpy(limits_->devices[0].uuid, kA);
    std::strcpy(limits_->devices[1].uuid, kB);
  }
  std::string Compose(const char* own) {
    char out[1024];
    return ComposeVisibleDevices(*limits_, own, out, sizeof out) ? out : "does not fit";
  }
  std::unique_ptr<shm::LimitsFile> limits_;
};

TEST_F(VisibleDevices, AllOfTheShareWithoutAValueOfItsOwn) {
  EXPECT_EQ(Compose(nullptr), std::string(kA) + "," + kB);
}

TEST_F(VisibleDevices, IndicesMeanTheSharesDevices) {
  EXPECT_EQ(Compose("1"), kB);
  EXPECT_EQ(Compose("1,0"), std::string(kB) + "," + kA);
  EXPECT_EQ(Compose(" 1 , 0 "), std::string(kB) + "," + kA);
}

TEST_F(VisibleDevices, WhatIsNotInTheShareEndsTheList) {
  EXPECT_EQ(Compose(""), "");
  EXPECT_EQ(Compose("-1"), "");
  EXPECT_EQ(Compose("0,5,1"), kA);
  EXPECT_EQ(Compose("GPU-ffffffff-0000-0000-0000-000000000003"), "");
  EXPECT_EQ(Compose("99999999999999999999"), "");
}

TEST_F(VisibleDevices, UuidsMayBeShortenedWhileTheyAreClear) {
  EXPECT_EQ(Compose(kB), kB);
  EXPECT_EQ(Compose("GPU-0b"), kB);
  EXPECT_EQ(Compose("GPU-0"), "") << "fits both";
}

TEST_F(VisibleDevices, ALongListIsNotWrittenPastTheEnd) {
  char out[50];
  EXPECT_FALSE(ComposeVisibleDevices(*limits_, nullptr, out, sizeof out));
}

TEST(Uuid, ParsesWhatNvmlWrites) {
  uint8_t bytes[16];
  ASSERT_TRUE(ParseUuid("GPU-00010203-0405-0607-0809-0a0b0c0d0eFf", bytes));
  EXPECT_EQ(bytes[0], 0);
  EXPECT_EQ(bytes[9], 9);
  EXPECT_EQ(bytes[15], 0xff);
  EXPECT_TRUE(ParseUuid("MIG-00010203-0405-0607-0809-0a0b0c0d0e0f", bytes));
  EXPECT_FALSE(ParseUuid("GPU-00010203-0405-0607-0809-0a0b0c0d0e", bytes));
  EXPECT_FALSE(ParseUuid("GPU-00010203-0405-0607-0809-0a0b0c0d0e0f00", bytes));
  EXPECT_FALSE(ParseUuid("00010203-0405-0607-0809-0a0b0c0d0e0f", bytes));
}

}  // namespace
}  // namespace prorata::client
