#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace prorata::simgpu::driver {

using Md2Digest = std::array<uint8_t, 16>;

// MD2 (RFC 1319). Only here because cudart checks its driver with it (docs of integrity.cc).
Md2Digest Md2(std::span<const uint8_t> message);

// HMAC (RFC 2104) over MD2, whose block is 16 bytes; the key must not be longer.
Md2Digest HmacMd2(std::span<const uint8_t> key, std::span<const uint8_t> message);

}  // namespace prorata::simgpu::driver
