#include "agent/share/events.h"

#include <gtest/gtest.h>

#include <random>

namespace prorata::agent {
namespace {

using api::Event;
using api::EventKind;

class EventsTest : public ::testing::Test {
 protected:
  static Event Refusal(int64_t pid, uint64_t count = 1) {
    return {.kind = EventKind::kRefusal,
            .share = "a",
            .pid = pid,
            .asked_bytes = 5,
            .why = "own_limit",
            .count = count};
  }
  uint64_t Counted(uint64_t after = 0) {
    uint64_t sum = 0;
    for (const Event& event : events_.After(after).events) sum += event.count;
    return sum;
  }

  VirtualClock clock_;
  Events events_{clock_, [this] { return 1'000 + clock_.NowNs() / kNsPerMs; }};
};

TEST_F(EventsTest, EachHasTheNextSequenceAndItsTime) {
  events_.Add({.kind = EventKind::kShareCreated, .share = "a"});
  clock_.Advance(5 * kNsPerMs);
  events_.Add({.kind = EventKind::kShareEnded, .share = "b"});
  const auto all = events_.After(0);
  ASSERT_EQ(all.events.size(), 2u);
  EXPECT_EQ(all.events[0].sequence, 1u);
  EXPECT_EQ(all.events[1].sequence, 2u);
  EXPECT_EQ(all.events[1].time_unix_ms, 1'005);
  EXPECT_EQ(all.next, 2u);
  EXPECT_EQ(events_.After(1).events.size(), 1u);
  EXPECT_EQ(events_.After(2).events.size(), 0u);
  EXPECT_EQ(events_.After(0, 1).next, 1u) << "the rest the next time";
  const auto of_b = events_.After(0, 10, "b");
  ASSERT_EQ(of_b.events.size(), 1u);
  EXPECT_EQ(of_b.next, 2u);
  EXPECT_EQ(events_.After(0, 10, "c").next, 2u) << "what is skipped is not looked at again";
}

TEST_F(EventsTest, TheRingIsBoundedAndSaysWhatItLost) {
  for (size_t i = 0; i < Events::kKept + 30; ++i) events_.Add({.share = std::to_string(i)});
  const auto all = events_.After(10);
  EXPECT_EQ(all.lost, 20u);
  EXPECT_EQ(all.events.size(), Events::kKept);
  EXPECT_EQ(all.events.front().sequence, 31u);
  EXPECT_EQ(events_.After(30).lost, 0u);
}

TEST_F(EventsTest, ASequenceOfAnotherAgentIsAnsweredByAll) {
  events_.Add({.share = "a"});
  EXPECT_EQ(events_.After(4'000).events.size(), 1u);
}

TEST_F(EventsTest, AProgramThatProbesIsOneEventASecond) {
  for (int i = 0; i < 100'000; ++i) {
    events_.AddCounted(Refusal(1));
    if (i % 10 == 0) clock_.Advance(kNsPerMs);
    if (i % 1'000 == 0) events_.Tick();
  }
  EXPECT_LE(events_.last_sequence(), 12u);
  clock_.Advance(kNsPerS);
  events_.Tick();
  EXPECT_EQ(Counted(), 100'000u) << "none is forgotten";
  const uint64_t last = events_.last_sequence();
  clock_.Advance(10 * kNsPerS);
  events_.Tick();
  events_.Tick();
  EXPECT_EQ(events_.last_sequence(), last) << "nothing happened: nothing is reported";
  events_.AddCounted(Refusal(1));
  EXPECT_EQ(events_.last_sequence(), last + 1) << "and the next is reported at once";
}

TEST_F(EventsTest, WhatDiffersIsReportedApart) {
  events_.AddCounted(Refusal(1));
  events_.AddCounted(Refusal(2));
  Event full = Refusal(1);
  full.why = "device_full";
  events_.AddCounted(full);
  EXPECT_EQ(events_.last_sequence(), 3u);
}

TEST_F(EventsTest, ManyDifferentOnesAreHeldBackWithinBounds) {
  std::mt19937 random(1);
  uint64_t sum = 0;
  for (int i = 0; i < 50'000; ++i) {
    const uint64_t count = 1 + random() % 3;
    events_.AddCounted(Refusal(random() % 3'000, count));
    sum += count;
  }
  // The ring has lost most of them; what it kept and what is held back is bounded.
  EXPECT_EQ(events_.After(0).events.size(), Events::kKept);
  clock_.Advance(2 * kNsPerS);
  const uint64_t before = events_.last_sequence();
  events_.Tick();
  EXPECT_LE(events_.last_sequence() - before, Events::kMaxHeldBack);
  EXPECT_GT(sum, 50'000u);
}

TEST_F(EventsTest, LongTextsAreCut) {
  events_.Add({.share = "a", .detail = std::string(5'000, 'x')});
  EXPECT_EQ(events_.After(0).events[0].detail.size(), 512u);
}

}  // namespace
}  // namespace prorata::agent
