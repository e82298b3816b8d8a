#include "sim/cuda/module/unpack.h"

#include <lz4.h>
#include <zstd.h>

#include <climits>

namespace prorata::simgpu::driver {

bool Unpack(Packing packing, std::span<const uint8_t> packed, size_t bytes,
            std::vector<uint8_t>* out) {
  if (bytes > INT_MAX || packed.size() > INT_MAX) return false;
  out->resize(bytes);
  if (packing == Packing::kZstd) {
    return ZSTD_decompress(out->data(), bytes, packed.data(), packed.size()) == bytes;
  }
  const int made = LZ4_decompress_safe(reinterpret_cast<const char*>(packed.data()),
                                       reinterpret_cast<char*>(out->data()),
                                       static_cast<int>(packed.size()), static_cast<int>(bytes));
  return made >= 0 && static_cast<size_t>(made) == bytes;
}

}  // namespace prorata::simgpu::driver
