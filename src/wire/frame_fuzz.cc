#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "wire/frame.h"

// The first byte of each chunk is its length.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using prorata::wire::FrameReader;
  std::vector<uint8_t> buffer(prorata::wire::kFrameHeaderBytes + 256);
  FrameReader reader(buffer.data(), buffer.size());
  uint64_t sum = 0;
  while (true) {
    prorata::wire::FrameHeader header;
    const uint8_t* body = nullptr;
    const auto state = reader.Next(&header, &body);
    if (state == FrameReader::State::kBad) return 0;
    if (state == FrameReader::State::kFrame) {
      for (uint32_t i = 0; i < header.body_bytes; ++i) sum += body[i];
      continue;
    }
    if (size < 2) return static_cast<int>(sum & 0);
    const size_t chunk = std::min({size_t{data[0]} + 1, size - 1, reader.SpaceBytes()});
    if (chunk == 0) __builtin_trap();
    std::memcpy(reader.Space(), data + 1, chunk);
    reader.Filled(chunk);
    data += 1 + chunk;
    size -= 1 + chunk;
  }
}
