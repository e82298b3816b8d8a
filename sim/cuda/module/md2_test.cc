#include "sim/cuda/module/md2.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <string_view>

namespace prorata::simgpu::driver {
namespace {

std::span<const uint8_t> Bytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

std::string Hex(const Md2Digest& digest) {
  std::string out;
  char two[3];
  for (uint8_t byte : digest) {
    std::snprintf(two, sizeof(two), "%02x", byte);
    out += two;
  }
  return out;
}

// The test suite of RFC 1319, appendix A.5.
TEST(Md2Test, Rfc1319Vectors) {
  EXPECT_EQ(Hex(Md2({})), "8350e5a3e24c153df2275c9f80692773");
  EXPECT_EQ(Hex(Md2(Bytes("a"))), "32ec01ec4a6dac72c0ab96fb34c0b5d1");
  EXPECT_EQ(Hex(Md2(Bytes("abc"))), "da853b0d3f88d99b30283a69e6ded6bb");
  EXPECT_EQ(Hex(Md2(Bytes("message digest"))), "ab4f496bfb2a530b219ff33031fe06b0");
  EXPECT_EQ(Hex(Md2(Bytes("abcdefghijklmnopqrstuvwxyz"))), "4e8ddff3650292ab5a4108c3aa47940b");
  EXPECT_EQ(Hex(Md2(Bytes("1234567890123456789012345678901234567890"
                          "1234567890123456789012345678901234567890"))),
            "d5976f79d83d3a0dc9806c3c66f3efd8");
}

// HMAC is two nested digests: the definition, spelled out with an empty key.
TEST(Md2Test, HmacIsTwoNestedDigests) {
  const std::string inner(16, 0x36);
  const std::string outer(16, 0x5c);
  const Md2Digest first = Md2(Bytes(inner + "what"));
  const std::string second = outer + std::string(first.begin(), first.end());
  EXPECT_EQ(Hex(HmacMd2({}, Bytes("what"))), Hex(Md2(Bytes(second))));
  EXPECT_NE(Hex(HmacMd2(Bytes("k"), Bytes("what"))), Hex(HmacMd2({}, Bytes("what"))));
}

}  // namespace
}  // namespace prorata::simgpu::driver
