#include <elf.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>

#include "sim/cuda/module/cubin.h"
#include "sim/cuda/module/image.h"
#include "sim/cuda/module/ptx_text.h"
#include "sim/cuda/module/unpack.h"

// Formats, as far as they are read here:
//
//   wrapper (what nvcc passes)   u32 0x466243b1 | u32 version | u64 address of the fatbin | u64 of
//                                version 2: address of a list of more fatbins, ended by a null
//   fatbin                       u32 0xba55ed50 | u16 version | u16 header bytes | u64 entry bytes
//   fatbin entry                 at 0: u16 kind (1 PTX, 2 ELF), 4: u32 header bytes, 8: u64 payload
//                                bytes with padding, 16: u32 packed bytes, 28: u32 architecture,
//                                40: u64 flags, 56: u64 bytes when unpacked
//   cubin                        cubin_abi.cc

namespace prorata::simgpu::driver {
namespace {

constexpr uint32_t kWrapperMagic = 0x466243b1;
constexpr uint32_t kFatbinMagic = 0xba55ed50;
constexpr uint16_t kMachineCuda = 190;
constexpr uint16_t kEntryPtx = 1;
constexpr uint16_t kEntryElf = 2;
constexpr uint64_t kPackedLz4 = 0x2000;
constexpr uint64_t kPackedZstd = 0x8000;

template <typename T>
T Load(const uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

struct Entry {
  uint16_t kind = 0;
  int arch = 0;
  std::span<const uint8_t> payload;
  uint64_t flags = 0;
  uint64_t packed_bytes = 0;
  uint64_t unpacked_bytes = 0;
};

CUresult ListEntries(const uint8_t* data, std::vector<Entry>* out) {
  const uint8_t* at = data + Load<uint16_t>(data + 6);
  const uint8_t* const end = at + Load<uint64_t>(data + 8);
  while (at + 48 <= end) {
    const auto header_bytes = Load<uint32_t>(at + 4);
    const auto payload_bytes = Load<uint64_t>(at + 8);
    const auto room = static_cast<uint64_t>(end - at);
    if (header_bytes < 48 || header_bytes > room || payload_bytes > room - header_bytes) {
      return CUDA_ERROR_INVALID_IMAGE;
    }
    Entry entry;
    entry.kind = Load<uint16_t>(at);
    entry.arch = static_cast<int>(Load<uint32_t>(at + 28));
    entry.payload = {at + header_bytes, payload_bytes};
    entry.flags = Load<uint64_t>(at + 40);
    if (entry.flags & (kPackedLz4 | kPackedZstd)) {
      if (header_bytes < 64) return CUDA_ERROR_INVALID_IMAGE;
      entry.packed_bytes = Load<uint32_t>(at + 16);
      entry.unpacked_bytes = Load<uint64_t>(at + 56);
      if (entry.packed_bytes > payload_bytes) return CUDA_ERROR_INVALID_IMAGE;
    }
    out->push_back(entry);
    at += header_bytes + payload_bytes;
  }
  return CUDA_SUCCESS;
}

// Cubins run on their own architecture and on later ones of the same major number; PTX is compiled
// for its own or a later one ("Application compatibility", CUDA C++ programming guide).
bool RunsOn(const Entry& entry, int arch) {
  if (entry.arch > arch) return false;
  return entry.kind == kEntryPtx || (entry.kind == kEntryElf && entry.arch / 10 == arch / 10);
}

CUresult ReadImageEntry(const Entry& entry, Image* image) {
  std::span<const uint8_t> bytes = entry.payload;
  std::vector<uint8_t> unpacked;
  if (entry.flags & (kPackedLz4 | kPackedZstd)) {
    const Packing packing = entry.flags & kPackedLz4 ? Packing::kLz4 : Packing::kZstd;
    if (!Unpack(packing, bytes.first(entry.packed_bytes), entry.unpacked_bytes, &unpacked)) {
      return CUDA_ERROR_INVALID_IMAGE;
    }
    bytes = unpacked;
  }
  if (entry.kind == kEntryPtx) {
    ReadPtx({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, image);
    return CUDA_SUCCESS;
  }
  if (bytes.size() < sizeof(Elf64_Ehdr) || !IsElf(bytes.data()) ||
      ElfBytes(bytes.data()) > bytes.size()) {
    return CUDA_ERROR_INVALID_IMAGE;
  }
  ReadCubin(bytes.data(), image);
  return CUDA_SUCCESS;
}

CUresult ReadFatbin(const uint8_t* data, int arch, Image* image) {
  if (Load<uint32_t>(data) != kFatbinMagic) return CUDA_ERROR_INVALID_IMAGE;
  image->kind = Image::Kind::kFatbin;
  std::vector<Entry> entries;
  if (CUresult result = ListEntries(data, &entries)) return result;
  // Cubins before PTX, then the nearest architecture.
  const Entry* best = nullptr;
  for (const Entry& entry : entries) {
    if (!RunsOn(entry, arch)) continue;
    if (!best || entry.kind > best->kind || (entry.kind == best->kind && entry.arch > best->arch)) {
      best = &entry;
    }
  }
  if (!best) return entries.empty() ? CUDA_SUCCESS : CUDA_ERROR_NO_BINARY_FOR_GPU;
  for (const Entry& entry : entries) {
    if (entry.kind != best->kind || entry.arch != best->arch) continue;
    if (CUresult result = ReadImageEntry(entry, image)) return result;
  }
  return CUDA_SUCCESS;
}

CUresult ReadWrapper(const uint8_t* data, int arch, Image* image) {
  const auto version = Load<uint32_t>(data + 4);
  const auto* first = Load<const uint8_t*>(data + 8);
  const auto* more = version == 2 ? Load<const uint8_t* const*>(data + 16) : nullptr;
  if (!first && !more) return CUDA_ERROR_INVALID_IMAGE;
  if (first) {
    if (CUresult result = ReadFatbin(first, arch, image)) return result;
  }
  for (; more && *more; ++more) {
    if (CUresult result = ReadFatbin(*more, arch, image)) return result;
  }
  return CUDA_SUCCESS;
}

CUresult ReadElf(const uint8_t* data, Image* image) {
  const auto header = Load<Elf64_Ehdr>(data);
  if (header.e_ident[EI_CLASS] != ELFCLASS64) return CUDA_ERROR_INVALID_IMAGE;
  image->bytes = ElfBytes(data);
  if (header.e_machine == EM_X86_64 && header.e_type == ET_DYN) {
    image->kind = Image::Kind::kHostElf;
    return CUDA_SUCCESS;
  }
  if (header.e_machine != kMachineCuda) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  image->kind = Image::Kind::kCubin;
  ReadCubin(data, image);
  return CUDA_SUCCESS;
}

}  // namespace

ImageKernel* Image::FindKernel(std::string_view name) {
  auto place = places_.find(std::string(name));
  return place == places_.end() ? nullptr : &kernels[place->second];
}

const ImageKernel* Image::FindKernel(std::string_view name) const {
  return const_cast<Image*>(this)->FindKernel(name);
}

ImageKernel* Image::AddKernel(std::string_view name) {
  if (!places_.try_emplace(std::string(name), kernels.size()).second) return nullptr;
  kernels.emplace_back().name = name;
  return &kernels.back();
}

CUresult ParseImage(const void* data, int arch, Image* image) {
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
  if (magic == kFatbinMagic) return ReadFatbin(bytes, arch, image);
  if (magic == kWrapperMagic) return ReadWrapper(bytes, arch, image);
  return CUDA_ERROR_INVALID_IMAGE;
}

}  // namespace prorata::simgpu::driver
