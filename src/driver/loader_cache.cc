#include <cstring>

#include "driver/find_driver.h"

// The layout, as glibc's sysdeps/generic/dl-cache.h describes it (2.2 to 2.40):
//   optional old cache: "ld.so-1.7.0\0", u32 count, count x 12 bytes, then padding to 8
//   new cache: 17 bytes "glibc-ld.so.cache", "1.1", u32 count, u32 string bytes, 20 bytes,
//              count x { i32 flags, u32 name, u32 path, u32 os, u64 hwcap }, strings
// Offsets of names and paths count from the start of the new cache.
namespace prorata::driver {
namespace {

constexpr char kOldMagic[] = "ld.so-1.7.0";
constexpr char kNewMagic[] = "glibc-ld.so.cache1.1";
constexpr size_t kOldHeader = 16, kOldEntry = 12;
constexpr size_t kNewHeader = 48, kNewEntry = 24, kNewMagicBytes = 20;
constexpr uint32_t kX8664LibC6 = 0x0303;  // FLAG_X8664_LIB64 | FLAG_ELF_LIBC6

uint32_t Word(const uint8_t* at) {
  uint32_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// A zero-terminated string inside the bytes, or nullptr.
const char* Text(const uint8_t* bytes, size_t size, uint32_t offset) {
  if (offset >= size || std::memchr(bytes + offset, 0, size - offset) == nullptr) return nullptr;
  return reinterpret_cast<const char*>(bytes) + offset;
}

}  // namespace

bool ScanLoaderCache(const uint8_t* bytes, size_t size, const char* name,
                     bool (*visit)(const char* path, void* context), void* context) {
  if (size >= kOldHeader && std::memcmp(bytes, kOldMagic, sizeof kOldMagic) == 0) {
    const uint64_t end = kOldHeader + uint64_t{kOldEntry} * Word(bytes + 12);
    const uint64_t start = (end + 7) & ~uint64_t{7};
    if (start >= size) return false;
    bytes += start;
    size -= start;
  }
  if (size < kNewHeader || std::memcmp(bytes, kNewMagic, kNewMagicBytes) != 0) return false;
  const uint32_t count = Word(bytes + kNewMagicBytes);
  if (count > (size - kNewHeader) / kNewEntry) return false;
  for (uint32_t i = 0; i < count; ++i) {
    const uint8_t* entry = bytes + kNewHeader + size_t{i} * kNewEntry;
    if ((Word(entry) & 0xffff) != kX8664LibC6) continue;
    const char* key = Text(bytes, size, Word(entry + 4));
    const char* path = Text(bytes, size, Word(entry + 8));
    if (key == nullptr || path == nullptr || std::strcmp(key, name) != 0) continue;
    if (visit(path, context)) return true;
  }
  return false;
}

}  // namespace prorata::driver
