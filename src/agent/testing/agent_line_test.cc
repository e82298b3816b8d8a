// Shares that wait in line until they fit, as clients of the control socket see it.

#include <unistd.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "agent/testing/testing_agent.h"

namespace prorata::agent {
namespace {

using nlohmann::json;
using testing::AgentProcess;
using testing::Call;
using testing::DevicePage;
using testing::Eventually;
using wire::MessageType;

// The device has 8 GiB.
class AgentLineTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(agent_.Start(), "ready"); }

  static json Held(const std::string& name, uint64_t memory_bytes) {
    return {{"name", name}, {"memory_bytes", memory_bytes}, {"token", name}};
  }
  json Create(const json& share) {
    return Call(folder_.path(), {{"op", "create_share"}, {"share", share}});
  }
  void Remove(const std::string& name) {
    EXPECT_FALSE(Call(folder_.path(), {{"op", "remove_share"}, {"name", name}}).contains("error"));
  }
  // Asks for a share and stands in line; what is heard of it comes by Hear.
  void Ask(const json& share, const json& wait = json::object()) {
    UniqueFd socket = testing::ConnectTo(folder_.path() + "/control");
    const std::string text = json{{"op", "create_share"}, {"share", share}, {"wait", wait}}.dump();
    EXPECT_TRUE(testing::SendFrame(socket.get(), static_cast<uint16_t>(MessageType::kControlJson),
                                   text.data(), text.size()));
    clients_[share["name"]] = std::move(socket);
  }
  json Hear(const std::string& name) {
    const auto frame = testing::ReceiveFrame(clients_[name].get());
    return frame ? json::parse(frame->body) : json();
  }
  // Asks, and hears that it waits.
  json Wait(const json& share, const json& wait = json::object()) {
    Ask(share, wait);
    const json reply = Hear(share["name"]);
    EXPECT_TRUE(reply.contains("waiting")) << reply;
    return reply.value("waiting", json::object());
  }
  json List(const char* field) {
    return Call(folder_.path(), {{"op", "list_shares"}}).value(field, json::array());
  }
  std::vector<std::string> NamesIn(const char* field) {
    std::vector<std::string> names;
    for (const json& entry : List(field)) names.push_back(entry["name"]);
    return names;
  }
  // "kind: share outcome", of those about the line.
  std::vector<std::string> Events() {
    std::vector<std::string> found;
    const json reply = Call(folder_.path(), {{"op", "events"}, {"since", 0}});
    for (const json& event : reply["events"]) {
      const std::string kind = event["event"];
      if (!kind.starts_with("share_wait")) continue;
      found.push_back(event.value("share", "") + " " + event.value("outcome", "waits"));
    }
    return found;
  }
  // What the next agent knows of the line is on the disk.
  void AwaitLineOnDisk(int length) {
    const auto saved = [&] {
      std::ifstream file(folder_.path() + "/state.json");
      const json state = json::parse(file, nullptr, /*allow_exceptions=*/false);
      return state.is_object() && state.value("waiting", 0) == length;
    };
    EXPECT_TRUE(Eventually(saved));
  }

  testing::TemporaryFolder folder_;
  DevicePage* page_ = DevicePage::Make();
  AgentProcess agent_{folder_.path(), page_};
  std::map<std::string, UniqueFd> clients_;
};

using Names = std::vector<std::string>;

TEST_F(AgentLineTest, WaitsIsReportedItsPlaceAndIsMade) {
  ASSERT_TRUE(Create(Held("holder", 6 * kGiB)).contains("share"));
  const json first = Wait(Held("first", 4 * kGiB));
  EXPECT_EQ(first["place"], 1);
  EXPECT_NE(first["why"].get<std::string>().find("only 2 GiB left"), std::string::npos) << first;
  const json second = Wait(Held("second", 5 * kGiB));
  EXPECT_EQ(second["place"], 2);
  EXPECT_EQ(NamesIn("waiting"), (Names{"first", "second"}));
  EXPECT_EQ(List("waiting")[0]["pid"], ::getpid());
  EXPECT_EQ(NamesIn("shares"), (Names{"holder"}));
  Remove("holder");
  EXPECT_EQ(Hear("first")["share"]["name"], "first");
  EXPECT_EQ(Hear("second")["waiting"]["place"], 1);
  Remove("first");
  EXPECT_EQ(Hear("second")["share"]["devices"][0]["memory_limit_bytes"], 5 * kGiB);
  EXPECT_EQ(List("waiting"), json::array());
  EXPECT_EQ(Events(), (Names{"first waits", "second waits", "first made", "second made"}));
}

