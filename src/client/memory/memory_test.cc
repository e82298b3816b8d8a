// The pure parts of memory accounting: tables, slabs, array sizes, the ledger's race, the view.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <random>
#include <thread>
#include <unordered_map>
#include <vector>

#include "client/memory/allocations.h"
#include "client/memory/arrays.h"
#include "client/memory/in_flight.h"
#include "client/memory/ledger.h"
#include "client/session/memory_view.h"

namespace prorata::client {
namespace {

TEST(Table, AgreesWithAReferenceUnderRandomUse) {
  static Table<uint64_t> table;
  std::unordered_map<uint64_t, uint64_t> reference;
  std::mt19937_64 random(7);
  for (int step = 0; step < 200'000; ++step) {
    // Addresses as drivers give them: few low bits vary, so that probing chains form.
    const uint64_t key = 0x7f00'0000'0000 + (random() % 3000) * 512 + 1;
    if (random() % 2 == 0) {
      const uint64_t value = random();
      ASSERT_TRUE(table.Update(key, [&](uint64_t& slot, bool made) {
        EXPECT_EQ(made, !reference.contains(key));
        slot = value;
        return true;
      }));
      reference[key] = value;
    } else {
      uint64_t value = 0;
      ASSERT_EQ(table.Take(key, &value), reference.contains(key));
      if (reference.contains(key)) {
        ASSERT_EQ(value, reference[key]);
      }
      reference.erase(key);
    }
  }
  size_t seen = 0;
  table.ForEach([&](uint64_t key, uint64_t value) {
    EXPECT_EQ(reference.at(key), value);
    ++seen;
    return false;  // and erases it
  });
  EXPECT_GE(seen, reference.size());
  table.ForEach([](uint64_t, uint64_t) {
    ADD_FAILURE() << "an entry survived";
    return true;
  });
}

TEST(Table, ThreadsOnDifferentKeysDoNotDisturbEachOther) {
  static Table<uint64_t> table;
  std::vector<std::thread> threads;
  for (uint64_t t = 1; t <= 4; ++t) {
    threads.emplace_back([t] {
      for (uint64_t round = 0; round < 20; ++round) {
        for (uint64_t i = 0; i < 500; ++i) {
          table.Update((t << 32) + i + 1, [&](uint64_t& value, bool) {
            value = i;
            return true;
          });
        }
        for (uint64_t i = 0; i < 500; ++i) {
          uint64_t value = ~uint64_t{0};
          ASSERT_TRUE(table.Take((t << 32) + i + 1, &value));
          ASSERT_EQ(value, i);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Allocations, AContextTakesItsOwnAndWhatWasGivenOutAgainStays) {
  static Allocations allocations;
  Allocation replaced;
  const auto add = [&](uint64_t key, uint64_t context) {
    Allocation allocation;
    allocation.context = context;
    allocation.bytes = key;
    allocation.kind = Kind::kLarge;
    ASSERT_TRUE(allocations.Remember(key, allocation, &replaced));
  };
  add(0x1000, 1);
  add(0x2000, 1);
  add(0x3000, 2);
  allocations.MarkContext(1, true);
  add(0x2000, 1);  // the driver gave the address out again while the context was going
  EXPECT_EQ(replaced.kind, Kind::kLarge);
  std::vector<uint64_t> taken;
  allocations.TakeDying(1, [&](uint64_t key, const Allocation&) { taken.push_back(key); });
  EXPECT_EQ(taken, std::vector<uint64_t>{0x1000});
  Allocation left;
  EXPECT_TRUE(allocations.Forget(0x2000, &left));
  EXPECT_TRUE(allocations.Forget(0x3000, &left));
  EXPECT_FALSE(allocations.Forget(0x3000, &left)) << "a free is remembered once";
}

TEST(Allocations, EqualHandlesOfDifferentKindsAreDifferent) {
  EXPECT_NE(KeyOf(Space::kPointer, 5), KeyOf(Space::kArray, 5));
  EXPECT_NE(KeyOf(Space::kArray, 5), KeyOf(Space::kMipmap, 5));
  EXPECT_NE(KeyOf(Space::kMipmap, 5), KeyOf(Space::kPointer, 5));
}

// Real addresses have 47 bits, and a GPU's 49. Others are not counted together, and cost more.
TEST(Slabs, AnAddressBeyondAllIsChargedASlabOfItsOwn) {
  static Slabs slabs;
  bool first = false;
  for (const uint64_t address : {uint64_t{1} << 49, uint64_t{0x7} << 48, ~uint64_t{0}}) {
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(slabs.Add(address >> kSlabShift, &first));
      EXPECT_TRUE(first);
    }
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(slabs.Drop(address >> kSlabShift));
  }
  const uint64_t last = ((uint64_t{1} << 49) - 1) >> kSlabShift;
  ASSERT_TRUE(slabs.Add(last, &first));
  ASSERT_TRUE(slabs.Add(last, &first));
  EXPECT_FALSE(first);
  EXPECT_FALSE(slabs.Drop(last));
  EXPECT_TRUE(slabs.Drop(last));
}

// Threads share slabs of a model driver; the charge must never be below what the driver holds, and
// must end at zero. The interleavings A, B and C of allocations.h all happen here.
TEST(Slabs, ChargeCoversTheDriverAtEveryMoment) {
  static Slabs slabs;
  constexpr uint64_t kSlabs = 3;
  std::atomic<int64_t> charged{0};
  std::mutex driver;  // guards the next two; a real driver is as consistent
  int live[kSlabs] = {};
  int64_t held = 0;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int i = 0; i < 20'000; ++i) {
        const uint64_t slab = random() % kSlabs;
        charged += 1;  // reserve
        {
          const std::lock_guard lock(driver);
          if (live[slab]++ == 0) ++held;
          ASSERT_GE(charged.load(), held);
        }
        bool first;
        ASSERT_TRUE(slabs.Add(slab, &first));
        if (!first) charged -= 1;
        {
          const std::lock_guard lock(driver);
          ASSERT_GE(charged.load(), held);
          if (--live[slab] == 0) --held;
        }
        if (slabs.Drop(slab)) charged -= 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(charged, 0);
}

// Members charge and free while an agent recalls slack: use never exceeds the grant at A3.
TEST(Ledger, RecallAndChargeNeverOverrun) {
  std::atomic<uint64_t> used{0}, grant{1000};
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> proceeding{0};
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      while (!stop) {
        const uint64_t bytes = 1 + random() % 400;
        uint64_t wanted;
        if (!TryCharge(&used, &grant, bytes, &wanted)) continue;
        if (proceeding.fetch_add(bytes) + bytes > 1000) over = true;
        proceeding -= bytes;
        used -= bytes;
      }
    });
  }
  for (int i = 0; i < 20'000; ++i) {
    const uint64_t lower = static_cast<uint64_t>(i % 700);
    grant = lower;                   // A1
    const uint64_t seen = used;      // A2
    if (seen > lower) grant = seen;  // A3
    if (grant > 1000) grant = 1000;  // `used` held a charge that will back out
    if (i % 3 == 0) grant = 1000;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(over);
  EXPECT_EQ(used, 0u);
}

TEST(Ledger, SaysWhatItWouldHaveToReach) {
  std::atomic<uint64_t> used{100};
  const std::atomic<uint64_t> grant{150};
  uint64_t wanted = 0;
  EXPECT_TRUE(TryCharge(&used, &grant, 50, &wanted));
  EXPECT_FALSE(TryCharge(&used, &grant, 1, &wanted));
  EXPECT_EQ(wanted, 151u);
  EXPECT_FALSE(TryCharge(&used, &grant, ~uint64_t{0} - 3, &wanted)) << "wraps";
  EXPECT_EQ(used, 150u);
}

bool Alive(int32_t thread) { return thread < 1000; }

TEST(InFlight, AreMissedByNobodyWhoMeasures) {
  static InFlight moves;
  InFlight::Stripe* mine = moves.Claim(1, Alive);
  InFlight::Stripe* others = moves.Claim(2, Alive);
  ASSERT_NE(mine, others);
  moves.Begin(mine);  // the one who measures
  EXPECT_TRUE(moves.AloneSince(moves.Look()));

  moves.Begin(others);  // another, who was under way before ...
  const uint64_t beside = moves.Look();
  EXPECT_FALSE(moves.AloneSince(beside));
  moves.End(others);  // ... and is done meanwhile
  EXPECT_FALSE(moves.AloneSince(beside));
  EXPECT_TRUE(moves.AloneSince(moves.Look()));

  const uint64_t before = moves.Look();
  moves.Begin(others);
  EXPECT_FALSE(moves.AloneSince(before)) << "it began meanwhile";
  moves.End(others);
  EXPECT_FALSE(moves.AloneSince(before)) << "it came and went";
  EXPECT_TRUE(moves.AloneSince(moves.Look()));
  moves.End(mine);
}

TEST(InFlight, StripesOfTheDeadAreTakenAndTheLivingShareWhenAllAreTaken) {
  static InFlight moves;
  InFlight::Stripe* dead = moves.Claim(1000, Alive);
  moves.Begin(dead);  // and dies in the call
  std::vector<InFlight::Stripe*> taken;
  for (int32_t thread = 1; thread <= 62; ++thread) taken.push_back(moves.Claim(thread, Alive));
  EXPECT_EQ(std::count(taken.begin(), taken.end(), dead), 0) << "there were free ones";
  EXPECT_EQ(moves.Claim(63, Alive), dead);
  InFlight::Stripe* common = moves.Claim(64, Alive);
  EXPECT_EQ(moves.Claim(65, Alive), common);
  EXPECT_EQ(std::count(taken.begin(), taken.end(), common), 0);
  moves.Begin(common);
  EXPECT_TRUE(moves.AloneSince(moves.Look())) << "the dead one's call is not under way";
  moves.Begin(common);
  EXPECT_FALSE(moves.AloneSince(moves.Look()));
}

TEST(InFlight, OfThreadsThatComeAndGoAreSeen) {
  // Each move takes a byte out of `there` and puts it back: who was alone never finds it missing.
  static InFlight moves;
  std::atomic<int> there{3};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      InFlight::Stripe* own = moves.Claim(2 + i, Alive);
      while (!stop) {
        moves.Begin(own);
        --there;
        ++there;
        moves.End(own);
        std::this_thread::yield();
      }
    });
  }
  bool missed = false;
  InFlight::Stripe* mine = moves.Claim(1, Alive);
  for (int i = 0; i < 50'000; ++i) {
    moves.Begin(mine);
    const uint64_t looked = moves.Look();
    const int found = there;
    missed |= moves.AloneSince(looked) && found != 3;
    moves.End(mine);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(missed);
}

uint64_t Bytes(size_t w, size_t h, size_t d, CUarray_format format, unsigned channels,
               unsigned flags = 0, unsigned levels = 1) {
  return ArrayBytes({w, h, d, format, channels, flags}, levels);
}

TEST(Arrays, ZeroHeightAndDepthAreOneAndTwoDimensions) {
  EXPECT_EQ(Bytes(100, 0, 0, CU_AD_FORMAT_FLOAT, 1), 400u);
  EXPECT_EQ(Bytes(100, 10, 0, CU_AD_FORMAT_FLOAT, 2), 8000u);
  EXPECT_EQ(Bytes(100, 10, 3, CU_AD_FORMAT_HALF, 4), 24'000u);
}

TEST(Arrays, BlockFormatsRoundUpToBlocks) {
  EXPECT_EQ(Bytes(5, 5, 0, CU_AD_FORMAT_BC1_UNORM, 4), 8u * 8 / 2);
  EXPECT_EQ(Bytes(5, 5, 0, CU_AD_FORMAT_BC7_UNORM, 4), 64u);
}

TEST(Arrays, VideoFormatsCountAllPlanes) {
  EXPECT_EQ(Bytes(1920, 1080, 0, CU_AD_FORMAT_NV12, 3), 1920u * 1080 * 3 / 2);
  EXPECT_EQ(Bytes(1920, 1080, 0, CU_AD_FORMAT_P010, 3), 1920u * 1080 * 3);
}

TEST(Arrays, MipmapsAddUpAndLayersDoNotShrink) {
  EXPECT_EQ(Bytes(4, 4, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0, 3), 16u + 4 + 1);
  EXPECT_EQ(Bytes(4, 4, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0, 1000), 16u + 4 + 1);
  EXPECT_EQ(Bytes(4, 4, 4, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0, 3), 64u + 8 + 1);
  EXPECT_EQ(Bytes(4, 4, 6, CU_AD_FORMAT_UNSIGNED_INT8, 1, CUDA_ARRAY3D_CUBEMAP, 3), 6u * 21);
}

TEST(Arrays, WhatIsMappedLaterTakesNothing) {
  EXPECT_EQ(Bytes(4096, 4096, 0, CU_AD_FORMAT_FLOAT, 4, CUDA_ARRAY3D_SPARSE), 0u);
  EXPECT_EQ(Bytes(4096, 4096, 0, CU_AD_FORMAT_FLOAT, 4, CUDA_ARRAY3D_DEFERRED_MAPPING), 0u);
}

TEST(Arrays, HugeShapesSaturateAndUnknownFormatsCountMost) {
  EXPECT_GE(Bytes(~size_t{0}, ~size_t{0}, ~size_t{0}, CU_AD_FORMAT_FLOAT, 4), uint64_t{1} << 59);
  EXPECT_EQ(BitsPerElement(static_cast<CUarray_format>(999), 1), 128u);
}

TEST(MemoryView, ShowsTheShare) {
  const MemoryView view = ViewMemory(1000, 300, 5000, 4000);
  EXPECT_EQ(view.total, 1000u);
  EXPECT_EQ(view.used, 300u);
  EXPECT_EQ(view.free, 700u);
  EXPECT_EQ(ViewMemory(9000, 0, 5000, 4000).total, 5000u);
}

TEST(MemoryView, NeverUnderflows) {
  const MemoryView lowered = ViewMemory(1000, 1200, 5000, 4000);
  EXPECT_EQ(lowered.used, 1000u);
  EXPECT_EQ(lowered.free, 0u);
  const MemoryView nothing = ViewMemory(0, 1200, 5000, 4000);
  EXPECT_EQ(nothing.total, 0u);
  EXPECT_EQ(nothing.free, 0u);
}

TEST(MemoryView, PromisesNoMoreThanTheDeviceHas) {
  const MemoryView view = ViewMemory(1000, 300, 5000, 100);
  EXPECT_EQ(view.free, 100u);
  EXPECT_EQ(view.used, 300u) << "what others hold is not this share's use";
}

}  // namespace
}  // namespace prorata::client
