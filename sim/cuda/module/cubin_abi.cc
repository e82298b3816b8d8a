#include "sim/cuda/module/cubin.h"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <vector>

// A cubin is an ELF file of machine 190. Of its sections:
//
//   .symtab             kernels are functions whose st_other has bit 0x10; variables are objects
//                       in .nv.global, .nv.global.init or .nv.constant3, local ones since nvcc 13
//   .nv.info            attributes of the file: registers and stack of each function
//   .nv.info.NAME       attributes of the kernel: parameters, the most threads of a block
//   .nv.shared.NAME     as large as the kernel's static shared memory
//
// An attribute is u8 format | u8 number | u16, and when the format is 4, that u16 is the length of
// the payload that follows. Numbers and sizes as nvcc 13.0 writes them, and `ptxas -v` says them,
// for sm_75 to sm_100.

namespace prorata::simgpu::driver {
namespace {

constexpr uint8_t kSymbolIsKernel = 0x10;  // in st_other
constexpr uint8_t kFormatPayload = 4;
constexpr uint8_t kMaxThreads = 0x05;
constexpr uint8_t kFrameBytes = 0x11;
constexpr uint8_t kParameter = 0x17;
constexpr uint8_t kRegisterCount = 0x2f;
constexpr uint8_t kLargeParameter = 0x45;  // in place of 0x17 in kernels that take very large ones
// Of sections that describe shared memory (.nv_debug.shared): nothing of them is in the file.
constexpr uint32_t kSharedSection = 0x7000000a;
constexpr char kKernelInfo[] = ".nv.info.";
constexpr char kKernelShared[] = ".nv.shared.";
// Since sm_90 the section's size includes what the system keeps for itself of each block's. A
// section says so, but not in cuBLAS 11.11 (CUDA 11.8): up to ELF ABI version 7 the architecture is
// the low byte of the flags.
constexpr char kReservedShared[] = ".nv.shared.reserved.";
constexpr int kReservedSharedBytes = 1024;
constexpr int kLastAbiWithArchInLowByte = 7;
constexpr unsigned kFirstArchWithReservedShared = 90;

template <typename T>
T LoadAt(const uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

class Elf {
 public:
  explicit Elf(const uint8_t* data) : data_(data) { std::memcpy(&header_, data, sizeof(header_)); }

  bool IsOfOldAbiWithReservedShared() const {
    return header_.e_ident[EI_ABIVERSION] <= kLastAbiWithArchInLowByte &&
           (header_.e_flags & 0xff) >= kFirstArchWithReservedShared;
  }
  size_t section_count() const { return header_.e_shoff ? header_.e_shnum : 0; }
  Elf64_Shdr section(size_t index) const {
    return LoadAt<Elf64_Shdr>(data_ + header_.e_shoff + index * header_.e_shentsize);
  }
  const uint8_t* content(const Elf64_Shdr& section) const { return data_ + section.sh_offset; }
  const char* section_name(const Elf64_Shdr& section) const {
    return text(header_.e_shstrndx, section.sh_name);
  }
  const char* text(size_t table, uint32_t offset) const {
    return reinterpret_cast<const char*>(content(this->section(table))) + offset;
  }

  uint64_t Bytes() const {
    uint64_t end = header_.e_shoff + uint64_t{header_.e_shnum} * header_.e_shentsize;
    for (size_t i = 0; i < section_count(); ++i) {
      const Elf64_Shdr s = section(i);
      if (s.sh_type != SHT_NOBITS && s.sh_type != kSharedSection)
        end = std::max(end, s.sh_offset + s.sh_size);
    }
    for (size_t i = 0; i < header_.e_phnum; ++i) {
      const auto p =
          LoadAt<Elf64_Phdr>(data_ + header_.e_phoff + i * uint64_t{header_.e_phentsize});
      end = std::max(end, p.p_offset + p.p_filesz);
    }
    return end;
  }

 private:
  const uint8_t* data_;
  Elf64_Ehdr header_;
};

// What follows `prefix` in `text`, or null.
const char* Behind(const char* text, std::string_view prefix) {
  return std::strncmp(text, prefix.data(), prefix.size()) == 0 ? text + prefix.size() : nullptr;
}

// Calls use(number, payload, bytes) for each attribute with a payload.
template <typename Use>
void ForEachAttribute(const uint8_t* data, uint64_t bytes, Use use) {
  for (uint64_t at = 0; at + 4 <= bytes;) {
    const uint8_t format = data[at];
    const uint8_t number = data[at + 1];
    const auto length = LoadAt<uint16_t>(data + at + 2);
    const uint8_t* payload = data + at + 4;
    at += 4 + (format == kFormatPayload ? length : 0);
    if (format == kFormatPayload && at <= bytes) use(number, payload, length);
  }
}

void ReadKernelInfo(const uint8_t* data, uint64_t bytes, ImageKernel* kernel) {
  kernel->parameters_known = true;
  ForEachAttribute(data, bytes, [&](uint8_t number, const uint8_t* payload, unsigned length) {
    if (length < 12) return;
    if (number == kMaxThreads) {
      const uint64_t threads = uint64_t{LoadAt<uint32_t>(payload)} * LoadAt<uint32_t>(payload + 4) *
                               LoadAt<uint32_t>(payload + 8);
      kernel->max_threads = static_cast<int>(std::clamp<uint64_t>(threads, 1, 1024));
    }
    if (number != kParameter && number != kLargeParameter) return;
    const auto ordinal = LoadAt<uint16_t>(payload + 4);
    const uint32_t size =
        number == kParameter ? LoadAt<uint32_t>(payload + 8) >> 18 : LoadAt<uint16_t>(payload + 8);
    if (kernel->parameters.size() <= ordinal) kernel->parameters.resize(ordinal + 1u);
    kernel->parameters[ordinal] = {LoadAt<uint16_t>(payload + 6), size};
  });
}

// Reads one cubin into an image that may have others.
class Reader {
 public:
  Reader(const uint8_t* data, Image* image) : elf_(data), image_(image) {}

  void Read() {
    reserves_shared_ = elf_.IsOfOldAbiWithReservedShared();
    for (size_t i = 0; i < elf_.section_count(); ++i) {
      const Elf64_Shdr section = elf_.section(i);
      if (section.sh_type == SHT_SYMTAB) ReadSymbols(section);
      if (Behind(elf_.section_name(section), kReservedShared)) reserves_shared_ = true;
    }
    for (size_t i = 0; i < elf_.section_count(); ++i) ReadSection(elf_.section(i));
  }

 private:
  void ReadSymbols(const Elf64_Shdr& table) {
    names_.clear();
    for (uint64_t at = 0; at + sizeof(Elf64_Sym) <= table.sh_size; at += sizeof(Elf64_Sym)) {
      const auto symbol = LoadAt<Elf64_Sym>(elf_.content(table) + at);
      const char* name = elf_.text(table.sh_link, symbol.st_name);
      names_.push_back(name);
      if (symbol.st_shndx == SHN_UNDEF || symbol.st_shndx >= elf_.section_count()) continue;
      const int type = ELF64_ST_TYPE(symbol.st_info);
      if (type == STT_FUNC && (symbol.st_other & kSymbolIsKernel)) {
        image_->AddKernel(name);
      } else if (type == STT_OBJECT && IsForVariables(symbol.st_shndx)) {
        image_->globals.push_back({name, symbol.st_size});
      }
    }
  }

  bool IsForVariables(size_t section) const {
    const char* name = elf_.section_name(elf_.section(section));
    return Behind(name, ".nv.global") || std::strcmp(name, ".nv.constant3") == 0;
  }

  void ReadSection(const Elf64_Shdr& section) {
    const char* name = elf_.section_name(section);
    if (std::strcmp(name, ".nv.info") == 0) return ReadFileInfo(section);
    if (const char* kernel_name = Behind(name, kKernelInfo)) {
      ImageKernel* kernel = image_->FindKernel(kernel_name);
      if (kernel && !kernel->parameters_known) {
        ReadKernelInfo(elf_.content(section), section.sh_size, kernel);
      }
    } else if (const char* shared_name = Behind(name, kKernelShared)) {
      const int reserved = reserves_shared_ ? kReservedSharedBytes : 0;
      if (ImageKernel* kernel = image_->FindKernel(shared_name)) {
        kernel->shared_bytes = std::max(0, static_cast<int>(section.sh_size) - reserved);
      }
    }
  }

  void ReadFileInfo(const Elf64_Shdr& section) {
    ForEachAttribute(elf_.content(section), section.sh_size,
                     [&](uint8_t number, const uint8_t* payload, unsigned length) {
                       if (number != kRegisterCount && number != kFrameBytes) return;
                       if (length < 8) return;
                       const auto symbol = LoadAt<uint32_t>(payload);
                       if (symbol >= names_.size()) return;
                       ImageKernel* kernel = image_->FindKernel(names_[symbol]);
                       if (!kernel) return;
                       (number == kRegisterCount ? kernel->registers : kernel->local_bytes) =
                           LoadAt<int32_t>(payload + 4);
                     });
  }

  Elf elf_;
  Image* image_;
  std::vector<const char*> names_;  // of the symbols, by index
  bool reserves_shared_ = false;
};

}  // namespace

bool IsElf(const uint8_t* data) { return std::memcmp(data, ELFMAG, SELFMAG) == 0; }
uint64_t ElfBytes(const uint8_t* data) { return Elf(data).Bytes(); }
void ReadCubin(const uint8_t* data, Image* image) { Reader(data, image).Read(); }

}  // namespace prorata::simgpu::driver
