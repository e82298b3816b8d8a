#include "api/event.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "api/control.h"
#include "base/bytes.h"

namespace prorata::api {
namespace {

Event Refusal() {
  return {.kind = EventKind::kRefusal,
          .sequence = 7,
          .time_unix_ms = 1'000,
          .share = "a",
          .gpu = 0,
          .uuid = "GPU-1",
          .pid = 812,
          .command = "python",
          .asked_bytes = 2 * kGiB,
          .limit_bytes = 4 * kGiB,
          .used_bytes = 3 * kGiB,
          .why = "own_limit"};
}

TEST(Event, SaysWhatWasAskedAndWhatThereIs) {
  Event event = Refusal();
  EXPECT_EQ(Words(event),
            "process 812 (python) was refused 2 GiB on GPU 0: the share's limit is 4 GiB, and "
            "it holds 3 GiB");
  event.count = 3;
  event.why = "device_full";
  EXPECT_EQ(Words(event),
            "process 812 (python) was refused 3 times on GPU 0, last 2 GiB: the GPU is full, "
            "and the share holds 3 GiB");
}

TEST(Event, APersistentKernelIsReportedWithWhatToDo) {
  Event event = Refusal();
  event.kind = EventKind::kPersistentKernel;
  event.running_ms = 12'345;
  const std::string words = Words(event);
  for (const char* part : {"process 812 (python)", "for 12 s on GPU 0", "cannot be preempted",
                           "Give the share a GPU of its own"}) {
    EXPECT_NE(words.find(part), std::string::npos) << words;
  }
  event.kind = EventKind::kPersistentKernelOver;
  EXPECT_EQ(Words(event),
            "process 812 (python) runs no persistent kernel any more on GPU 0: the last one "
            "ran for 12 s");
}

TEST(Event, OnlyWhatItHasIsInItsJson) {
  EXPECT_EQ(ToJson(Event{.kind = EventKind::kShareEnded, .sequence = 1, .share = "a"}),
            nlohmann::json::parse(
                R"({"sequence": 1, "time_unix_ms": 0, "event": "share_ended", "share": "a"})"));
  EXPECT_EQ(ToJson(Refusal()),
            nlohmann::json::parse(R"({"sequence": 7, "time_unix_ms": 1000, "event": "refusal",
    "share": "a", "gpu": 0, "uuid": "GPU-1", "pid": 812, "command": "python",
    "asked_bytes": 2147483648, "limit_bytes": 4294967296, "used_bytes": 3221225472,
    "why": "own_limit"})"));
}

TEST(Event, EveryKindRoundTripsAndHasWords) {
  std::set<std::string> names;
  for (int i = 0; i < static_cast<int>(kEventKinds); ++i) {
    Event event = Refusal();
    event.kind = static_cast<EventKind>(i);
    event.count = 5;
    event.waited_ms = 90;
    event.running_ms = 12'345;
    event.outcome = "granted";
    event.detail = "more";
    const auto again = EventFromJson(ToJson(event));
    ASSERT_TRUE(again.has_value()) << i;
    EXPECT_EQ(ToJson(*again), ToJson(event));
    EXPECT_NE(NameOf(event.kind), "unknown");
    EXPECT_NE(Words(event), NameOf(event.kind));
    EXPECT_TRUE(names.insert(NameOf(event.kind)).second);
  }
}

TEST(Event, WhatIsNoEventIsAnError) {
  for (const char* text :
       {"[]", "{}", R"({"event": "refusal"})",
        R"({"event": "nothing known", "sequence": 1, "time_unix_ms": 1})",
        R"({"event": "refusal", "sequence": "1", "time_unix_ms": 1})",
        R"({"event": "refusal", "sequence": 1, "time_unix_ms": 1, "share": 5})"}) {
    const auto event = EventFromJson(nlohmann::json::parse(text));
    ASSERT_FALSE(event.has_value()) << text;
    EXPECT_EQ(event.error().code, "agent_reply");
  }
}

TEST(Event, RepliesRoundTrip) {
  const EventsReply reply{{Refusal(), Refusal()}, 3, 7, 9};
  const auto again = EventsFromJson(ToJson(reply));
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(ToJson(*again), ToJson(reply));
  EXPECT_FALSE(EventsFromJson(nlohmann::json::parse(R"({"events": [1]})")).has_value());
  EXPECT_FALSE(EventsFromJson(nlohmann::json::parse(R"({"events": []})")).has_value());
}

TEST(Event, TheLongestReplyFitsAFrame) {
  EventsReply reply;
  Event event = Refusal();
  for (std::string* text :
       {&event.share, &event.uuid, &event.command, &event.why, &event.outcome, &event.detail}) {
    *text = std::string(128, '"');  // written as two characters each
  }
  reply.events.assign(kMaxEventsInReply, event);
  EXPECT_LT(ToJson(reply).dump().size(), size_t{1} << 20);
}

}  // namespace
}  // namespace prorata::api
