#include "agent/node/state_writer.h"

#include <gtest/gtest.h>

#include "agent/testing/testing_agent.h"

namespace prorata::agent {
namespace {

class StateWriterTest : public ::testing::Test {
 protected:
  // What is on the disk.
  uint32_t Saved() {
    const auto state = LoadState(path_);
    return state ? state->waiting : ~0u;
  }
  void RunUntil(const std::function<bool()>& condition) {
    ASSERT_TRUE(testing::Eventually([&] {
      loop_.restart();  // it stops whenever it has nothing to do
      loop_.poll();
      return condition();
    }));
  }

  testing::TemporaryFolder folder_;
  const std::string path_ = folder_.path() + "/state.json";
  boost::asio::io_context loop_;
  SavedState state_;
  int asked_ = 0;  // for the state
  std::function<SavedState()> state_of_ = [this] {
    ++asked_;
    return state_;
  };
};

TEST_F(StateWriterTest, WhoeverAsksMeanwhileIsSavedOnceWithTheLastOfIt) {
  StateWriter writer(loop_, path_, state_of_, 0);
  for (state_.waiting = 1; state_.waiting < 9; ++state_.waiting) writer.SaveSoon();
  EXPECT_TRUE(writer.pending());
  EXPECT_EQ(asked_, 0) << "it is what there is when it is written";
  RunUntil([&] { return Saved() == 9; });
  EXPECT_EQ(asked_, 1);
  EXPECT_FALSE(writer.pending());
}

TEST_F(StateWriterTest, AnAnswerComesWhenThatStateOrALaterOneIsOnTheDisk) {
  StateWriter writer(loop_, path_, state_of_, 20);
  std::vector<uint32_t> on_disk;
  const auto then = [&](const Status& ok) {
    EXPECT_TRUE(ok);
    on_disk.push_back(Saved());
  };
  for (const uint32_t waiting : {1, 2, 3}) {
    state_.waiting = waiting;
    writer.Save(then);
  }
  RunUntil([&] { return on_disk.size() == 3; });
  ASSERT_EQ(on_disk.size(), 3u);
  EXPECT_GE(on_disk[0], 1u);
  EXPECT_EQ(on_disk[1], 3u) << "the second was never written by itself";
  EXPECT_EQ(on_disk[2], 3u);
}

TEST_F(StateWriterTest, AFolderThatIsGoneIsSaid) {
  StateWriter writer(loop_, folder_.path() + "/none/state.json", state_of_, 0);
  const auto now = writer.SaveNow();
  ASSERT_FALSE(now);
  EXPECT_EQ(now.error().code, "state");
  bool answered = false;
  writer.Save([&](const Status& ok) {
    answered = true;
    EXPECT_FALSE(ok);
  });
  RunUntil([&] { return answered; });
}

}  // namespace
}  // namespace prorata::agent
