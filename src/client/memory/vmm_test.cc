// What holds physical memory: handles, mappings, both, and the races that vmm.h argues about.

#include "client/memory/vmm.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

namespace prorata::client {
namespace {

constexpr uint64_t kPage = uint64_t{2} << 20;
constexpr uint64_t kBase = 0x7f00'0000'0000;

// The registry with a ledger beside them, called in the order of vmm_abi.cc around driver calls
// that all succeed.
class Registry {
 public:
  uint64_t Create(uint64_t handle, uint64_t bytes = kPage) {
    charged += bytes;
    const uint64_t record = registry.Make(0, bytes);
    Put([&](PhysicalRegistry::Gone* gone) { return registry.PutHandle(handle, record, gone); });
    return record;
  }
  void Release(uint64_t handle) { ReleaseAt(handle, registry.Stamp()); }
  void ReleaseAt(uint64_t handle, uint64_t stamp) {
    Put([&](PhysicalRegistry::Gone* gone) {
      registry.Released(handle, stamp, gone);
      return true;
    });
  }
  void Map(uint64_t address, uint64_t handle, uint64_t bytes = kPage) {
    const uint64_t record = registry.HoldHandle(handle);
    ASSERT_NE(record, 0u);
    Put([&](PhysicalRegistry::Gone* gone) {
      return registry.PutMapping(address, bytes, record, gone);
    });
  }
  void Unmap(uint64_t address, uint64_t bytes = kPage) {
    UnmapAt(address, bytes, registry.Stamp());
  }
  void UnmapAt(uint64_t address, uint64_t bytes, uint64_t stamp) {
    registry.Unmapped(address, bytes, stamp,
                      [&](const PhysicalRegistry::Gone& gone) { charged -= gone.bytes; });
  }
  void Retain(uint64_t handle, uint64_t address) {
    const uint64_t record = registry.HoldMapped(address);
    ASSERT_NE(record, 0u);
    Put([&](PhysicalRegistry::Gone* gone) { return registry.PutHandle(handle, record, gone); });
  }

  PhysicalRegistry registry;
  std::atomic<uint64_t> charged{0};

