#include "client/code/image_variables.h"

#include <elf.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace prorata::client {
namespace {

constexpr uint64_t kMib = uint64_t{1} << 20;

uint64_t OfText(const std::string& body) {
  return VariableBytes((".version 7.0\n.target sm_70\n.address_size 64\n" + body).c_str());
}

TEST(ImageVariables, LargeOnesTakeSlabsOfTheirOwn) {
  EXPECT_EQ(OfText(".visible .global .align 4 .b8 big[8388608];"), 8 * kMib);
  EXPECT_EQ(OfText(".global .f32 a[524289];"), 4 * kMib);
  EXPECT_EQ(OfText(".global .v4 .b32 a[65536][3];"), 4 * kMib);
  EXPECT_EQ(OfText(".global .b64 a[0x80000], b, c[01000000];"), 4 * kMib + 2 * kMib + 2 * kMib);
  EXPECT_EQ(OfText(".global .attribute(.managed) .align 8 .b8 m[4194304];"), 4 * kMib);
}

TEST(ImageVariables, SmallOnesArePacked) {
  std::string many;
  for (int i = 0; i < 100; ++i) many += ".global .u32 x" + std::to_string(i) + ";\n";
  EXPECT_EQ(OfText(many), 2 * kMib);
  EXPECT_EQ(OfText(".const .align 4 .b8 table[65536];"), 2 * kMib);
}

TEST(ImageVariables, AnInitializerGivesTheSizeThatIsLeftOut) {
  EXPECT_EQ(OfText(".global .u32 a[] = {1, 2, 3}, b[2097152] = {0};"), 8 * kMib + 2 * kMib);
  EXPECT_EQ(OfText(".global .u64 a[][524288] = {{1}, {2}};"), 8 * kMib);
}

TEST(ImageVariables, OfAKernelThereAreNone) {
  EXPECT_EQ(
      OfText("// .global .b8 comment[8388608];\n/* .global .b8 other[8388608]; */\n"
             ".pragma \".global .b8 text[8388608];\";\n"
             ".visible .entry k(.param .u64 .ptr .global .align 4 p) {\n"
             "  .shared .b8 tile[8388608];\n  .reg .b64 %rd<3>;\n"
             "  ld.global.u32 %r1, [%rd1+8388608];\n  cvta.to.global.u64 %rd2, %rd1;\n ret;\n}\n"),
      0u);
}

TEST(ImageVariables, NonsenseEndsAndSaturates) {
  EXPECT_EQ(VariableBytes(nullptr), 0u);
  EXPECT_EQ(VariableBytes(""), 0u);
  EXPECT_EQ(OfText(".global"), 0u);
  EXPECT_EQ(OfText(".global .b8 a[4"), 0u);
  EXPECT_GE(OfText(".global .b64 a[99999999999999999999][99999999999999];"), uint64_t{1} << 61);
  EXPECT_EQ(OfText("/* .global .b8 a[8388608];"), 0u);
  EXPECT_EQ(OfText("\"\\"), 0u);
}

// A file of the sections named, whose bytes are in no segment.
std::vector<uint8_t> Cubin(const std::vector<std::pair<std::string, uint64_t>>& sections) {
  std::string names(1, '\0');
  std::vector<Elf64_Shdr> headers(1);
  for (const auto& [name, bytes] : sections) {
    Elf64_Shdr header = {};
    header.sh_name = static_cast<Elf64_Word>(names.size());
    header.sh_type = SHT_NOBITS;
    header.sh_flags = SHF_ALLOC | SHF_WRITE;
    header.sh_size = bytes;
    headers.push_back(header);
    names += name + '\0';
  }
  Elf64_Shdr strings = {};
  strings.sh_type = SHT_STRTAB;
  strings.sh_offset = sizeof(Elf64_Ehdr);
  strings.sh_size = names.size();
  headers.push_back(strings);
  Elf64_Ehdr file = {};
  std::memcpy(file.e_ident, ELFMAG, SELFMAG);
  file.e_ident[EI_CLASS] = ELFCLASS64;
  file.e_machine = 190;
  file.e_shoff = sizeof file + names.size();
  file.e_shentsize = sizeof(Elf64_Shdr);
  file.e_shnum = static_cast<Elf64_Half>(headers.size());
  file.e_shstrndx = static_cast<Elf64_Half>(headers.size() - 1);
  std::vector<uint8_t> out(file.e_shoff + headers.size() * sizeof(Elf64_Shdr));
  std::memcpy(out.data(), &file, sizeof file);
  std::memcpy(out.data() + sizeof file, names.data(), names.size());
  std::memcpy(out.data() + file.e_shoff, headers.data(), headers.size() * sizeof(Elf64_Shdr));
  return out;
}

TEST(ImageVariables, OfACubinItsSectionsSaySo) {
  EXPECT_EQ(VariableBytes(Cubin({{".nv.global", 5 * kMib}, {".nv.global.init", 3 * kMib}}).data()),
            10 * kMib);
  EXPECT_EQ(VariableBytes(Cubin({{".nv.constant3", 64}}).data()), 2 * kMib);
  EXPECT_EQ(VariableBytes(Cubin({{".nv.shared.k", 8 * kMib}, {".nv.constant0.k", 400}}).data()),
            0u);
}

}  // namespace
}  // namespace prorata::client
