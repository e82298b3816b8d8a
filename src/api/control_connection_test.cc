#include "api/control_connection.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "api/agent_api.h"
#include "wire/frame.h"

namespace prorata::cli {
namespace {

// A listener in a folder of its own, whose one client is answered with given bytes.
class ControlConnectionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/prorata-control-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
    path_ = folder_ + "/control";
  }

  void TearDown() override {
    if (server_.joinable()) server_.join();
    std::filesystem::remove_all(folder_);
  }

  void Listen() {
    listener_ = UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    struct sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, path_.c_str());
    ASSERT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(::listen(listener_.get(), 1), 0);
  }

  // Reads some of a request, then answers `bytes`, one by one.
  void Answer(std::string bytes) {
    Listen();
    server_ = std::thread([this, bytes] {
      UniqueFd peer(::accept(listener_.get(), nullptr, nullptr));
      char request[4096];
      EXPECT_GT(::recv(peer.get(), request, sizeof request, 0), 0);
      for (const char byte : bytes) ::send(peer.get(), &byte, 1, MSG_NOSIGNAL);
      // Read what is left of the request, until the client has closed: closing a socket with unread
      // bytes resets the connection, and the client may lose the end of the answer.
      ::shutdown(peer.get(), SHUT_WR);
      while (::recv(peer.get(), request, sizeof request, 0) > 0) {
      }
    });
  }

  static std::string FrameOf(const std::string& body) {
    const wire::FrameHeader header = {static_cast<uint32_t>(body.size()),
                                      static_cast<uint16_t>(wire::MessageType::kControlJson),
                                      wire::kWireVersion};
    return std::string(reinterpret_cast<const char*>(&header), sizeof header) + body;
  }

  std::string CodeOfList() {
    auto connection = ControlConnection::Connect(path_);
    EXPECT_TRUE(connection) << connection.error().message;
    if (!connection) return "";
    auto shares = ListShares(&*connection);
    return shares ? "" : shares.error().code;
  }

  std::string folder_;
  std::string path_;
  UniqueFd listener_;
  std::thread server_;
};

TEST_F(ControlConnectionTest, NobodyThere) {
  EXPECT_EQ(ControlConnection::Connect(path_).error().code, "no_agent");
  Listen();
  listener_.Reset();  // a socket file that a killed agent left
  EXPECT_EQ(ControlConnection::Connect(path_).error().code, "no_agent");
}

TEST_F(ControlConnectionTest, PathTooLongForASocket) {
  const auto connection = ControlConnection::Connect("/" + std::string(200, 'x') + "/control");
  EXPECT_EQ(connection.error().code, "connect");
  EXPECT_NE(connection.error().message.find("PRORATA_DIR"), std::string::npos);
}

TEST_F(ControlConnectionTest, FolderOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  ASSERT_EQ(::chown(folder_.c_str(), 65534, 65534), 0);
  Listen();
  EXPECT_EQ(ControlConnection::Connect(path_).error().code, "foreign_agent");
}

TEST_F(ControlConnectionTest, ReplyInPieces) {
  Answer(FrameOf(R"({"shares": []})"));
  EXPECT_EQ(CodeOfList(), "");
}

TEST_F(ControlConnectionTest, ErrorOfTheAgent) {
  Answer(FrameOf(R"({"error": {"code": "name_in_use", "message": "it is in use"}})"));
  EXPECT_EQ(CodeOfList(), "name_in_use");
}

TEST_F(ControlConnectionTest, AgentEndsBeforeItAnswers) {
  Answer("");
  EXPECT_EQ(CodeOfList(), "agent_gone");
}

TEST_F(ControlConnectionTest, AgentEndsInTheMiddle) {
  Answer(FrameOf(R"({"shares": []})").substr(0, 15));
  EXPECT_EQ(CodeOfList(), "agent_gone");
}

TEST_F(ControlConnectionTest, WhatIsNoReply) {
  for (const char* body : {"[]", "{", "", "{}", R"({"shares": [{}]})", R"({"error": 3})"}) {
    SCOPED_TRACE(body);
    std::filesystem::remove(path_);
    Answer(FrameOf(body));
    EXPECT_EQ(CodeOfList(), "agent_reply");
    server_.join();
  }
}

TEST_F(ControlConnectionTest, ReplyThatClaimsToBeHuge) {
  Answer(std::string("\xff\xff\xff\x7f\x40\0\1\0", 8));
  EXPECT_EQ(CodeOfList(), "agent_reply");
}

}  // namespace
}  // namespace prorata::cli
