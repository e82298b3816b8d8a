#include "sim/cuda/module/image.h"

#include <elf.h>
#include <gtest/gtest.h>
#include <lz4.h>
#include <zstd.h>

#include <cstring>
#include <string>
#include <vector>

namespace prorata::simgpu::driver {
namespace {

constexpr int kArch = 90;

constexpr char kPtx[] = R"(
// .entry not_this_one( 
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 8 .u64 counter;
.const .align 4 .f32 table[16];
.global .attribute(.managed) .align 4 .b8 shared_with_host[20];
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
  ASSERT_EQ(ParseImage(kPtx, kArch, &image), CUDA_SUCCESS);
  EXPECT_EQ(image.kind, Image::Kind::kPtx);
  ASSERT_EQ(image.kernels.size(), 2u);
  EXPECT_EQ(image.kernels[0].name, "spin");
  ASSERT_EQ(image.kernels[0].parameters.size(), 3u);
  EXPECT_EQ(image.kernels[0].parameters[0].bytes, 8u);
  EXPECT_EQ(image.kernels[0].parameters[1].offset, 8u);
  EXPECT_EQ(image.kernels[0].parameters[1].bytes, 4u);
  EXPECT_EQ(image.kernels[0].parameters[2].offset, 16u);  // aligned to its size
  EXPECT_EQ(image.kernels[1].name, "bare");
  EXPECT_TRUE(image.kernels[1].parameters.empty());
  ASSERT_EQ(image.globals.size(), 3u);
  EXPECT_EQ(image.globals[0].name, "counter");
  EXPECT_EQ(image.globals[0].bytes, 8u);
  EXPECT_EQ(image.globals[1].bytes, 64u);
  EXPECT_EQ(image.globals[2].name, "shared_with_host");
  EXPECT_EQ(image.globals[2].bytes, 20u);
}

constexpr uint16_t kPtxEntry = 1;
constexpr uint16_t kElfEntry = 2;
constexpr uint64_t kLz4 = 0x2000;
constexpr uint64_t kZstd = 0x8000;

struct EntrySpec {
  uint16_t kind;
  uint32_t arch;
  std::string payload;
  uint64_t flags = 0;
  uint64_t unpacked_bytes = 0;
};

std::vector<uint8_t> Fatbin(const std::vector<EntrySpec>& entries) {
  std::vector<uint8_t> out(16);
  auto put = [&](size_t at, auto value) { std::memcpy(out.data() + at, &value, sizeof(value)); };
  for (const EntrySpec& entry : entries) {
    const size_t at = out.size();
    const size_t padded = (entry.payload.size() + 7) / 8 * 8;
    out.resize(at + 64 + padded);
    put(at, entry.kind);
    put(at + 4, uint32_t{64});
    put(at + 8, uint64_t{padded});
    put(at + 16, static_cast<uint32_t>(entry.flags ? entry.payload.size() : 0));
    put(at + 28, entry.arch);
    put(at + 40, entry.flags);
    put(at + 56, entry.unpacked_bytes);
    std::memcpy(out.data() + at + 64, entry.payload.data(), entry.payload.size());
  }
  put(0, uint32_t{0xba55ed50});
  put(4, uint16_t{1});
  put(6, uint16_t{16});
  put(8, uint64_t{out.size() - 16});
  return out;
}

std::string PtxOf(const std::string& kernel) {
  return ".version 8.0\n.target sm_80\n.visible .entry " + kernel + "(.param .u64 p) { ret; }\n";
}

TEST(ImageTest, FatbinWithPlainPtxIsListed) {
  const auto fatbin = Fatbin({{kPtxEntry, 70, kPtx}});
  struct Wrapper {
    uint32_t magic = 0x466243b1;
    uint32_t version = 1;
    const void* data;
    const void* unused = nullptr;
  } wrapper{.data = fatbin.data()};
  Image image;
  ASSERT_EQ(ParseImage(&wrapper, kArch, &image), CUDA_SUCCESS);
  EXPECT_EQ(image.kind, Image::Kind::kFatbin);
  EXPECT_EQ(image.kernels.size(), 2u);
}

TEST(ImageTest, AWrapperOfVersionTwoListsMoreFatbins) {
  const auto first = Fatbin({{kPtxEntry, 80, PtxOf("one")}});
  const auto second = Fatbin({{kPtxEntry, 80, PtxOf("two")}});
  const void* const more[] = {second.data(), nullptr};
  struct Wrapper {
    uint32_t magic = 0x466243b1;
    uint32_t version = 2;
    const void* data;
    const void* more;
  } wrapper{.data = first.data(), .more = more};
  Image image;
  ASSERT_EQ(ParseImage(&wrapper, kArch, &image), CUDA_SUCCESS);
  EXPECT_TRUE(image.FindKernel("one"));
  EXPECT_TRUE(image.FindKernel("two"));
}

TEST(ImageTest, PackedEntriesAreUnpacked) {
  const std::string text = PtxOf("squeezed");
  std::string zstd(ZSTD_compressBound(text.size()), '\0');
  zstd.resize(ZSTD_compress(zstd.data(), zstd.size(), text.data(), text.size(), 3));
  std::string lz4(static_cast<size_t>(LZ4_compressBound(static_cast<int>(text.size()))), '\0');
  lz4.resize(static_cast<size_t>(LZ4_compress_default(
      text.data(), lz4.data(), static_cast<int>(text.size()), static_cast<int>(lz4.size()))));
  for (const auto& [flags, packed] : {std::pair{kZstd, zstd}, std::pair{kLz4, lz4}}) {
    const auto fatbin = Fatbin({{kPtxEntry, 80, packed, flags, text.size()}});
    Image image;
    ASSERT_EQ(ParseImage(fatbin.data(), kArch, &image), CUDA_SUCCESS) << flags;
    ASSERT_TRUE(image.FindKernel("squeezed")) << flags;
    EXPECT_EQ(image.FindKernel("squeezed")->parameters.size(), 1u);
  }
}

TEST(ImageTest, WhatCannotBeUnpackedIsRefused) {
  for (const uint64_t flags : {kZstd, kLz4}) {
    const auto fatbin = Fatbin({{kPtxEntry, 80, "this is not packed", flags, 4096}});
    Image image;
    EXPECT_EQ(ParseImage(fatbin.data(), kArch, &image), CUDA_ERROR_INVALID_IMAGE);
  }
}

TEST(ImageTest, OfAFatbinTheNearestArchitectureIsRead) {
  const auto fatbin = Fatbin({{kPtxEntry, 70, PtxOf("for_70")},
                              {kPtxEntry, 80, PtxOf("for_80")},
                              {kPtxEntry, 80, PtxOf("also_for_80")},
                              {kPtxEntry, 100, PtxOf("for_100")},
                              {kElfEntry, 80, "runs on 8.x only"}});
  Image image;
  ASSERT_EQ(ParseImage(fatbin.data(), kArch, &image), CUDA_SUCCESS);
  ASSERT_EQ(image.kernels.size(), 2u);
  EXPECT_TRUE(image.FindKernel("for_80"));
  EXPECT_TRUE(image.FindKernel("also_for_80"));
}

TEST(ImageTest, AFatbinWithNothingForTheDeviceIsRefused) {
  const auto fatbin =
      Fatbin({{kPtxEntry, 100, PtxOf("too_new")}, {kElfEntry, 80, "another major"}});
  Image image;
  EXPECT_EQ(ParseImage(fatbin.data(), kArch, &image), CUDA_ERROR_NO_BINARY_FOR_GPU);
}

TEST(ImageTest, AnEntryLongerThanItsFatbinIsRefused) {
  auto fatbin = Fatbin({{kPtxEntry, 70, kPtx}});
  const uint64_t too_long = 1 << 20;
  std::memcpy(fatbin.data() + 24, &too_long, sizeof(too_long));
  Image image;
  EXPECT_EQ(ParseImage(fatbin.data(), kArch, &image), CUDA_ERROR_INVALID_IMAGE);
}

// A cubin with one section of memory that only the running kernel has: nothing of it is in the
// file.
std::string CubinWithSection(uint32_t type) {
  constexpr uint16_t kMachineCuda = 190;
  const std::string names = std::string("\0.shstrtab\0.nv_debug.shared\0", 29);
  Elf64_Ehdr header = {};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_machine = kMachineCuda;
  header.e_flags = kArch;
  header.e_shoff = sizeof header;
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = 3;
  header.e_shstrndx = 1;
  Elf64_Shdr sections[3] = {};
  const size_t end = sizeof header + sizeof sections;
  sections[1].sh_name = 1;
  sections[1].sh_type = SHT_STRTAB;
  sections[1].sh_offset = end;
  sections[1].sh_size = names.size();
  sections[2].sh_name = 11;
  sections[2].sh_type = type;
  sections[2].sh_offset = end + names.size();
  sections[2].sh_size = 4096;
  std::string out(reinterpret_cast<const char*>(&header), sizeof header);
  out.append(reinterpret_cast<const char*>(sections), sizeof sections);
  return out + names;
}

TEST(ImageTest, ASectionWithoutBytesMayEndBehindTheFile) {
  // bitsandbytes' cubins have one of the second kind.
  for (const uint32_t type : {uint32_t{SHT_NOBITS}, uint32_t{0x7000000a}}) {
    const auto fatbin = Fatbin({{kElfEntry, kArch, CubinWithSection(type)}});
    Image image;
    EXPECT_EQ(ParseImage(fatbin.data(), kArch, &image), CUDA_SUCCESS) << type;
  }
  const auto fatbin = Fatbin({{kElfEntry, kArch, CubinWithSection(SHT_PROGBITS)}});
  Image image;
  EXPECT_NE(ParseImage(fatbin.data(), kArch, &image), CUDA_SUCCESS);
}

TEST(ImageTest, RefusesWhatIsNoImage) {
  Image image;
  EXPECT_EQ(ParseImage(nullptr, kArch, &image), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(ParseImage("", kArch, &image), CUDA_ERROR_INVALID_IMAGE);
  EXPECT_EQ(ParseImage("hello, this is text", kArch, &image), CUDA_ERROR_INVALID_IMAGE);
  EXPECT_EQ(ParseImage("// only a comment", kArch, &image), CUDA_ERROR_INVALID_PTX);
}

}  // namespace
}  // namespace prorata::simgpu::driver
