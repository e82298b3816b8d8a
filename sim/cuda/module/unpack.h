#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace prorata::simgpu::driver {

// How the payload of a fatbin's entry is packed. nvcc 13.0: `--compress-mode=speed` makes LZ4
// blocks, `size` and `balance` (the default, for PTX) make Zstandard frames; before CUDA 12.8 there
// was only LZ4.
enum class Packing { kLz4, kZstd };

// False when the bytes are not so packed, or do not make `bytes` bytes.
bool Unpack(Packing packing, std::span<const uint8_t> packed, size_t bytes,
            std::vector<uint8_t>* out);

}  // namespace prorata::simgpu::driver
