#include "simgpu/driver/image.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace prorata::simgpu::driver {
namespace {

constexpr char kPtx[] = R"(
// .entry not_this_one( 
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 8 .u64 counter;
.const .align 4 .f32 table[16];
.visible .entry spin(
  .param .u64 .ptr .global .align 4 spin_param_0,
  .param .u32 spin_param_1,
  .param .u64 spin_param_2
)
{
  .reg .u32 %r<4>; /* } .entry nor_this( */
  ret;
}
.entry bare() { ret; }
)";

TEST(ImageTest, PtxListsItsKernelsAndGlobals) {
  Image image;
  ASSERT_EQ(ParseImage(kPtx, &image), CUDA_SUCCESS);
  EXPECT_EQ(image.kind, Image::Kind::kPtx);
  EXPECT_FALSE(image.opaque);
  ASSERT_EQ(image.kernels.size(), 2u);
  EXPECT_EQ(image.kernels[0].name, "spin");
  ASSERT_EQ(image.kernels[0].parameters.size(), 3u);
  EXPECT_EQ(image.kernels[0].parameters[0].bytes, 8u);
  EXPECT_EQ(image.kernels[0].parameters[1].offset, 8u);
  EXPECT_EQ(image.kernels[0].parameters[1].bytes, 4u);
  EXPECT_EQ(image.kernels[0].parameters[2].offset, 16u);  // aligned to its size
  EXPECT_EQ(image.kernels[1].name, "bare");
  EXPECT_TRUE(image.kernels[1].parameters.empty());
  ASSERT_EQ(image.globals.size(), 2u);
  EXPECT_EQ(image.globals[0].name, "counter");
  EXPECT_EQ(image.globals[0].bytes, 8u);
  EXPECT_EQ(image.globals[1].bytes, 64u);
}

std::vector<uint8_t> Fatbin(uint16_t kind, uint64_t flags, const std::string& payload) {
  std::vector<uint8_t> out(16 + 64 + payload.size());
  auto put = [&](size_t at, auto value) { std::memcpy(out.data() + at, &value, sizeof(value)); };
  put(0, uint32_t{0xba55ed50});
  put(4, uint16_t{1});
  put(6, uint16_t{16});
  put(8, uint64_t{64 + payload.size()});
  put(16, kind);
  put(20, uint32_t{64});
  put(24, uint64_t{payload.size()});
  put(56, flags);
  std::memcpy(out.data() + 80, payload.data(), payload.size());
  return out;
}

TEST(ImageTest, FatbinWithPlainPtxIsListed) {
  const auto fatbin = Fatbin(1, 0, kPtx);
  struct Wrapper {
    uint32_t magic = 0x466243b1;
    uint32_t version = 1;
    const void* data;
    const void* unused = nullptr;
  } wrapper{.data = fatbin.data()};
  Image image;
  ASSERT_EQ(ParseImage(&wrapper, &image), CUDA_SUCCESS);
  EXPECT_EQ(image.kind, Image::Kind::kFatbin);
  EXPECT_EQ(image.kernels.size(), 2u);
  EXPECT_FALSE(image.opaque);
}

TEST(ImageTest, CompressedFatbinIsOpaque) {
  const auto fatbin = Fatbin(2, 0x2000, "squeezed");
  Image image;
  ASSERT_EQ(ParseImage(fatbin.data(), &image), CUDA_SUCCESS);
  EXPECT_TRUE(image.opaque);
}

TEST(ImageTest, AnEntryLongerThanItsFatbinIsRefused) {
  auto fatbin = Fatbin(1, 0, kPtx);
  const uint64_t too_long = 1 << 20;
  std::memcpy(fatbin.data() + 24, &too_long, sizeof(too_long));
  Image image;
  EXPECT_EQ(ParseImage(fatbin.data(), &image), CUDA_ERROR_INVALID_IMAGE);
}

TEST(ImageTest, RefusesWhatIsNoImage) {
  Image image;
  EXPECT_EQ(ParseImage(nullptr, &image), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(ParseImage("", &image), CUDA_ERROR_INVALID_IMAGE);
  EXPECT_EQ(ParseImage("hello, this is text", &image), CUDA_ERROR_INVALID_IMAGE);
  EXPECT_EQ(ParseImage("// only a comment", &image), CUDA_ERROR_INVALID_PTX);
}

}  // namespace
}  // namespace prorata::simgpu::driver
