#include "agent/containers/loader_cache.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>

namespace prorata::agent {
namespace {

constexpr std::string_view kOldMagic = "ld.so-1.7.0";
constexpr size_t kOldHeaderBytes = 16;
constexpr size_t kOldEntryBytes = 12;
constexpr std::string_view kMagic = "glibc-ld.so.cache1.1";
constexpr uint8_t kLittleEndian = 2;
constexpr int32_t kX8664 = 0x0303;  // FLAG_ELF_LIBC6 | FLAG_X8664_LIB64
constexpr uint32_t kExtensionMagic = 0xeaa42174;
constexpr uint32_t kHwcapsTag = 1;
constexpr size_t kMaxGrowth = 8;

struct Header {
  char magic[20];
  uint32_t entries;
  uint32_t string_bytes;
  uint8_t flags;
  uint8_t padding[3];
  uint32_t extension_offset;
  uint32_t unused[3];
};
static_assert(sizeof(Header) == 48);

struct RawEntry {
  int32_t flags;
  uint32_t name;
  uint32_t path;
  uint32_t os_version;
  uint64_t hwcap;
};
static_assert(sizeof(RawEntry) == 24);

struct Extension {
  uint32_t magic;
  uint32_t sections;
};

struct Section {
  uint32_t tag;
  uint32_t flags;
  uint32_t offset;
  uint32_t bytes;
};

struct Entry {
  RawEntry raw;
  std::string name;
  std::string path;
};

struct Cache {
  std::vector<Entry> entries;
  std::vector<std::string> hwcaps;
};

template <typename T>
std::optional<T> ReadAt(std::string_view bytes, size_t offset) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

std::optional<std::string> StringAt(std::string_view bytes, uint32_t offset) {
  if (offset >= bytes.size()) return std::nullopt;
  const size_t end = bytes.find('\0', offset);
  if (end == std::string_view::npos) return std::nullopt;
  return std::string(bytes.substr(offset, end - offset));
}

// From the new header on.
std::string_view WithoutOldPart(std::string_view bytes) {
  if (!bytes.starts_with(kOldMagic)) return bytes;
  const auto count = ReadAt<uint32_t>(bytes, kOldHeaderBytes - sizeof(uint32_t));
  if (!count) return {};
  const size_t end = kOldHeaderBytes + kOldEntryBytes * size_t{*count};
  return bytes.substr(std::min(bytes.size(), (end + 7) / 8 * 8));
}

// The extension's own offsets count from the file's beginning, those of its names from the new
// header's.
std::optional<std::vector<std::string>> ReadHwcaps(std::string_view file, std::string_view bytes,
                                                   uint32_t offset) {
  std::vector<std::string> names;
  if (offset == 0) return names;
  const auto extension = ReadAt<Extension>(file, offset);
  if (!extension || extension->magic != kExtensionMagic) return std::nullopt;
  for (size_t i = 0; i < extension->sections; ++i) {
    const auto section = ReadAt<Section>(file, offset + sizeof(Extension) + i * sizeof(Section));
    if (!section) return std::nullopt;
    if (section->tag != kHwcapsTag) continue;
    for (size_t at = 0; at < section->bytes; at += sizeof(uint32_t)) {
      const auto name_offset = ReadAt<uint32_t>(file, section->offset + at);
      auto name = name_offset ? StringAt(bytes, *name_offset) : std::nullopt;
      if (!name) return std::nullopt;
      names.push_back(std::move(*name));
    }
  }
  return names;
}

std::optional<Cache> Read(std::string_view file) {
  const std::string_view bytes = WithoutOldPart(file);
  const auto header = ReadAt<Header>(bytes, 0);
  if (!header || !bytes.starts_with(kMagic)) return std::nullopt;
  // 0: an old glibc wrote it, which did not say.
  if (header->flags != 0 && header->flags != kLittleEndian) return std::nullopt;
  auto hwcaps = ReadHwcaps(file, bytes, header->extension_offset);
  if (!hwcaps) return std::nullopt;
  Cache cache{{}, std::move(*hwcaps)};
  // Many entries that all point to one long string would be far more than there is.
  size_t left = kMaxGrowth * bytes.size();
  for (size_t i = 0; i < header->entries; ++i) {
    const auto raw = ReadAt<RawEntry>(bytes, sizeof(Header) + i * sizeof(RawEntry));
    auto name = raw ? StringAt(bytes, raw->name) : std::nullopt;
    auto path = raw ? StringAt(bytes, raw->path) : std::nullopt;
    if (!name || !path || name->size() + path->size() > left) return std::nullopt;
    left -= name->size() + path->size();
    cache.entries.push_back({*raw, std::move(*name), std::move(*path)});
  }
  return cache;
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// How the loader compares names (_dl_cache_libcmp): digits by the number that they make.
int Compare(std::string_view a, std::string_view b) {
  const auto number = [](std::string_view* text) {
    uint32_t value = 0;
    while (!text->empty() && IsDigit(text->front())) {
      value = value * 10 + static_cast<uint32_t>(text->front() - '0');
      text->remove_prefix(1);
    }
    return value;
  };
  while (!a.empty()) {
    if (b.empty()) return 1;
    if (IsDigit(a.front()) != IsDigit(b.front())) return IsDigit(a.front()) ? 1 : -1;
    if (IsDigit(a.front())) {
      const uint32_t left = number(&a);
      const uint32_t right = number(&b);
      if (left != right) return left > right ? 1 : -1;
      continue;
    }
    if (a.front() != b.front()) return a.front() > b.front() ? 1 : -1;
    a.remove_prefix(1);
    b.remove_prefix(1);
  }
  return b.empty() ? 0 : -1;
}

template <typename T>
void Put(std::string* bytes, size_t offset, const T& value) {
  std::memcpy(bytes->data() + offset, &value, sizeof value);
}

std::string Write(const Cache& cache) {
  std::string bytes(sizeof(Header) + cache.entries.size() * sizeof(RawEntry), '\0');
  const size_t strings_at = bytes.size();
  const auto add = [&bytes](const std::string& text) {
    const auto offset = static_cast<uint32_t>(bytes.size());
    bytes.append(text.c_str(), text.size() + 1);
    return offset;
  };
  for (size_t i = 0; i < cache.entries.size(); ++i) {
    const Entry& entry = cache.entries[i];
    RawEntry raw = entry.raw;
    raw.path = add(entry.path);
    // A name is nearly always the end of its path.
    raw.name = entry.path.ends_with(entry.name)
                   ? raw.path + static_cast<uint32_t>(entry.path.size() - entry.name.size())
                   : add(entry.name);
    Put(&bytes, sizeof(Header) + i * sizeof(RawEntry), raw);
  }
  std::vector<uint32_t> hwcaps;
  for (const std::string& name : cache.hwcaps) hwcaps.push_back(add(name));
  Header header{};
  std::memcpy(header.magic, kMagic.data(), sizeof header.magic);
  header.entries = static_cast<uint32_t>(cache.entries.size());
  header.string_bytes = static_cast<uint32_t>(bytes.size() - strings_at);
  header.flags = kLittleEndian;
  if (!hwcaps.empty()) {
    bytes.resize((bytes.size() + 3) / 4 * 4);
    const size_t at = bytes.size();
    const size_t names_at = at + sizeof(Extension) + sizeof(Section);
    const auto names_bytes = static_cast<uint32_t>(hwcaps.size() * sizeof(uint32_t));
    bytes.resize(names_at + names_bytes);
    Put(&bytes, at, Extension{kExtensionMagic, 1});
    Put(&bytes, at + sizeof(Extension),
        Section{kHwcapsTag, 0, static_cast<uint32_t>(names_at), names_bytes});
    std::memcpy(bytes.data() + names_at, hwcaps.data(), names_bytes);
    header.extension_offset = static_cast<uint32_t>(at);
  }
  Put(&bytes, 0, header);
  return bytes;
}

}  // namespace

Result<std::string> AddToLoaderCache(std::string_view bytes,
                                     const std::vector<std::string>& libraries) {
  // Offsets are 32 bits wide.
  if (bytes.size() > std::numeric_limits<uint32_t>::max() / (2 * kMaxGrowth)) {
    return Fail("loader_cache", "it is larger than any cache of ldconfig's");
  }
  auto cache = Read(bytes);
  if (!cache) {
    return Fail("loader_cache", "it is not a cache of ldconfig's (" + std::to_string(bytes.size()) +
                                    " bytes, format glibc-ld.so.cache1.1 expected)");
  }
  for (auto path = libraries.rbegin(); path != libraries.rend(); ++path) {
    std::erase_if(cache->entries, [&](const Entry& entry) { return entry.path == *path; });
    Entry entry{{kX8664, 0, 0, 0, 0}, path->substr(path->rfind('/') + 1), *path};
    const auto place =
        std::find_if(cache->entries.begin(), cache->entries.end(),
                     [&](const Entry& other) { return Compare(other.name, entry.name) <= 0; });
    cache->entries.insert(place, std::move(entry));
  }
  return Write(*cache);
}

}  // namespace prorata::agent