 private:
  template <typename F>
  void Put(F&& f) {
    PhysicalRegistry::Gone gone;
    EXPECT_TRUE(f(&gone));
    charged -= gone.bytes;
  }
};

TEST(PhysicalRegistry, ReleaseWhileAMappingLivesKeepsTheCharge) {
  Registry b;
  b.Create(1);
  b.Map(kBase, 1);
  b.Release(1);
  EXPECT_EQ(b.charged, kPage);
  b.Unmap(kBase);
  EXPECT_EQ(b.charged, 0u);
}

TEST(PhysicalRegistry, UnmapWhileTheHandleLivesKeepsTheCharge) {
  Registry b;
  b.Create(1);
  b.Map(kBase, 1);
  b.Map(kBase + kPage, 1);
  b.Unmap(kBase, 2 * kPage);
  EXPECT_EQ(b.charged, kPage);
  b.Release(1);
  EXPECT_EQ(b.charged, 0u);
  b.Release(1);  // a stray one finds nothing
  b.Unmap(kBase);
  EXPECT_EQ(b.charged, 0u);
}

TEST(PhysicalRegistry, ARetainedHandleHolds) {
  for (const uint64_t retained : {1, 2}) {  // the same value again, or another
    Registry b;
    b.Create(1, 4 * kPage);
    b.Map(kBase, 1, 4 * kPage);
    b.Retain(retained, kBase + 3 * kPage);
    b.Release(1);
    b.Unmap(kBase, 4 * kPage);
    EXPECT_EQ(b.charged, 4 * kPage);
    b.Release(retained);
    EXPECT_EQ(b.charged, 0u);
  }
}

TEST(PhysicalRegistry, AHandleValueUsedAgainIsAnotherAllocation) {
  Registry b;
  b.Create(1);
  b.Map(kBase, 1);
  b.Release(1);
  b.Create(1, 3 * kPage);
  EXPECT_EQ(b.charged, 4 * kPage);
  b.Unmap(kBase);
  EXPECT_EQ(b.charged, 3 * kPage);
  b.Release(1);
  EXPECT_EQ(b.charged, 0u);
}

TEST(PhysicalRegistry, UnmapCoversSeveralAndStepsOverWhatIsUnknown) {
  Registry b;
  for (uint64_t i : {0, 1, 3, 4, 5}) {  // at 2 something imported
    b.Create(i);
    b.Map(kBase + i * kPage, i);
    b.Release(i);
  }
  b.Unmap(kBase, 5 * kPage);
  EXPECT_EQ(b.charged, kPage) << "only what lies behind the range is left";
  b.Unmap(kBase + 5 * kPage);
  EXPECT_EQ(b.charged, 0u);
}

TEST(PhysicalRegistry, UnknownOnesAreUnknown) {
  Registry b;
  EXPECT_EQ(b.registry.HoldHandle(7), 0u);
  EXPECT_EQ(b.registry.HoldMapped(kBase), 0u);
  b.Create(7);
  b.Map(kBase, 7);
  EXPECT_EQ(b.registry.HoldMapped(kBase + kPage), 0u);
  EXPECT_EQ(b.registry.HoldMapped(kBase - 1), 0u);
}

// Sparse arrays and multicast objects: what is bound to them outlives its handle.
TEST(PhysicalRegistry, AnOwnerHoldsWhatItWasBoundToUntilItIsGone) {
  Registry b;
  constexpr uint64_t kArray = 0x5000, kOther = 0x6000;
  const uint64_t record = b.Create(1);
  for (int tile = 0; tile < 3; ++tile) {  // three tiles of one array are one keep
    ASSERT_EQ(b.registry.HoldHandle(1), record);
    ASSERT_TRUE(b.registry.PutKept(kArray, record));
  }
  ASSERT_EQ(b.registry.HoldHandle(1), record);
  ASSERT_TRUE(b.registry.PutKept(kOther, record));
  b.Release(1);
  EXPECT_EQ(b.charged, kPage);
  const auto gone = [&](const PhysicalRegistry::Gone& ended) { b.charged -= ended.bytes; };
  b.registry.OwnerGone(kArray, gone);
  EXPECT_EQ(b.charged, kPage) << "the other has it still";
  b.registry.OwnerGone(kArray, gone);
  EXPECT_EQ(b.charged, kPage);
  b.registry.OwnerGone(kOther, gone);
  EXPECT_EQ(b.charged, 0u);
}

// What was imported is found by its number, and has no charge of its own.
TEST(PhysicalRegistry, AnImportIsHeldByItsNumber) {
  Registry b;
  EXPECT_EQ(b.registry.HoldNumber(77), 0u);
  const uint64_t record = b.registry.Make(0, 0, 77);
  PhysicalRegistry::Gone gone;
  ASSERT_TRUE(b.registry.PutHandle(5, record, &gone));
  ASSERT_EQ(b.registry.HoldNumber(77), record);
  ASSERT_TRUE(b.registry.PutHandle(5, record, &gone));
  b.registry.Released(5, b.registry.Stamp(), &gone);
  EXPECT_EQ(gone.record, 0u);
  b.registry.Released(5, b.registry.Stamp(), &gone);
  EXPECT_EQ(gone.number, 77u);
  EXPECT_EQ(gone.bytes, 0u);
}

TEST(PhysicalRegistry, AMapThatFailedLeavesTheRegistryAsTheyWere) {
  Registry b;
  const uint64_t record = b.Create(1);
  ASSERT_EQ(b.registry.HoldHandle(1), record);
  PhysicalRegistry::Gone gone;
  b.registry.Drop(record, 1, &gone);
  EXPECT_EQ(gone.bytes, 0u);
  b.Release(1);
  EXPECT_EQ(b.charged, 0u);
}

// The driver unmapped for one thread and mapped for another before the first came to the registry.
TEST(PhysicalRegistry, AnUnmapThatComesLateLeavesTheNewMapping) {
  Registry b;
  b.Create(1);
  b.Create(2, 2 * kPage);
  b.Map(kBase, 1);
  b.Map(kBase + kPage, 1);
  b.Release(1);
  const uint64_t stamp = b.registry.Stamp();  // both old ones are unmapped
  b.Map(kBase, 2, 2 * kPage);
  b.Release(2);
  EXPECT_EQ(b.charged, 3 * kPage);
  b.UnmapAt(kBase, 2 * kPage, stamp);
  EXPECT_EQ(b.charged, 2 * kPage) << "the new mapping holds, the old one it hides is gone";
  b.Unmap(kBase, 2 * kPage);
  EXPECT_EQ(b.charged, 0u);
}

TEST(PhysicalRegistry, AReleaseThatComesLateLeavesTheNewHandle) {
  Registry b;
  b.Create(1);
  const uint64_t stamp = b.registry.Stamp();
  b.Create(1, 3 * kPage);
  EXPECT_EQ(b.charged, 3 * kPage) << "the driver would not give out a handle that lives";
  b.ReleaseAt(1, stamp);
  EXPECT_EQ(b.charged, 3 * kPage);
  b.Release(1);
  EXPECT_EQ(b.charged, 0u);
}

// A driver that uses handle values and addresses again as soon as it can.
class ModelDriver {
 public:
  uint64_t Create() {
    const std::lock_guard lock(mutex_);
    uint64_t handle = 1;
    while (handles_.contains(handle)) ++handle;
    handles_[handle] = ++last_;
    holds_[last_] = 1;
    return handle;
  }
  bool Map(uint64_t address, uint64_t handle) {
    const std::lock_guard lock(mutex_);
    if (mappings_.contains(address)) return false;
    mappings_[address] = handles_.at(handle);
    ++holds_[handles_.at(handle)];
    return true;
  }
  void Release(uint64_t handle) {
    const std::lock_guard lock(mutex_);
    Drop(handles_.at(handle));
    handles_.erase(handle);
  }
  bool Unmap(uint64_t address) {
    const std::lock_guard lock(mutex_);
    const auto found = mappings_.find(address);
    if (found == mappings_.end()) return false;
    Drop(found->second);
    mappings_.erase(found);
    return true;
  }
  // Runs f(bytes in use) while nothing changes.
  template <typename F>
  void Look(F&& f) {
    const std::lock_guard lock(mutex_);
    f(holds_.size() * kPage);
  }