TEST_F(AgentLineTest, WhatFitsDoesNotWait) {
  Ask(Held("now", kGiB));
  EXPECT_TRUE(Hear("now").contains("share"));
  EXPECT_EQ(Events(), Names{});
}

TEST_F(AgentLineTest, ADeadClientLeavesTheLineAtOnce) {
  ASSERT_TRUE(Create(Held("holder", 6 * kGiB)).contains("share"));
  Wait(Held("first", 4 * kGiB));
  Wait(Held("second", 3 * kGiB));
  clients_.erase("first");
  EXPECT_EQ(Hear("second")["waiting"]["place"], 1);
  EXPECT_EQ(NamesIn("waiting"), (Names{"second"}));
  Remove("holder");
  EXPECT_TRUE(Hear("second").contains("share"));
  EXPECT_EQ(NamesIn("shares"), (Names{"second"}));
  EXPECT_EQ(Events(), (Names{"first waits", "second waits", "first given_up", "second made"}));
}

TEST_F(AgentLineTest, WhatCanNeverFitOrBeJudgedIsRefusedAtOnce) {
  ASSERT_TRUE(Create(Held("holder", 8 * kGiB)).contains("share"));
  Ask(Held("big", 9 * kGiB));
  json reply = Hear("big");
  EXPECT_EQ(reply["error"]["code"], "memory_exceeded");
  EXPECT_NE(reply["error"]["message"].get<std::string>().find("can never fit"), std::string::npos);
  Ask({{"name", "any"}});
  EXPECT_EQ(Hear("any")["error"]["code"], "memory_missing");
  Ask({{"name", "gpu"}, {"gpu", "7"}, {"memory_bytes", kGiB}});
  EXPECT_EQ(Hear("gpu")["error"]["code"], "unknown_gpu");
  Ask(Held("holder", kGiB));
  EXPECT_TRUE(Hear("holder").contains("share")) << "the same token";
  Wait(Held("first", kGiB));
  json other = Held("first", kGiB);
  other["token"] = "other";
  EXPECT_EQ(Create(other)["error"]["code"], "name_in_use");
  EXPECT_EQ(NamesIn("waiting"), (Names{"first"}));
}

TEST_F(AgentLineTest, AfterItsTimeItIsRefusedWithItsPlace) {
  ASSERT_TRUE(Create(Held("holder", 6 * kGiB)).contains("share"));
  Wait(Held("first", 4 * kGiB));
  Wait(Held("second", 4 * kGiB), {{"within_ms", 300}});
  const json reply = Hear("second");
  EXPECT_EQ(reply["error"]["code"], "timed_out") << reply;
  const std::string message = reply["error"]["message"];
  EXPECT_NE(message.find("2nd in line"), std::string::npos) << message;
  EXPECT_NE(message.find("4 GiB"), std::string::npos) << message;
  EXPECT_EQ(NamesIn("waiting"), (Names{"first"}));
  EXPECT_EQ(Events(), (Names{"first waits", "second waits", "second timed_out"}));
}

TEST_F(AgentLineTest, ASmallerOneOvertakesWhereThatDelaysNobody) {
  ASSERT_TRUE(Create(Held("holder", 4 * kGiB)).contains("share"));
  ASSERT_TRUE(Create(Held("other", 1 * kGiB)).contains("share"));
  // Needs the holder gone, and then there are 2 GiB more than it needs beside `other`.
  Wait(Held("first", 5 * kGiB));
  Ask(Held("small", 2 * kGiB));
  EXPECT_TRUE(Hear("small").contains("share"));
  Wait(Held("late", kGiB));
  // Nor does one that does not wait take what those in line wait for.
  const json refused = Create(Held("never", kGiB));
  EXPECT_EQ(refused["error"]["code"], "others_wait") << refused;
  Remove("holder");
  EXPECT_TRUE(Hear("first").contains("share"));
}

TEST_F(AgentLineTest, RequestsAndTheNumberOfSharesAreWaitedForToo) {
  json half = Held("half", kGiB);
  half["compute_request"] = 0.6;
  ASSERT_TRUE(Create(half).contains("share"));
  json more = Held("more", kGiB);
  more["compute_request"] = 0.5;
  EXPECT_NE(Wait(more)["why"].get<std::string>().find("requests 0.5"), std::string::npos);
  // Memory alone is in nobody's way.
  Ask(Held("memory", kGiB));
  EXPECT_TRUE(Hear("memory").contains("share"));
  Remove("half");
  EXPECT_TRUE(Hear("more").contains("share"));
}

