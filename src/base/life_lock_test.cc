#include "base/life_lock.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <thread>
#include <vector>

namespace prorata {
namespace {

class LifeLockTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/prorata-lock-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
    path_ = folder_ + "/lock";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string folder_;
  std::string path_;
};

TEST_F(LifeLockTest, IsHeldUntilItsDescriptorIsClosed) {
  EXPECT_FALSE(IsLifeLocked(path_));
  auto held = TakeLifeLock(path_);
  ASSERT_TRUE(held);
  EXPECT_TRUE(IsLifeLocked(path_));
  EXPECT_TRUE(IsLifeLocked(path_)) << "to ask has closed a descriptor of the same file";
  EXPECT_EQ(TakeLifeLock(path_).error().code, "locked");
  held->Reset();
  EXPECT_FALSE(IsLifeLocked(path_));
  EXPECT_TRUE(TakeLifeLock(path_));
}

TEST_F(LifeLockTest, SaysWhatIsWrong) {
  EXPECT_EQ(TakeLifeLock(folder_ + "/none/lock").error().code, "lock");
  std::filesystem::create_symlink(folder_ + "/elsewhere", path_);
  EXPECT_EQ(TakeLifeLock(path_).error().code, "lock");
  EXPECT_FALSE(IsLifeLocked(path_));
}

TEST_F(LifeLockTest, WhoAsksHoldsNothing) {
  constexpr int kRounds = 20'000;
  std::atomic<bool> over = false;
  std::vector<std::thread> askers;
  for (int i = 0; i < 4; ++i) {
    askers.emplace_back([&] {
      while (!over) IsLifeLocked(path_);
    });
  }
  int refused = 0;
  for (int i = 0; i < kRounds; ++i) refused += TakeLifeLock(path_) ? 0 : 1;
  over = true;
  for (std::thread& asker : askers) asker.join();
  EXPECT_EQ(refused, 0);
}

}  // namespace
}  // namespace prorata
