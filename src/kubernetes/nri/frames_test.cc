#include "kubernetes/nri/frames.h"

#include <gtest/gtest.h>

#include <random>

namespace prorata::kubernetes {
namespace {

TtrpcMessage Message(uint32_t connection, uint32_t stream, std::string data) {
  return {connection, stream, TtrpcType::kRequest, 0, std::move(data)};
}

// A frame's header, and what follows it.
std::string Frame(uint32_t connection, uint32_t size, std::string_view piece) {
  std::string frame;
  for (const uint32_t value : {connection, size}) {
    for (const int shift : {24, 16, 8, 0}) frame.push_back(static_cast<char>(value >> shift));
  }
  return frame + std::string(piece);
}

std::vector<TtrpcMessage> TakeInChunks(std::string_view bytes, size_t largest,
                                       std::mt19937* random) {
  FrameDecoder decoder;
  std::vector<TtrpcMessage> all;
  while (!bytes.empty()) {
    const size_t size = std::min<size_t>(bytes.size(), 1 + (*random)() % largest);
    auto some = decoder.Take(bytes.substr(0, size));
    EXPECT_TRUE(some) << some.error().message;
    if (!some) break;
    all.insert(all.end(), some->begin(), some->end());
    bytes.remove_prefix(size);
  }
  return all;
}

TEST(FramesTest, LayoutOnTheWire) {
  const TtrpcMessage message = {kRuntimeConnection, 0x01020304, TtrpcType::kResponse, 5, "ab"};
  const std::string bytes = EncodeFrames(message);
  EXPECT_EQ(bytes, std::string("\0\0\0\2"
                               "\0\0\0\x0c"
                               "\0\0\0\2"
                               "\1\2\3\4"
                               "\2"
                               "\5"
                               "ab",
                               20));
  FrameDecoder decoder;
  EXPECT_EQ(*decoder.Take(bytes), std::vector{message});
}

TEST(FramesTest, AnyChunksGiveTheSameMessages) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 50; ++round) {
    std::vector<TtrpcMessage> sent;
    std::string bytes;
    for (uint32_t i = 0; i < 8; ++i) {
      sent.push_back(Message(1 + random() % 2, random(), std::string(random() % 9'000, 'a' + i)));
      bytes += EncodeFrames(sent.back());
    }
    EXPECT_EQ(TakeInChunks(bytes, 1 + random() % 5'000, &random), sent);
  }
}

TEST(FramesTest, FramesAreAsLargeAsTheOtherEndsBuffer) {
  const std::string bytes = EncodeFrames(Message(kPluginConnection, 1, std::string(10'000, 'x')));
  for (size_t at = 0; at < bytes.size();) {
    ASSERT_LE(at + 8, bytes.size());
    const size_t size =
        static_cast<uint8_t>(bytes[at + 6]) * 256 + static_cast<uint8_t>(bytes[at + 7]);
    EXPECT_LE(size, 4'096u);
    at += 8 + size;
  }
}

// Go's end sends a long message as two frames or more, and frames of two connections in turn.
TEST(FramesTest, MessagesInPiecesBesideEachOther) {
  const std::string one = EncodeFrames(Message(kPluginConnection, 1, "first")).substr(8);
  const std::string other = EncodeFrames(Message(kRuntimeConnection, 7, "second")).substr(8);
  std::string bytes;
  for (size_t i = 0; i < std::max(one.size(), other.size()); ++i) {
    if (i < one.size()) bytes += Frame(kPluginConnection, 1, one.substr(i, 1));
    if (i < other.size()) bytes += Frame(kRuntimeConnection, 1, other.substr(i, 1));
  }
  FrameDecoder decoder;
  EXPECT_EQ(*decoder.Take(bytes), (std::vector{Message(kPluginConnection, 1, "first"),
                                               Message(kRuntimeConnection, 7, "second")}));
}

TEST(FramesTest, OtherConnectionsAndEmptyFramesAreNothing) {
  FrameDecoder decoder;
  EXPECT_TRUE(decoder.Take(Frame(0, 3, "abc") + Frame(9, 3, "abc") + Frame(1, 0, ""))->empty());
  EXPECT_EQ(decoder.Take(EncodeFrames(Message(1, 1, "x")))->size(), 1u);
}

TEST(FramesTest, WhatIsCutOffIsNoMessage) {
  const std::string bytes = EncodeFrames(Message(kPluginConnection, 3, "hello"));
  for (size_t size = 0; size < bytes.size(); ++size) {
    FrameDecoder decoder;
    EXPECT_TRUE(decoder.Take(std::string_view(bytes).substr(0, size))->empty()) << size;
  }
}

TEST(FramesTest, SizesThatNoRuntimeSends) {
  for (const uint32_t size : {0xffffffffu, 0x80000000u, (4u << 20) + 11}) {
    EXPECT_EQ(FrameDecoder().Take(Frame(kPluginConnection, size, "")).error().code, "nri_protocol");
  }
  EXPECT_TRUE(FrameDecoder().Take(Frame(kPluginConnection, (4u << 20) + 10, "")));
  std::string message = EncodeFrames(Message(kPluginConnection, 1, "x"));
  message[8] = '\x7f';
  const auto bad = FrameDecoder().Take(message);
  ASSERT_FALSE(bad);
  EXPECT_NE(bad.error().message.find("a message of 2130706433 bytes"), std::string::npos)
      << bad.error().message;
}

// Whatever comes, it is messages, nothing, or an error.
TEST(FramesTest, BytesAtRandom) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  size_t refused = 0;
  for (int round = 0; round < 3'000; ++round) {
    std::string bytes;
    for (int i = 0; i < 4; ++i) {
      bytes += EncodeFrames(Message(random() % 4, random() % 9, std::string(random() % 60, 'y')));
    }
    for (uint32_t change = random() % 6; change > 0; --change) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    FrameDecoder decoder;
    for (std::string_view rest = bytes; !rest.empty();) {
      const size_t size = std::min<size_t>(rest.size(), 1 + random() % 40);
      const auto taken = decoder.Take(rest.substr(0, size));
      if (!taken) {
        EXPECT_EQ(taken.error().code, "nri_protocol");
        ++refused;
        break;
      }
      for (const TtrpcMessage& message : *taken) EXPECT_LE(message.data.size(), bytes.size());
      rest.remove_prefix(size);
    }
  }
  EXPECT_GT(refused, 0u);
}

}  // namespace
}  // namespace prorata::kubernetes