 private:
  void Drop(uint64_t id) {
    if (--holds_[id] == 0) holds_.erase(id);
  }
  std::mutex mutex_;
  std::map<uint64_t, uint64_t> handles_, mappings_, holds_;
  uint64_t last_ = 0;
};

// Each thread maps at addresses that others unmap; a map that returned may be unmapped by anyone.
TEST(PhysicalRegistry, ThreadsAtTheSameAddressesNeverHoldMoreThanIsChargedAndEndAtZero) {
  static Registry b;
  static ModelDriver driver;
  constexpr uint64_t kAddresses = 4;
  static std::atomic<bool> mapped[kAddresses];
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      std::mt19937_64 random(t);
      for (int step = 0; step < 30'000; ++step) {
        const uint64_t at = random() % kAddresses, address = kBase + at * kPage;
        if (random() % 2 == 0) {
          b.charged += kPage;
          const uint64_t record = b.registry.Make(0, kPage);
          const uint64_t handle = driver.Create();
          PhysicalRegistry::Gone gone;
          b.registry.PutHandle(handle, record, &gone);
          b.charged -= gone.bytes;
          ASSERT_EQ(b.registry.HoldHandle(handle), record);
          gone = {};
          const bool ok = driver.Map(address, handle);
          if (ok) {
            b.registry.PutMapping(address, kPage, record, &gone);
            mapped[at] = true;
          } else {
            b.registry.Drop(record, 1, &gone);
          }
          b.charged -= gone.bytes;
          const uint64_t stamp = b.registry.Stamp();
          driver.Release(handle);
          b.ReleaseAt(handle, stamp);
        } else if (mapped[at].exchange(false)) {
          const uint64_t stamp = b.registry.Stamp();
          if (driver.Unmap(address)) b.UnmapAt(address, kPage, stamp);
        }
        driver.Look([](uint64_t held) { ASSERT_GE(b.charged.load(), held); });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (uint64_t at = 0; at < kAddresses; ++at) {
    const uint64_t address = kBase + at * kPage, stamp = b.registry.Stamp();
    if (driver.Unmap(address)) b.UnmapAt(address, kPage, stamp);
  }
  EXPECT_EQ(b.charged, 0u);
}

}  // namespace
}  // namespace prorata::client
