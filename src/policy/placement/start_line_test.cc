#include "policy/placement/start_line.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <set>

namespace prorata::policy {
namespace {

StartAmounts Only(uint64_t amount) { return {amount}; }
StartClaims At(size_t place, uint64_t amount) { return {{place, {Only(amount), Only(amount)}}}; }

TEST(StartLineTest, TheHeadTakesWhatItLikes) {
  StartLine line({{Only(16), {Only(10)}}});
  EXPECT_TRUE(line.MayTake(0, Only(16)));
}

TEST(StartLineTest, OvertakesWhereTheHeadWaitsForMoreThanThatAnyway) {
  // The head needs 12 of 16, so the one that holds 10 must end; then there is room for 4 more.
  StartLine line({{Only(16), {Only(10)}}});
  line.PassBy(At(0, 12));
  EXPECT_TRUE(line.MayTake(0, Only(4)));
  EXPECT_FALSE(line.MayTake(0, Only(5)));
  // Two that overtake have the 4 together.
  line.Make(0, Only(3));
  EXPECT_TRUE(line.MayTake(0, Only(1)));
  EXPECT_FALSE(line.MayTake(0, Only(2)));
}

TEST(StartLineTest, DoesNotOvertakeWhereTheHeadMayFitEarlier) {
  // One of the two that hold 5 ends, and the head fits with 3 to spare: not with 4 less.
  StartLine line({{Only(16), {Only(5), Only(5)}}});
  line.PassBy(At(0, 8));
  EXPECT_TRUE(line.MayTake(0, Only(3)));
  EXPECT_FALSE(line.MayTake(0, Only(4)));
}

TEST(StartLineTest, CountsThoseInFrontAsServedAndAsGone) {
  // Behind both: the first (6) may be served and stay while the second (9) waits: 1 is spare then.
  StartLine line({{Only(16), {Only(12)}}});
  line.PassBy(At(0, 6));
  EXPECT_TRUE(line.MayTake(0, Only(10)));
  line.PassBy(At(0, 9));
  EXPECT_TRUE(line.MayTake(0, Only(1)));
  EXPECT_FALSE(line.MayTake(0, Only(2)));
}

TEST(StartLineTest, AnotherPlaceIsNobodysWay) {
  StartLine line({{Only(16), {Only(16)}}, {Only(16), {}}});
  line.PassBy(At(0, 16));
  EXPECT_TRUE(line.MayTake(1, Only(16)));
  EXPECT_FALSE(line.MayTake(0, Only(1)));
}

// --- random histories ---

constexpr size_t kDevices = 3;
constexpr size_t kTable = kDevices;  // of shares
constexpr uint64_t kTableSize = 12;

struct Asked {
  int number = 0;  // in the order in which they came
  size_t count = 1;
  StartClaims on;        // devices; of `count` of them
  std::set<int> before;  // those that were there, or stood in front, when it came
};
struct Made {
  Asked asked;
  std::vector<size_t> devices;
};

class World {
 public:
  World(uint32_t seed, uint64_t size) : random_(seed), size_(size) {}

  void Step(bool more) {
    const uint32_t what = Pick(10);
    if (what < 5 && more) {
      Arrive();
    } else if (what < 9 && !made_.empty()) {
      made_.erase(made_.begin() + Pick(made_.size()));
    } else if (what == 9 && !line_.empty() && more) {
      line_.erase(line_.begin() + Pick(line_.size()));
    }
    Serve();
    Check();
  }
  bool Empty() const { return line_.empty() && made_.empty(); }
  int overtaken() const { return overtaken_; }
  int refused() const { return refused_; }

 private:
  uint32_t Pick(size_t count) {
    return static_cast<uint32_t>(random_() % std::max<size_t>(count, 1));
  }

  // Resources: memory; memory of those that set it aside (which all need); request; room for
  // shares, all of which one that wants the device alone takes.
  StartClaim Claim() {
    const uint64_t memory = 1 + random_() % size_;
    const bool aside = Pick(4) == 0;
    const uint64_t request = Pick(3) == 0 ? random_() % (size_ + 1) : 0;
    const uint64_t room = Pick(8) == 0 ? kTableSize : 1;
    return {{memory, memory, request, room}, {memory, aside ? memory : 0, request, room}};
  }

  void Arrive() {
    Asked asked;
    asked.number = next_++;
    const bool any = Pick(2) == 0;
    const StartClaim claim = Claim();
    for (size_t device = 0; device < kDevices; ++device) {
      if (any || Pick(kDevices) == 0) asked.on[device] = any ? claim : Claim();
    }
    if (asked.on.empty()) asked.on[Pick(kDevices)] = claim;
    asked.count = any ? 1 + Pick(2) : asked.on.size();
    for (const Made& made : made_) asked.before.insert(made.asked.number);
    for (const Asked& other : line_) asked.before.insert(other.number);
    line_.push_back(std::move(asked));
  }

