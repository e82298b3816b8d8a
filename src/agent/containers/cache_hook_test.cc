#include "agent/containers/cache_hook.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "agent/testing/testing_agent.h"

namespace prorata::agent {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kLibraries = {"/usr/lib/x86_64-linux-gnu/libcuda.so.1"};

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void WriteFile(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// A cache without entries: the header alone.
std::string EmptyCache() {
  std::string cache = "glibc-ld.so.cache1.1";
  cache.resize(48);
  return cache;
}

class CacheHookTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(etc_);
    WriteFile(bundle() / "config.json", R"({"root": {"path": "rootfs"}})");
  }
  fs::path bundle() const { return folder_.path(); }
  Status Run() const {
    return UpdateLoaderCache(R"({"ociVersion": "1.0", "bundle": ")" + folder_.path() + "\"}",
                             kLibraries);
  }
  bool Lists(const fs::path& file) const {
    return ReadFile(file).find(kLibraries[0]) != std::string::npos;
  }
  size_t FilesInEtc() const {
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(etc_), fs::directory_iterator()));
  }

  testing::TemporaryFolder folder_;
  const fs::path etc_ = fs::path(folder_.path()) / "rootfs/etc";
};

TEST_F(CacheHookTest, ListsTheLibrariesAndKeepsTheMode) {
  WriteFile(etc_ / "ld.so.cache", EmptyCache());
  fs::permissions(etc_ / "ld.so.cache", fs::perms(0640));
  const auto ok = Run();
  ASSERT_TRUE(ok) << ok.error().message;
  EXPECT_TRUE(Lists(etc_ / "ld.so.cache"));
  EXPECT_EQ(fs::status(etc_ / "ld.so.cache").permissions(), fs::perms(0640));
  EXPECT_EQ(FilesInEtc(), 1u);
}

TEST_F(CacheHookTest, AnImageWithoutACacheIsLeftAlone) {
  EXPECT_TRUE(Run());
  EXPECT_EQ(FilesInEtc(), 0u);
  fs::remove(etc_);
  EXPECT_TRUE(Run());
  EXPECT_FALSE(fs::exists(etc_));
}

TEST_F(CacheHookTest, WhatIsNoCacheIsLeftAsItIs) {
  WriteFile(etc_ / "ld.so.cache", "musl has none");
  const auto ok = Run();
  ASSERT_FALSE(ok);
  EXPECT_NE(ok.error().message.find("left as it is"), std::string::npos);
  EXPECT_EQ(ReadFile(etc_ / "ld.so.cache"), "musl has none");
  EXPECT_EQ(FilesInEtc(), 1u);
}

// An image's links lead nowhere outside of it, whatever they say.
TEST_F(CacheHookTest, LinksDoNotLeadOutOfTheContainer) {
  const fs::path outside = bundle() / "outside";
  fs::create_directories(outside);
  WriteFile(outside / "ld.so.cache", EmptyCache());
  fs::create_symlink(outside / "ld.so.cache", etc_ / "ld.so.cache");
  EXPECT_FALSE(Run());
  EXPECT_FALSE(Lists(outside / "ld.so.cache"));
  fs::remove_all(etc_);
  for (const fs::path& to : {outside, fs::path("../outside"), fs::path("../../outside")}) {
    fs::create_symlink(to, etc_);
    Run();
    EXPECT_FALSE(Lists(outside / "ld.so.cache")) << to;
    fs::remove(etc_);
  }
  // Within it they are followed, as its own programs do.
  fs::create_directories(bundle() / "rootfs/usr/etc");
  WriteFile(bundle() / "rootfs/usr/etc/ld.so.cache", EmptyCache());
  fs::create_symlink("/usr/etc", etc_);
  EXPECT_TRUE(Run());
  EXPECT_TRUE(Lists(bundle() / "rootfs/usr/etc/ld.so.cache"));
}

TEST_F(CacheHookTest, APipeInItsPlaceStopsNobody) {
  ASSERT_EQ(::mkfifo((etc_ / "ld.so.cache").c_str(), 0600), 0);
  EXPECT_FALSE(Run());
}

TEST_F(CacheHookTest, WhatIsNoStateOfAContainerIsRefused) {
  for (const char* state :
       {"", "no", "[]", "{}", R"({"bundle": 1})", R"({"bundle": "/nowhere"})"}) {
    const auto ok = UpdateLoaderCache(state, kLibraries);
    ASSERT_FALSE(ok) << state;
    EXPECT_EQ(ok.error().code, "hook");
  }
  for (const char* config : {"", "[]", R"({"root": 1})", R"({"root": {"path": 1}})"}) {
    WriteFile(bundle() / "config.json", config);
    EXPECT_FALSE(Run()) << config;
  }
}

}  // namespace
}  // namespace prorata::agent
