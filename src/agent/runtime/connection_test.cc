#include "agent/runtime/connection.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <memory>

namespace prorata::agent {
namespace {

using wire::MessageType;

struct Pair {
  Pair() {
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    peer = UniqueFd(fds[0]);
    connection = std::make_shared<Connection>(loop, UniqueFd(fds[1]), 64, 1024);
    connection->Start({.on_frame = [this](const auto&, const uint8_t*, auto&) { ++frames; },
                       .on_malformed = [this] { ++malformed; },
                       .on_closed = [this] { ++closed; }});
  }
  void Send() const {
    const wire::Frame<wire::Refused> frame(MessageType::kRefused, {});
    EXPECT_EQ(::write(peer.get(), &frame, sizeof frame), static_cast<ssize_t>(sizeof frame));
  }
  boost::asio::io_context loop;
  UniqueFd peer;
  std::shared_ptr<Connection> connection;
  int frames = 0, malformed = 0, closed = 0;
};

TEST(ConnectionTest, WhatHasComeIsServedBeforeTheLoopGoesOn) {
  Pair pair;
  pair.Send();
  EXPECT_EQ(pair.frames, 0);
  pair.connection->Read();
  EXPECT_EQ(pair.frames, 1);
  pair.loop.poll();
  EXPECT_EQ(pair.frames, 1);
  pair.Send();
  pair.loop.poll();
  EXPECT_EQ(pair.frames, 2);
}

TEST(ConnectionTest, WhoSpeaksLaterIsServedByTheLoop) {
  Pair pair;
  pair.connection->Read();
  EXPECT_EQ(pair.frames, 0);
  pair.Send();
  pair.loop.poll();
  EXPECT_EQ(pair.frames, 1);
}

TEST(ConnectionTest, WhoIsGoneOrSpeaksNonsenseEndsAtOnce) {
  Pair gone;
  gone.peer.Reset();
  gone.connection->Read();
  EXPECT_EQ(gone.closed, 1);
  Pair nonsense;
  const uint32_t words[] = {~0U, ~0U};
  ASSERT_EQ(::write(nonsense.peer.get(), words, sizeof words), 8);
  nonsense.connection->Read();
  EXPECT_EQ(nonsense.malformed, 1);
  EXPECT_EQ(nonsense.closed, 1);
  nonsense.loop.poll();
}

}  // namespace
}  // namespace prorata::agent