  StartAmounts Held(size_t place, int later_than) const {
    StartAmounts sum{};
    for (const Made& made : made_) {
      if (made.asked.number > later_than) continue;
      for (const size_t device : made.devices) {
        for (size_t kind = 0; kind < kStartResources; ++kind) {
          if (device == place) sum[kind] += made.asked.on.at(device).takes[kind];
        }
      }
      if (place == kTable) sum[3] += 1;
    }
    return sum;
  }
  StartAmounts Capacity(size_t place) const {
    if (place == kTable) return {0, 0, 0, kTableSize};
    return {size_ + size_ / 2, size_, size_, kTableSize};
  }
  // Beside the shares of those that came no later than `later_than`.
  bool FitsOn(size_t place, const StartAmounts& needs, int later_than) const {
    const StartAmounts held = Held(place, later_than), capacity = Capacity(place);
    for (size_t kind = 0; kind < kStartResources; ++kind) {
      if (held[kind] + needs[kind] > capacity[kind]) return false;
    }
    return true;
  }
  bool Fits(const Asked& asked, int later_than) const {
    size_t devices = 0;
    for (const auto& [device, claim] : asked.on) devices += FitsOn(device, claim.needs, later_than);
    return devices >= asked.count && FitsOn(kTable, {0, 0, 0, 1}, later_than);
  }

  void Serve() {
    std::vector<StartPlace> places(kDevices + 1);
    for (size_t place = 0; place <= kTable; ++place) places[place].capacity = Capacity(place);
    for (const Made& made : made_) {
      for (const size_t on : made.devices) places[on].held.push_back(made.asked.on.at(on).takes);
      places[kTable].held.push_back({0, 0, 0, 1});
    }
    StartLine line(places);
    std::vector<Asked> waiting;
    for (Asked& asked : line_) {
      std::vector<size_t> on;
      for (const auto& [device, claim] : asked.on) {
        if (on.size() < asked.count && FitsOn(device, claim.needs, next_) &&
            line.MayTake(device, claim.takes)) {
          on.push_back(device);
        }
      }
      const StartAmounts row = {0, 0, 0, 1};
      const bool made =
          on.size() == asked.count && FitsOn(kTable, row, next_) && line.MayTake(kTable, row);
      if (!made) {
        refused_ += Fits(asked, next_);
        line.PassBy(asked.on);
        line.PassBy({{kTable, {row, row}}});
        waiting.push_back(std::move(asked));
        continue;
      }
      for (const size_t device : on) line.Make(device, asked.on.at(device).takes);
      line.Make(kTable, row);
      overtaken_ += !waiting.empty();
      made_.push_back({std::move(asked), on});
    }
    line_ = std::move(waiting);
  }

  void Check() {
    for (size_t place = 0; place <= kTable; ++place) {
      ASSERT_TRUE(FitsOn(place, {}, next_)) << "more is held than there is";
    }
    std::set<int> there;
    for (const Made& made : made_) there.insert(made.asked.number);
    for (const Asked& asked : line_) {
      ASSERT_EQ(Fits(asked, next_), Fits(asked, asked.number))
          << asked.number << " would fit but for those that came after it";
      const bool any_before = std::any_of(asked.before.begin(), asked.before.end(),
                                          [&](int number) { return there.contains(number); });
      ASSERT_TRUE(any_before) << asked.number << " starves: all that it waited for have ended";
      there.insert(asked.number);
    }
    // The one that is next waits for nothing but room.
    if (!line_.empty()) {
      ASSERT_FALSE(Fits(line_.front(), next_));
    }
  }

  std::mt19937 random_;
  const uint64_t size_;
  int next_ = 0;
  std::vector<Asked> line_;
  std::vector<Made> made_;
  int overtaken_ = 0;
  int refused_ = 0;
};

TEST(StartLineTest, NobodyStarvesAndOvertakingDelaysNobody) {
#ifdef PRORATA_SANITIZED
  constexpr int kSeeds = 60;
#else
  constexpr int kSeeds = 300;
#endif
  int overtaken = 0, refused = 0;
  for (uint32_t seed = 0; seed < kSeeds; ++seed) {
    // Few sizes, so that sums meet limits exactly; and any, so that ranges are merged.
    World world(seed, seed % 2 == 0 ? 8 : 80'000'000'000);
    for (int step = 0; step < 200; ++step) world.Step(true);
    for (int step = 0; step < 2000 && !world.Empty(); ++step) world.Step(false);
    ASSERT_TRUE(world.Empty()) << "somebody waits for ever; seed " << seed;
    ASSERT_FALSE(::testing::Test::HasFatalFailure()) << "seed " << seed;
    overtaken += world.overtaken();
    refused += world.refused();
  }
  EXPECT_GT(overtaken, 10 * kSeeds / 3) << "nobody overtakes: the test shows nothing";
  EXPECT_GT(refused, 10 * kSeeds / 3) << "everybody overtakes: the test shows nothing";
}

}  // namespace
}  // namespace prorata::policy
