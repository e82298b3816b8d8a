#pragma once

// What the null driver says about its one device.

namespace prorata::bench {

inline constexpr char kNullUuidText[] = "GPU-6e756c6c-0000-4000-8000-000000000001";
inline constexpr unsigned char kNullUuidBytes[16] = {0x6e, 0x75, 0x6c, 0x6c, 0, 0, 0x40, 0,
                                                     0x80, 0,    0,    0,    0, 0, 0,    1};
inline constexpr unsigned long long kNullTotalBytes = 16ull << 30;

}  // namespace prorata::bench
