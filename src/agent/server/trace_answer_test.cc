// What the agent answers to op "trace".

#include <gtest/gtest.h>

#include <algorithm>

#include "agent/testing/testing_agent.h"
#include "api/trace.h"

namespace prorata::agent {
namespace {

using api::TraceKind;
using api::TraceReply;
using api::TraceState;
using nlohmann::json;
using testing::Call;
using testing::TestMember;

class TraceAnswerTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(agent_.Start(), "ready"); }
  json Ask(const json& fields) {
    json request = {{"op", "trace"}};
    request.update(fields);
    return Call(folder_.path(), request);
  }
  TraceReply Trace() {
    const auto read = api::TraceFromJson(Ask({{"gpu", "0"}, {"seconds", 60}}).at("trace"));
    EXPECT_TRUE(read.has_value());
    return read.value_or(TraceReply{});
  }
  bool Has(TraceState state) {
    const TraceReply trace = Trace();
    return std::any_of(trace.entries.begin(), trace.entries.end(), [state](const auto& entry) {
      return entry.kind == TraceKind::kState && entry.state == state;
    });
  }
  bool Has(TraceKind kind) {
    const TraceReply trace = Trace();
    return std::any_of(trace.entries.begin(), trace.entries.end(),
                       [kind](const auto& entry) { return entry.kind == kind; });
  }
  std::string Make(const std::string& name) {
    const json reply = Call(folder_.path(), {{"op", "create_share"},
                                             {"share", {{"name", name}, {"memory_bytes", kGiB}}}});
    return reply.at("share").at("directory").get<std::string>();
  }

  testing::TemporaryFolder folder_;
  testing::DevicePage* page_ = testing::DevicePage::Make();
  testing::AgentProcess agent_{folder_.path(), page_};
};

TEST_F(TraceAnswerTest, OfADeviceThatNobodyUsed) {
  const TraceReply trace = Trace();
  EXPECT_TRUE(trace.entries.empty());
  EXPECT_TRUE(trace.since_start);
  EXPECT_GT(trace.now_ns, trace.since_ns);
  EXPECT_EQ(Ask({{"gpu", testing::kUuid}}).count("trace"), 1u);
}

TEST_F(TraceAnswerTest, OfAShareThatRanAndEnded) {
  {
    testing::StandIn program;
    TestMember member(Make("a"), &program);
    ASSERT_NE(member.Join(), 0);
    member.usage().launches = 1;
    member.usage().backlog_ns = 1'000'000;
    EXPECT_TRUE(testing::Eventually([this] { return Has(TraceState::kRunsFreely); }));
  }
  Call(folder_.path(), {{"op", "remove_share"}, {"name", "a"}});
  EXPECT_TRUE(testing::Eventually([this] { return Has(TraceKind::kShareEnded); }));
  const TraceReply trace = Trace();
  // On a busy machine the agent's loop may have been held up before.
  const auto first = std::ranges::find_if(trace.entries, [](const api::TraceEntry& one) {
    return one.kind != TraceKind::kLate && one.kind != TraceKind::kOutage;
  });
  ASSERT_NE(first, trace.entries.end());
  EXPECT_EQ(first->kind, TraceKind::kShareBegun);
  bool joined = false;
  for (const api::TraceEntry& entry : trace.entries) {
    joined =
        joined || (entry.kind == TraceKind::kEvent && entry.event == api::EventKind::kMemberJoined);
  }
  EXPECT_TRUE(joined);
  EXPECT_EQ(trace.shares.begin()->second.name, "a") << "the name outlives the share";
}

TEST_F(TraceAnswerTest, AnAgentKnowsNothingOfTheOneBefore) {
  Make("a");
  const TraceReply before = Trace();
  ASSERT_FALSE(before.entries.empty());
  agent_.Kill();
  ASSERT_EQ(agent_.Start(), "ready");
  const TraceReply after = Trace();
  EXPECT_GT(after.since_ns, before.now_ns);
  ASSERT_FALSE(after.entries.empty()) << "the share was adopted";
  EXPECT_GE(after.entries.front().time_ns, after.since_ns);
}

TEST_F(TraceAnswerTest, BadQuestions) {
  EXPECT_EQ(Ask({{"gpu", "7"}}).at("error").at("code"), "unknown_gpu");
  EXPECT_EQ(Ask(json::object()).at("error").at("code"), "malformed");
  EXPECT_EQ(Ask({{"gpu", "0"}, {"seconds", -1}}).at("error").at("code"), "malformed");
}

}  // namespace
}  // namespace prorata::agent
