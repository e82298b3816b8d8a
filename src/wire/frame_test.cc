#include "wire/frame.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace prorata::wire {
namespace {

std::vector<uint8_t> FrameOf(uint16_t type, size_t body) {
  const FrameHeader header{static_cast<uint32_t>(body), type, kWireVersion};
  std::vector<uint8_t> bytes(kFrameHeaderBytes + body);
  std::memcpy(bytes.data(), &header, kFrameHeaderBytes);
  for (size_t i = 0; i < body; ++i) bytes[kFrameHeaderBytes + i] = static_cast<uint8_t>(type + i);
  return bytes;
}

TEST(FrameReader, TakesFramesFromAnyChunks) {
  for (uint32_t seed = 1; seed <= 500; ++seed) {
    std::mt19937 random(seed);
    std::vector<uint8_t> stream;
    std::vector<size_t> bodies;
    for (int i = 0; i < 20; ++i) {
      bodies.push_back(random() % 257);
      const auto frame = FrameOf(static_cast<uint16_t>(i), bodies.back());
      stream.insert(stream.end(), frame.begin(), frame.end());
    }
    std::vector<uint8_t> buffer(kFrameHeaderBytes + 256);
    FrameReader reader(buffer.data(), buffer.size());
    size_t at = 0;
    size_t frames = 0;
    while (frames < bodies.size()) {
      FrameHeader header;
      const uint8_t* body = nullptr;
      const auto state = reader.Next(&header, &body);
      ASSERT_NE(state, FrameReader::State::kBad) << "seed " << seed;
      if (state == FrameReader::State::kFrame) {
        ASSERT_EQ(header.body_bytes, bodies[frames]) << "seed " << seed;
        ASSERT_EQ(header.type, frames);
        for (size_t i = 0; i < bodies[frames]; ++i) {
          ASSERT_EQ(body[i], static_cast<uint8_t>(frames + i));
        }
        ++frames;
        continue;
      }
      ASSERT_LT(at, stream.size()) << "seed " << seed;
      const size_t chunk = std::min({1 + random() % 64, reader.SpaceBytes(), stream.size() - at});
      ASSERT_GT(chunk, 0u);
      std::memcpy(reader.Space(), stream.data() + at, chunk);
      reader.Filled(chunk);
      at += chunk;
    }
  }
}

TEST(FrameReader, ABodyOverTheCapIsFinal) {
  std::vector<uint8_t> buffer(kFrameHeaderBytes + 256);
  FrameReader reader(buffer.data(), buffer.size());
  const auto frame = FrameOf(1, 257);
  std::memcpy(reader.Space(), frame.data(), kFrameHeaderBytes);
  reader.Filled(kFrameHeaderBytes);
  FrameHeader header;
  const uint8_t* body = nullptr;
  EXPECT_EQ(reader.Next(&header, &body), FrameReader::State::kBad);
}

TEST(FrameReader, RandomBytesNeverReachOutside) {
  for (uint32_t seed = 1; seed <= 2000; ++seed) {
    std::mt19937 random(seed);
    std::vector<uint8_t> buffer(kFrameHeaderBytes + 256);
    FrameReader reader(buffer.data(), buffer.size());
    for (int i = 0; i < 200; ++i) {
      FrameHeader header;
      const uint8_t* body = nullptr;
      const auto state = reader.Next(&header, &body);
      if (state == FrameReader::State::kBad) break;
      if (state == FrameReader::State::kFrame) {
        ASSERT_LE(body + header.body_bytes, buffer.data() + buffer.size()) << "seed " << seed;
        continue;
      }
      ASSERT_GT(reader.SpaceBytes(), 0u) << "seed " << seed;
      const size_t chunk = 1 + random() % reader.SpaceBytes();
      for (size_t b = 0; b < chunk; ++b) {
        // Mostly small lengths, so that frames come through as well.
        reader.Space()[b] = random() % 4 != 0 ? 0 : static_cast<uint8_t>(random());
      }
      reader.Filled(chunk);
    }
  }
}

}  // namespace
}  // namespace prorata::wire
