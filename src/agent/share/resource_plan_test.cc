#include "agent/share/resource_plan.h"

#include <gtest/gtest.h>

#include "base/bytes.h"

namespace prorata::agent {
namespace {

class ResourcePlanTest : public ::testing::Test {
 protected:
  ResourcePlanTest() {
    device_.uuid = "GPU-0";
    device_.total_bytes = 16 * kGiB;
  }

  // A share of the file that is there, in the device's promises too.
  void Has(const std::string& name, uint32_t request_ppm, uint64_t memory_bytes,
           bool has_members = true) {
    api::ShareTerms terms;
    terms.memory_bytes = terms.memory_request_bytes = memory_bytes;
    terms.compute_request = {request_ppm};
    terms.compute_limit = Fraction::One();
    former_.push_back({name, terms, has_members});
    device_.promised_bytes += memory_bytes;
    device_.limit_bytes += memory_bytes;
    device_.promised_request.ppm += request_ppm;
    ++device_.shares;
  }
  void Line(const std::string& id, uint32_t request_ppm, uint64_t memory_bytes) {
    clients_.push_back({id,
                        {request_ppm},
                        Fraction::One(),
                        memory_bytes,
                        static_cast<uint32_t>(clients_.size() + 2)});
  }
  std::string Judge() {
    const Status ok = CheckResourcePlan("f", clients_, device_, former_, others_);
    return ok ? "" : ok.error().message;
  }

  api::DeviceStatus device_;
  std::vector<FileShare> former_;
  std::vector<ResourceClient> clients_;
  std::vector<std::string> others_;
};

TEST_F(ResourcePlanTest, NewSharesMustFitTogether) {
  Line("a", 500'000, 8 * kGiB);
  Line("b", 500'000, 8 * kGiB);
  EXPECT_EQ(Judge(), "");
  Line("c", 0, 64 * kMiB);
  EXPECT_EQ(Judge().substr(0, 9), "f:4: 'c':");
  EXPECT_NE(Judge().find("only 0 B left"), std::string::npos) << Judge();
}

TEST_F(ResourcePlanTest, WhatOneGivesUpAnotherTakesInAnyOrder) {
  Has("a", 300'000, 4 * kGiB);
  Has("b", 700'000, 12 * kGiB);
  Line("a", 700'000, 12 * kGiB);
  Line("b", 300'000, 4 * kGiB);
  EXPECT_EQ(Judge(), "");
}

TEST_F(ResourcePlanTest, WhoLosesItsLineKeepsWhatItHasWhileItHasMembers) {
  Has("a", 600'000, 10 * kGiB, true);
  Line("b", 600'000, 4 * kGiB);
  EXPECT_NE(Judge().find("only 0.4"), std::string::npos) << Judge();
  former_[0].has_members = false;
  EXPECT_EQ(Judge(), "");
}

TEST_F(ResourcePlanTest, NamesOfOtherSharesAreTaken) {
  others_ = {"made/by-run"};
  Line("made/by-run", 0, kGiB);
  EXPECT_EQ(Judge().substr(0, 19), "f:2: 'made/by-run':");
  EXPECT_NE(Judge().find("exists already"), std::string::npos) << Judge();
}

TEST_F(ResourcePlanTest, OtherSharesPromisesStay) {
  device_.promised_request = {500'000};
  device_.promised_bytes = kGiB;
  device_.shares = 1;
  Has("a", 100'000, kGiB);
  Line("a", 500'001, kGiB);
  EXPECT_NE(Judge().find("f:2: 'a': the share requests 0.500001"), std::string::npos) << Judge();
  clients_.clear();
  Line("a", 500'000, 15 * kGiB);
  EXPECT_EQ(Judge(), "");
}

// Programs outside prorata may have taken what was promised: nobody is to lose its terms for it.
TEST_F(ResourcePlanTest, NotMoreThanBeforeIsAlwaysToBeHad) {
  Has("a", 0, 8 * kGiB);
  device_.foreign_bytes = 12 * kGiB;
  Line("a", 200'000, 8 * kGiB);
  EXPECT_EQ(Judge(), "");
  clients_.clear();
  Line("a", 0, 8 * kGiB + 1);
  EXPECT_NE(Judge(), "");
}

TEST_F(ResourcePlanTest, ALineMaySayHowMuchIsSetAside) {
  Line("a", 0, 12 * kGiB);
  Line("b", 0, 12 * kGiB);
  clients_[0].memory_request_bytes = clients_[1].memory_request_bytes = 4 * kGiB;
  EXPECT_EQ(Judge(), "");
  EXPECT_EQ(TermsOf(clients_[0], {}, device_).memory_request_bytes, 4 * kGiB);
  clients_[1].memory_request_bytes.reset();
  EXPECT_EQ(Judge(), "");
  clients_[1].memory_bytes = 13 * kGiB;
  EXPECT_NE(Judge().find("f:3: 'b': the share asks for 13 GiB"), std::string::npos) << Judge();
  // Kept shares as new ones; without the field it is as if it had never been there.
  clients_.clear();
  Has("a", 0, 12 * kGiB);
  Line("a", 0, 12 * kGiB);
  Line("b", 0, 4 * kGiB);
  EXPECT_EQ(Judge(), "");
  clients_[1].memory_bytes = 12 * kGiB;
  clients_[1].memory_request_bytes = 4 * kGiB;
  EXPECT_NE(Judge(), "") << "12 GiB could never be given beside the 12 of 'a'";
  clients_[0].memory_request_bytes = 4 * kGiB;
  EXPECT_EQ(Judge(), "");
}

TEST_F(ResourcePlanTest, WhatNoLineSaysStays) {
  api::ShareTerms now;
  now.weight = 7;
  const api::ShareTerms terms = TermsOf({"a", {1}, {2}, 3, 2}, now, device_);
  EXPECT_EQ(terms.memory_bytes, 3u);
  EXPECT_EQ(terms.memory_request_bytes, 3u);
  EXPECT_EQ(terms.compute_request.ppm, 1u);
  EXPECT_EQ(terms.compute_limit.ppm, 2u);
  EXPECT_EQ(terms.weight, 7u);
}

}  // namespace
}  // namespace prorata::agent
