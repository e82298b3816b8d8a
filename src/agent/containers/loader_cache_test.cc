#include "agent/containers/loader_cache.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>

namespace prorata::agent {
namespace {

const std::vector<std::string> kOurs = {"/usr/lib/x86_64-linux-gnu/libcuda.so.1",
                                        "/usr/lib/x86_64-linux-gnu/libcuda.so"};

// The cache of this machine, made by its ldconfig.
std::string MachineCache() {
  std::ifstream file("/etc/ld.so.cache", std::ios::binary);
  std::stringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

// The lines of `ldconfig -p` of such a cache, but for those that tell of the whole.
std::vector<std::string> Listed(const std::string& cache) {
  const std::string path = ::testing::TempDir() + "loader_cache_" + std::to_string(::getpid());
  std::ofstream(path, std::ios::binary) << cache;
  std::vector<std::string> lines;
  FILE* out = ::popen(("/sbin/ldconfig -p -C " + path + " 2>&1").c_str(), "r");
  char line[4096];
  while (out != nullptr && std::fgets(line, sizeof line, out) != nullptr) {
    if (line[0] == '\t') lines.emplace_back(line);
  }
  EXPECT_EQ(::pclose(out), 0) << "ldconfig cannot read it";
  ::unlink(path.c_str());
  return lines;
}

class LoaderCacheTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::access("/sbin/ldconfig", X_OK) != 0 || MachineCache().empty()) {
      GTEST_SKIP() << "NEEDS LDCONFIG: no /sbin/ldconfig, or no /etc/ld.so.cache";
    }
  }
};

TEST_F(LoaderCacheTest, OursComeFirstAmongTheirNamesAndAllElseStays) {
  const std::string other = "/opt/compat/libcuda.so.1";
  const auto with_other = AddToLoaderCache(MachineCache(), {other});
  ASSERT_TRUE(with_other) << with_other.error().message;
  const auto added = AddToLoaderCache(*with_other, kOurs);
  ASSERT_TRUE(added) << added.error().message;
  std::vector<std::string> expected = Listed(*with_other);
  std::vector<std::string> lines = Listed(*added);
  std::vector<std::string> found;
  std::erase_if(lines, [&](const std::string& line) {
    const bool ours = line.starts_with("\tlibcuda.so");
    if (ours) found.push_back(line);
    return ours;
  });
  std::erase_if(expected, [](const auto& line) { return line.starts_with("\tlibcuda.so"); });
  EXPECT_EQ(lines, expected);
  const std::string kind = " (libc6,x86-64) => ";
  EXPECT_EQ(found, (std::vector<std::string>{"\tlibcuda.so.1" + kind + kOurs[0] + "\n",
                                             "\tlibcuda.so.1" + kind + other + "\n",
                                             "\tlibcuda.so" + kind + kOurs[1] + "\n"}));
}

TEST_F(LoaderCacheTest, AgainChangesNothing) {
  const auto once = AddToLoaderCache(MachineCache(), kOurs);
  ASSERT_TRUE(once);
  const auto twice = AddToLoaderCache(*once, kOurs);
  ASSERT_TRUE(twice);
  EXPECT_EQ(*once, *twice);
}

// The loader searches by halves: a name out of order hides itself, and others. ldconfig's own order
// says where each belongs.
TEST_F(LoaderCacheTest, NamesAreSortedAsTheLoaderComparesThem) {
  const std::string cache = MachineCache();
  const std::vector<std::string> lines = Listed(cache);
  const std::string kind = " (libc6,x86-64) => ";
  size_t tried = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    const size_t at = lines[i].find(kind);
    if (at == std::string::npos) continue;
    const std::string name = lines[i].substr(0, at);
    const std::string path =
        lines[i].substr(at + kind.size(), lines[i].size() - at - kind.size() - 1);
    const auto same = [&](size_t j) {
      return j < lines.size() && lines[j].starts_with(name + " ");
    };
    if (same(i + 1) || (i > 0 && same(i - 1)) || !path.ends_with("/" + name.substr(1))) continue;
    const auto added = AddToLoaderCache(cache, {path});
    ASSERT_TRUE(added);
    ASSERT_EQ(Listed(*added), lines) << path;
    if (++tried == 100) break;
  }
  EXPECT_GT(tried, 10u);
  const auto added = AddToLoaderCache(cache, {"/l/libz10.so", "/l/libz9.so", "/l/lib1.so"});
  ASSERT_TRUE(added);
  std::string order;
  for (const std::string& line : Listed(*added)) {
    if (const size_t from = line.find("=> /l/"); from != line.npos) order += line.substr(from + 6);
  }
  EXPECT_EQ(order, "lib1.so\nlibz10.so\nlibz9.so\n");
}

// What ldconfig wrote until glibc 2.31, for older loaders: another format before the one that is
// read.
TEST_F(LoaderCacheTest, TheFormatOfBeforeIsSkipped) {
  const std::string path = ::testing::TempDir() + "loader_cache_old_" + std::to_string(::getpid());
  // -X: no links are made; only this file is written.
  ASSERT_EQ(std::system(("/sbin/ldconfig -X -c compat -C " + path).c_str()), 0);
  std::ifstream file(path, std::ios::binary);
  std::stringstream bytes;
  bytes << file.rdbuf();
  ::unlink(path.c_str());
  const std::string old = bytes.str();
  ASSERT_TRUE(old.starts_with("ld.so-1.7.0"));
  const auto added = AddToLoaderCache(old, kOurs);
  ASSERT_TRUE(added) << added.error().message;
  std::vector<std::string> lines = Listed(*added);
  std::erase_if(lines, [](const auto& line) { return line.starts_with("\tlibcuda.so"); });
  EXPECT_EQ(lines, Listed(old));
}

TEST_F(LoaderCacheTest, BytesMayBeAnything) {
  const std::string good = MachineCache();
  for (size_t size = 0; size < good.size(); size += 1 + size / 8) {
    AddToLoaderCache(good.substr(0, size), kOurs);
  }
  std::mt19937 random(42);
  for (int turn = 0; turn < 300; ++turn) {
    std::string bad = good;
    for (int i = 0; i < 8; ++i) {
      // Most of all in what is counted and pointed with.
      const size_t place = random() % (turn % 2 == 0 ? 128 : bad.size());
      bad[place] = static_cast<char>(random());
    }
    AddToLoaderCache(bad, kOurs);
  }
  for (const char* text : {"", "no cache", "ld.so-1.7.0", "glibc-ld.so.cache1.1"}) {
    const auto refused = AddToLoaderCache(text, kOurs);
    ASSERT_FALSE(refused) << text;
    EXPECT_EQ(refused.error().code, "loader_cache");
  }
}

}  // namespace
}  // namespace prorata::agent