TEST_F(AgentLineTest, AnUpdateMakesRoomForTheNext) {
  ASSERT_TRUE(Create(Held("holder", 6 * kGiB)).contains("share"));
  Wait(Held("first", 4 * kGiB));
  Call(folder_.path(),
       {{"op", "update_share"}, {"name", "holder"}, {"change", {{"memory_bytes", 4 * kGiB}}}});
  EXPECT_TRUE(Hear("first").contains("share"));
}

TEST_F(AgentLineTest, AfterADeathOfTheAgentTheOrderIsAsBefore) {
  ASSERT_TRUE(Create(Held("holder", 6 * kGiB)).contains("share"));
  std::map<std::string, json> since;
  for (const std::string name : {"a", "b", "c"}) {
    since[name] = {{"since_ms", Wait(Held(name, 4 * kGiB))["since_ms"]}};
    ::usleep(3000);  // who was in line first is known by the millisecond
  }
  AwaitLineOnDisk(3);
  agent_.Kill();
  ASSERT_EQ(agent_.Start(), "ready");
  Remove("holder");
  // A newcomer, and they in another order: room is there, and the first of before has it.
  Ask(Held("new", 4 * kGiB));
  Ask(Held("c", 4 * kGiB), since["c"]);
  Ask(Held("b", 4 * kGiB), since["b"]);
  Ask(Held("a", 4 * kGiB), since["a"]);
  EXPECT_TRUE(Hear("a").contains("share"));
  EXPECT_TRUE(Hear("b").contains("share"));
  EXPECT_EQ(Hear("c")["waiting"]["place"], 1);
  EXPECT_EQ(Hear("new")["waiting"]["place"], 2);
}

TEST_F(AgentLineTest, ThoseThatDoNotComeBackAreNotWaitedForLong) {
  ASSERT_TRUE(Create(Held("holder", 6 * kGiB)).contains("share"));
  Wait(Held("a", 4 * kGiB));
  Wait(Held("b", 4 * kGiB));
  AwaitLineOnDisk(2);
  agent_.Kill();
  ASSERT_EQ(agent_.Start(), "ready");
  Remove("holder");
  Ask(Held("new", 8 * kGiB));
  EXPECT_TRUE(Hear("new").contains("share"));
}

// The agent is killed when the share is on the disk and nobody has the answer.
TEST_F(AgentLineTest, WhoAsksTheNextAgentForTheSameGetsTheShareThatWasMadeForIt) {
  for (const json& wait : {json(), json::object()}) {
    const json asked = {{"memory_bytes", 5 * kGiB}, {"weight", 7}, {"gang", "never"}};
    agent_.Kill();
    ASSERT_EQ(agent_.Start(), "ready");
    ASSERT_TRUE(Create(asked).contains("share"));  // as if that had not been heard
    agent_.Kill();
    ASSERT_EQ(agent_.Start(), "ready");
    const std::string name = List("shares")[0]["name"];
    json other = asked;
    other["weight"] = 8;
    EXPECT_EQ(Create(other)["error"]["code"], "memory_exceeded") << "it asks for something else";
    other = asked;
    other["name"] = "other";
    EXPECT_EQ(Create(other)["error"]["code"], "memory_exceeded");
    json request = {{"op", "create_share"}, {"share", asked}};
    if (!wait.is_null()) request["wait"] = wait;
    const json again = Call(folder_.path(), request);
    ASSERT_TRUE(again.contains("share")) << again;
    EXPECT_EQ(again["share"]["name"], name);
    EXPECT_EQ(List("shares").size(), 1u);
    EXPECT_EQ(Create(asked)["error"]["code"], "memory_exceeded") << "it has been answered";
    Remove(name);
  }
}

TEST_F(AgentLineTest, AClientThatIsGoneWhenItsShareIsMadeLeavesNothing) {
  agent_.Kill();
  agent_.slow_disk_ms = 300;
  ASSERT_EQ(agent_.Start(), "ready");
  ASSERT_TRUE(Create(Held("holder", 6 * kGiB)).contains("share"));
  Wait(Held("a", 4 * kGiB));
  Remove("holder");
  ASSERT_TRUE(Eventually([&] { return NamesIn("shares") == Names{"a"}; })) << "being written";
  clients_.erase("a");
  EXPECT_TRUE(Eventually([&] { return List("shares").empty(); }));
  EXPECT_NE(::access((folder_.path() + "/shares/a").c_str(), F_OK), 0);
  EXPECT_EQ(Events(), (Names{"a waits", "a given_up"}));
}

}  // namespace
}  // namespace prorata::agent
