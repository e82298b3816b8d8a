#include <elf.h>

#include <algorithm>
#include <cstring>

#include "simgpu/driver/image.h"
#include "simgpu/driver/ptx_text.h"

// Formats, as far as they are read here:
//
//   wrapper (what nvcc passes)   u32 0x466243b1 | u32 version | u64 address of the fatbin | u64
//   fatbin                       u32 0xba55ed50 | u16 version | u16 header bytes | u64 entry bytes
//   fatbin entry                 u16 kind (1 PTX, 2 ELF) | u16 | u32 header bytes | u64 payload
//                                bytes | u32 compressed bytes | ... | at 40: u64 flags
//   cubin                        an ELF file of machine 190

namespace prorata::simgpu::driver {
namespace {

constexpr uint32_t kWrapperMagic = 0x466243b1;
constexpr uint32_t kFatbinMagic = 0xba55ed50;
constexpr uint16_t kMachineCuda = 190;
constexpr uint16_t kEntryPtx = 1;
constexpr uint16_t kEntryElf = 2;
constexpr uint64_t kCompressedFlags = 0x2000 | 0x8000;
constexpr uint8_t kSymbolIsKernel = 0x10;  // in st_other

template <typename T>
T Load(const uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

class Elf {
 public:
  explicit Elf(const uint8_t* data) : data_(data) { std::memcpy(&header_, data, sizeof(header_)); }

  const Elf64_Ehdr& header() const { return header_; }
  size_t section_count() const { return header_.e_shoff ? header_.e_shnum : 0; }
  Elf64_Shdr section(size_t index) const {
    return Load<Elf64_Shdr>(data_ + header_.e_shoff + index * header_.e_shentsize);
  }
  const uint8_t* content(const Elf64_Shdr& section) const { return data_ + section.sh_offset; }
  const char* section_name(const Elf64_Shdr& section) const {
    return text(header_.e_shstrndx, section.sh_name);
  }
  const char* text(size_t table, uint32_t offset) const {
    return reinterpret_cast<const char*>(content(this->section(table))) + offset;
  }

  // One past the last byte that any header names.
  uint64_t Bytes() const {
    uint64_t end = header_.e_shoff + uint64_t{header_.e_shnum} * header_.e_shentsize;
    for (size_t i = 0; i < section_count(); ++i) {
      const Elf64_Shdr s = section(i);
      if (s.sh_type != SHT_NOBITS) end = std::max(end, s.sh_offset + s.sh_size);
    }
    for (size_t i = 0; i < header_.e_phnum; ++i) {
      const auto p = Load<Elf64_Phdr>(data_ + header_.e_phoff + i * uint64_t{header_.e_phentsize});
      end = std::max(end, p.p_offset + p.p_filesz);
    }
    return end;
  }

 private:
  const uint8_t* data_;
  Elf64_Ehdr header_;
};

ImageKernel* FindKernel(Image* image, const char* name) {
  for (ImageKernel& kernel : image->kernels) {
    if (kernel.name == name) return &kernel;
  }
  return nullptr;
}

// .nv.info.NAME: attributes of one kernel. Format 4 carries a u16 length and a payload, the others
// are four bytes in all. 0x17 describes one parameter; 0x45 takes its place in kernels that take
// very large ones.
void ReadKernelInfo(const uint8_t* data, uint64_t bytes, ImageKernel* kernel) {
  kernel->parameters_known = true;
  for (uint64_t at = 0; at + 4 <= bytes;) {
    const uint8_t format = data[at];
    const uint8_t attribute = data[at + 1];
    const auto length = Load<uint16_t>(data + at + 2);
    const uint8_t* payload = data + at + 4;
    at += 4 + (format == 4 ? length : 0);
    if (format != 4 || at > bytes || length < 12) continue;
    if (attribute != 0x17 && attribute != 0x45) continue;
    const auto ordinal = Load<uint16_t>(payload + 4);
    const uint32_t size =
        attribute == 0x17 ? Load<uint32_t>(payload + 8) >> 18 : Load<uint16_t>(payload + 8);
    if (kernel->parameters.size() <= ordinal) kernel->parameters.resize(ordinal + 1u);
    kernel->parameters[ordinal] = {Load<uint16_t>(payload + 6), size};
  }
}

void ReadCubin(const uint8_t* data, Image* image) {
  const Elf elf(data);
  for (size_t i = 0; i < elf.section_count(); ++i) {
    const Elf64_Shdr table = elf.section(i);
    if (table.sh_type != SHT_SYMTAB) continue;
    for (uint64_t at = 0; at + sizeof(Elf64_Sym) <= table.sh_size; at += sizeof(Elf64_Sym)) {
      const auto symbol = Load<Elf64_Sym>(elf.content(table) + at);
      if (symbol.st_shndx == SHN_UNDEF || symbol.st_shndx >= elf.section_count()) continue;
      const char* name = elf.text(table.sh_link, symbol.st_name);
      const int type = ELF64_ST_TYPE(symbol.st_info);
      if (type == STT_FUNC && (symbol.st_other & kSymbolIsKernel) && !FindKernel(image, name)) {
        image->kernels.push_back({name, {}, false});
      } else if (type == STT_OBJECT && ELF64_ST_BIND(symbol.st_info) != STB_LOCAL) {
        image->globals.push_back({name, symbol.st_size});
      }
    }
  }
  constexpr char kInfo[] = ".nv.info.";
  for (size_t i = 0; i < elf.section_count(); ++i) {
    const Elf64_Shdr section = elf.section(i);
    const char* name = elf.section_name(section);
    if (std::strncmp(name, kInfo, sizeof(kInfo) - 1) != 0) continue;
    ImageKernel* kernel = FindKernel(image, name + sizeof(kInfo) - 1);
    if (kernel && !kernel->parameters_known) {
      ReadKernelInfo(elf.content(section), section.sh_size, kernel);
    }
  }
}

bool IsElf(const uint8_t* data) { return std::memcmp(data, ELFMAG, SELFMAG) == 0; }

CUresult ReadFatbin(const uint8_t* data, Image* image) {
  image->kind = Image::Kind::kFatbin;
  const auto header_bytes = Load<uint16_t>(data + 6);
  const auto files_bytes = Load<uint64_t>(data + 8);
  image->bytes = header_bytes + files_bytes;
  const uint8_t* at = data + header_bytes;
  const uint8_t* const end = at + files_bytes;
  while (at + 48 <= end) {
    const auto kind = Load<uint16_t>(at);
    const auto entry_header = Load<uint32_t>(at + 4);
    const auto payload_bytes = Load<uint64_t>(at + 8);
    const auto flags = Load<uint64_t>(at + 40);
    if (entry_header < 48 || payload_bytes > static_cast<uint64_t>(end - at)) {
      return CUDA_ERROR_INVALID_IMAGE;
    }
    const uint8_t* payload = at + entry_header;
    if (kind == kEntryElf && !(flags & kCompressedFlags) && IsElf(payload)) {
      ReadCubin(payload, image);
    } else if (kind == kEntryPtx && !(flags & kCompressedFlags)) {
      ReadPtx({reinterpret_cast<const char*>(payload), payload_bytes}, image);
    } else {
      image->opaque = true;
    }
    at = payload + payload_bytes;
  }
  return CUDA_SUCCESS;
}

CUresult ReadElf(const uint8_t* data, Image* image) {
  const Elf elf(data);
  image->bytes = elf.Bytes();
  if (elf.header().e_ident[EI_CLASS] != ELFCLASS64) return CUDA_ERROR_INVALID_IMAGE;
  if (elf.header().e_machine == EM_X86_64 && elf.header().e_type == ET_DYN) {
    image->kind = Image::Kind::kHostElf;
    return CUDA_SUCCESS;
  }
  if (elf.header().e_machine != kMachineCuda) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  image->kind = Image::Kind::kCubin;
  ReadCubin(data, image);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult ParseImage(const void* data, Image* image) {
  if (!data) return CUDA_ERROR_INVALID_VALUE;
  const auto* bytes = static_cast<const uint8_t*>(data);
  // PTX may be shorter than a magic number: look at the first byte first.
  if (bytes[0] == '\0') return CUDA_ERROR_INVALID_IMAGE;
  if (LooksLikePtx(static_cast<const char*>(data))) {
    const std::string_view text(static_cast<const char*>(data));
    image->kind = Image::Kind::kPtx;
    image->bytes = text.size() + 1;
    ReadPtx(text, image);
    return image->kernels.empty() && image->globals.empty() &&
                   text.find(".version") == std::string_view::npos
               ? CUDA_ERROR_INVALID_PTX
               : CUDA_SUCCESS;
  }
  if (IsElf(bytes)) return ReadElf(bytes, image);
  const auto magic = Load<uint32_t>(bytes);
  if (magic == kFatbinMagic) return ReadFatbin(bytes, image);
  if (magic == kWrapperMagic) {
    const auto* inner = Load<const uint8_t*>(bytes + 8);
    if (!inner || Load<uint32_t>(inner) != kFatbinMagic) return CUDA_ERROR_INVALID_IMAGE;
    return ReadFatbin(inner, image);
  }
  return CUDA_ERROR_INVALID_IMAGE;
}

}  // namespace prorata::simgpu::driver
