#include "api/trace.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "api/control.h"

namespace prorata::api {
namespace {

using nlohmann::json;

TraceReply Reply() {
  TraceReply reply;
  reply.now_ns = 9'000;
  reply.now_unix_ns = 1'795'000'000'000'000'123;
  reply.since_ns = 1'000;
  reply.since_start = false;
  reply.shares = {{4, {"train", true}}, {5, {"serve", false}}};
  reply.lost = 3;
  reply.next = 17;
  reply.last = 20;
  for (const uint32_t lane : {4, 5}) {
    TraceEntry state = {};
    state.time_ns = 2'000;
    state.kind = TraceKind::kState;
    state.lane = lane;
    state.state = TraceState::kWaitsLimit;
    state.value_ns = 77;
    state.lag_us = -5;
    state.held_us = 12;
    state.gang = true;
    reply.entries.push_back(state);
  }
  TraceEntry other = {};
  other.kind = TraceKind::kMode;
  other.mode = TraceMode::kCoRunSet;
  reply.entries.push_back(other);
  other = {};
  other.kind = TraceKind::kEvent;
  other.event = EventKind::kPersistentKernel;
  reply.entries.push_back(other);
  other = {};
  other.kind = TraceKind::kLate;
  other.value_ns = 5;
  reply.entries.push_back(other);
  return reply;
}

TEST(Trace, AReplyIsReadAsItWasWritten) {
  const auto read = TraceFromJson(ToJson(Reply()));
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_EQ(ToJson(*read), ToJson(Reply()));
  EXPECT_EQ(read->now_unix_ns, Reply().now_unix_ns);
  EXPECT_EQ(read->entries.at(0).lag_us, -5);
  EXPECT_EQ(read->entries.at(0).held_us, 12u);
  EXPECT_TRUE(read->entries.at(0).gang);
  EXPECT_EQ(read->entries.at(2).mode, TraceMode::kCoRunSet);
  EXPECT_EQ(read->entries.at(3).event, EventKind::kPersistentKernel);
}

// TRUST.md: of a share that a user may not use, no more is seen than `ps` shows.
TEST(Trace, ALagThatIsNotTheReadersIsNotSent) {
  const json entries = ToJson(Reply()).at("entries");
  EXPECT_TRUE(entries.at(0).contains("lag_ns"));
  EXPECT_FALSE(entries.at(1).contains("lag_ns"));
}

TEST(Trace, EveryNameIsReadAgain) {
  for (int i = 0; i <= static_cast<int>(TraceState::kWaitsPause); ++i) {
    TraceReply reply;
    reply.entries.push_back({});
    reply.entries[0].state = static_cast<TraceState>(i);
    EXPECT_NE(NameOf(reply.entries[0].state), "unknown") << i;
    ASSERT_TRUE(TraceFromJson(ToJson(reply)).has_value()) << i;
    EXPECT_EQ(TraceFromJson(ToJson(reply))->entries[0].state, reply.entries[0].state);
  }
  for (int i = 0; i <= static_cast<int>(TraceKind::kEvent); ++i) {
    TraceReply reply;
    reply.entries.push_back({});
    reply.entries[0].kind = static_cast<TraceKind>(i);
    const auto read = TraceFromJson(ToJson(reply));
    ASSERT_TRUE(read.has_value()) << i << ": " << read.error().message;
    EXPECT_EQ(read->entries[0].kind, reply.entries[0].kind);
  }
}

TEST(Trace, WhatIsNoReplyIsRefused) {
  const auto code = [](json object, const char* field, json value) {
    object[field] = std::move(value);
    const auto read = TraceFromJson(object);
    return read ? "" : read.error().code;
  };
  const json good = ToJson(Reply());
  EXPECT_EQ(code(good, "new_field", 1), "");
  EXPECT_EQ(code(good, "next", "x"), "agent_reply");
  EXPECT_EQ(code(good, "entries", {{{"time_ns", 1}, {"kind", "no such"}}}), "agent_reply");
  EXPECT_EQ(code(good, "entries", {{{"time_ns", 1}, {"kind", "state"}, {"state", "x"}}}),
            "agent_reply");
  EXPECT_EQ(code(good, "entries", {{{"kind", "late"}}}), "agent_reply");
  EXPECT_EQ(code(good, "shares", {1}), "agent_reply");
  EXPECT_FALSE(TraceFromJson(json::array()).has_value());
}

TEST(Trace, Requests) {
  const auto read = DecodeRequest(R"({"op": "trace", "gpu": "0", "seconds": 2.5, "after": 7})");
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_EQ(read->trace.gpu, "0");
  EXPECT_EQ(read->trace.seconds, 2.5);
  EXPECT_EQ(read->trace.after, 7u);
  EXPECT_EQ(DecodeRequest(EncodeRequest(*read))->trace.after, 7u);
  EXPECT_EQ(DecodeRequest(R"({"op": "trace", "gpu": "0"})")->trace.seconds, 10);
  for (const char* bad : {R"({"op": "trace"})", R"({"op": "trace", "gpu": 0})",
                          R"({"op": "trace", "gpu": "0", "seconds": 0})",
                          R"({"op": "trace", "gpu": "0", "seconds": -1})",
                          R"({"op": "trace", "gpu": "0", "seconds": 3601})",
                          R"({"op": "trace", "gpu": "0", "seconds": "1"})",
                          R"({"op": "trace", "gpu": "0", "after": -1})",
                          R"({"op": "trace", "gpu": "0", "follow": true})"}) {
    const auto refused = DecodeRequest(bad);
    ASSERT_FALSE(refused.has_value()) << bad;
    EXPECT_EQ(refused.error().code, "malformed") << bad;
  }
}

}  // namespace
}  // namespace prorata::api
