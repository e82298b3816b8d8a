#include "agent/compute/trace_ring.h"

#include <gtest/gtest.h>

#include <malloc.h>

#include <string>

namespace prorata::agent {
namespace {

TraceRing::Entry EntryAt(int64_t time_ns, uint32_t lane = 0) {
  TraceRing::Entry entry = {};
  entry.time_ns = time_ns;
  entry.lane = lane;
  return entry;
}

TEST(TraceRing, KeepsTheLastInOrder) {
  TraceRing ring(8);
  EXPECT_EQ(ring.last(), 0u);
  EXPECT_EQ(ring.oldest(), 1u);
  for (int i = 1; i <= 8; ++i) ring.Write(EntryAt(10 * i));
  EXPECT_FALSE(ring.has_forgotten());
  EXPECT_EQ(ring.oldest(), 1u);
  for (int i = 9; i <= 21; ++i) ring.Write(EntryAt(10 * i));
  EXPECT_TRUE(ring.has_forgotten());
  EXPECT_EQ(ring.last(), 21u);
  ASSERT_EQ(ring.oldest(), 14u);
  for (uint64_t sequence = ring.oldest(); sequence <= ring.last(); ++sequence) {
    EXPECT_EQ(ring.At(sequence).time_ns, static_cast<int64_t>(10 * sequence));
  }
}

TEST(TraceRing, FindsATime) {
  TraceRing ring(8);
  EXPECT_EQ(ring.FirstSince(5), 1u) << "empty: the next that comes";
  for (int i = 1; i <= 12; ++i) ring.Write(EntryAt(10 * i));  // 50 to 120 are there
  EXPECT_EQ(ring.FirstSince(0), 5u);
  EXPECT_EQ(ring.FirstSince(50), 5u);
  EXPECT_EQ(ring.FirstSince(51), 6u);
  EXPECT_EQ(ring.FirstSince(120), 12u);
  EXPECT_EQ(ring.FirstSince(121), 13u);
}

// FirstSince searches by halves, and slices of negative length would be no trace.
TEST(TraceRing, TimeDoesNotGoBack) {
  TraceRing ring(8);
  ring.Write(EntryAt(100));
  ring.Write(EntryAt(90));
  ring.Write(EntryAt(110));
  EXPECT_EQ(ring.At(2).time_ns, 100);
  EXPECT_EQ(ring.At(3).time_ns, 110);
}

TEST(TraceRing, ALaneOutlivesItsShareAsLongAsItsEntries) {
  TraceRing ring(4);
  const uint32_t first = ring.AddLane(7, "train");
  ring.Write(EntryAt(1, first));
  ring.EndLane(first);
  const uint32_t second = ring.AddLane(8, "train");
  EXPECT_NE(first, second) << "the same name, another share";
  EXPECT_EQ(ring.FindLane(first)->share, 7u);
  for (int i = 0; i < 4; ++i) ring.Write(EntryAt(2 + i, second));
  const uint32_t third = ring.AddLane(9, "other");
  EXPECT_EQ(ring.FindLane(first), nullptr);
  EXPECT_EQ(ring.FindLane(second)->name, "train") << "it lives, and stays whatever is written";
  EXPECT_EQ(ring.FindLane(third)->name, "other");
}

// However many shares come and go, what is kept is bounded by the ring.
TEST(TraceRing, LanesAreBounded) {
  TraceRing ring(64);
  for (int i = 0; i < 10'000; ++i) {
    const uint32_t lane = ring.AddLane(static_cast<uint64_t>(i), "s");
    ring.Write(EntryAt(i, lane));
    ring.EndLane(lane);
    ASSERT_LE(ring.lanes(), 66u);
  }
}

// The ring is written on the loop that grants leases.
TEST(TraceRing, WritingAllocatesOnce) {
  TraceRing ring;
  const uint32_t lane = ring.AddLane(1, "train");
  ring.Write(EntryAt(0, lane));
  const struct mallinfo2 before = ::mallinfo2();
  for (size_t i = 1; i < 3 * TraceRing::kEntries; ++i) {
    ring.Write(EntryAt(static_cast<int64_t>(i), lane));
  }
  const struct mallinfo2 after = ::mallinfo2();
  EXPECT_EQ(after.uordblks, before.uordblks);
  EXPECT_EQ(after.hblkhd, before.hblkhd);
}

}  // namespace
}  // namespace prorata::agent
