#include "driver/find_driver.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

namespace prorata::driver {
namespace {

struct Entry {
  uint32_t flags;
  std::string name, path;
};

std::string Cache(const std::vector<Entry>& entries) {
  std::string head = "glibc-ld.so.cache1.1", table, strings;
  auto word = [](std::string* out, uint32_t v) { out->append(reinterpret_cast<char*>(&v), 4); };
  const uint32_t base = 48 + 24 * static_cast<uint32_t>(entries.size());
  for (const Entry& e : entries) {
    word(&table, e.flags);
    word(&table, base + static_cast<uint32_t>(strings.size()));
    strings += e.name + '\0';
    word(&table, base + static_cast<uint32_t>(strings.size()));
    strings += e.path + '\0';
    table.append(12, '\0');
  }
  word(&head, static_cast<uint32_t>(entries.size()));
  word(&head, static_cast<uint32_t>(strings.size()));
  head.append(20, '\0');
  return head + table + strings;
}

std::vector<std::string> Scan(const std::string& bytes, const char* name) {
  // A heap copy of the exact size, so that a read past the end is seen by the sanitizer.
  std::vector<uint8_t> copy(bytes.begin(), bytes.end());
  std::vector<std::string> found;
  ScanLoaderCache(
      copy.data(), copy.size(), name,
      [](const char* path, void* out) {
        static_cast<std::vector<std::string>*>(out)->push_back(path);
        return false;
      },
      &found);
  return found;
}

TEST(LoaderCache, FindsEntriesOfThisMachineOnly) {
  const std::string cache = Cache({{0x0303, "libcuda.so.1", "/a/libcuda.so.1"},
                                   {0x0003, "libcuda.so.1", "/i386/libcuda.so.1"},
                                   {0x0303, "libc.so.6", "/a/libc.so.6"},
                                   {0x0303, "libcuda.so.1", "/b/libcuda.so.1"}});
  EXPECT_EQ(Scan(cache, "libcuda.so.1"),
            (std::vector<std::string>{"/a/libcuda.so.1", "/b/libcuda.so.1"}));
}

TEST(LoaderCache, AnOldCacheMayStandBeforeIt) {
  std::string old("ld.so-1.7.0\0\1\0\0\0", 16);
  old.append(12, 'x');
  old.append(4, '\0');  // padding to 8
  EXPECT_EQ(Scan(old + Cache({{0x0303, "n", "/p"}}), "n"), std::vector<std::string>{"/p"});
}

TEST(LoaderCache, AnyCutOrFlippedByteIsSurvived) {
  const std::string cache = Cache({{0x0303, "libcuda.so.1", "/a/libcuda.so.1"}});
  for (size_t cut = 0; cut < cache.size(); ++cut) Scan(cache.substr(0, cut), "libcuda.so.1");
  for (size_t i = 0; i < cache.size(); ++i) {
    std::string bad = cache;
    bad[i] = static_cast<char>(bad[i] ^ 0xff);
    Scan(bad, "libcuda.so.1");
  }
  EXPECT_TRUE(Scan(cache.substr(0, cache.size() - 1), "libcuda.so.1").empty());
}

TEST(FindDriver, ItsOwnFileIsSkipped) {
  Search search;
  StartSearch(&search, "libc.so.6", {});
  search.driver_dir = nullptr;
  ASSERT_NE(OpenDriver(&search), nullptr) << search.tried;
  const std::string first = search.path;
  search.skip = Identify(first.c_str());
  search.library_path = nullptr;
  OpenDriver(&search);
  EXPECT_FALSE(search.path[0] != 0 && Identify(search.path) == search.skip);
}

TEST(FindDriver, TheNamedFolderIsTheOnlyOne) {
  Search search;
  StartSearch(&search, "libc.so.6", {});
  search.driver_dir = "/nonexistent";
  EXPECT_EQ(OpenDriver(&search), nullptr);
  EXPECT_NE(std::strstr(search.tried, "/nonexistent"), nullptr);
}

TEST(FindDriver, AFileThatDoesNotLoadIsNamedAndSkipped) {
  std::string folder = testing::TempDir() + "prorata_find_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  std::ofstream(folder + "/libc.so.6") << "not an ELF file";
  Search search;
  StartSearch(&search, "libc.so.6", {});
  search.driver_dir = nullptr;
  search.library_path = folder.c_str();
  EXPECT_NE(OpenDriver(&search), nullptr);
  EXPECT_NE(std::strstr(search.tried, folder.c_str()), nullptr) << search.tried;
}

}  // namespace
}  // namespace prorata::driver
