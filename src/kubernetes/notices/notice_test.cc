#include "kubernetes/notices/notice.h"

#include <gtest/gtest.h>

namespace prorata::kubernetes {
namespace {

using api::Event;
using api::EventKind;

Event Refusal(const std::string& share) {
  Event event;
  event.kind = EventKind::kRefusal;
  event.share = share;
  event.gpu = 0;
  event.pid = 812;
  event.command = "python";
  event.asked_bytes = uint64_t{2} << 30;
  event.limit_bytes = uint64_t{4} << 30;
  event.used_bytes = uint64_t{3} << 30;
  event.why = "own_limit";
  return event;
}

TEST(Notice, IsOfWhatAPodsOwnerWantsToKnow) {
  const auto refused = NoticeOf(Refusal("a"));
  ASSERT_TRUE(refused);
  EXPECT_TRUE(refused->warning);
  EXPECT_EQ(refused->reason, "GpuMemoryRefused");
  EXPECT_EQ(refused->message,
            "process 812 (python) was refused 2 GiB on GPU 0: the share's limit is 4 GiB, and "
            "it holds 3 GiB");
  Event event;
  event.kind = EventKind::kWaitBegun;
  event.share = "a";
  EXPECT_FALSE(NoticeOf(event)->warning);
  event.kind = EventKind::kMemberJoined;
  EXPECT_FALSE(NoticeOf(event));
  event.kind = EventKind::kOutsideProcess;
  EXPECT_TRUE(NoticeOf(event)->warning);
  event.share = "";
  EXPECT_FALSE(NoticeOf(event));
}

TEST(NoticeFilter, LetsOneOfAKindThroughAMinuteAndCountsTheRest) {
  NoticeFilter filter;
  EXPECT_TRUE(filter.Admit(Refusal("a"), 1'000));
  for (int i = 1; i < 60; ++i) EXPECT_FALSE(filter.Admit(Refusal("a"), 1'000 + i * 1'000));
  // Of another share, and of another kind.
  EXPECT_TRUE(filter.Admit(Refusal("b"), 2'000));
  Event waits = Refusal("a");
  waits.kind = EventKind::kWaitBegun;
  EXPECT_TRUE(filter.Admit(waits, 2'000));
  Event many = Refusal("a");
  many.count = 7;
  EXPECT_FALSE(filter.Admit(many, 60'999));
  const auto next = filter.Admit(Refusal("a"), 61'000);
  ASSERT_TRUE(next);
  EXPECT_TRUE(next->message.ends_with("; 66 more like this were not told")) << next->message;
  EXPECT_FALSE(filter.Admit(Refusal("a"), 62'000));
  EXPECT_TRUE(filter.Admit(Refusal("a"), 121'000));
}

TEST(NoticeFilter, AShareOfTheSameNameBeginsAnew) {
  NoticeFilter filter;
  EXPECT_TRUE(filter.Admit(Refusal("a"), 1'000));
  Event ended;
  ended.kind = EventKind::kShareEnded;
  ended.share = "a";
  EXPECT_FALSE(filter.Admit(ended, 2'000));
  EXPECT_TRUE(filter.Admit(Refusal("a"), 3'000));
}

}  // namespace
}  // namespace prorata::kubernetes
