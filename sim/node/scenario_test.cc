#include "sim/node/scenario.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace prorata::simulation {
namespace {

constexpr char kLeast[] = R"(
name = "least"
duration_ms = 1000
[[programs]]
name = "a"
)";

std::string With(const std::string& more) { return kLeast + more; }

std::string ErrorOf(const std::string& text) {
  const auto scenario = ParseScenario(text, "FILE");
  return scenario ? "" : scenario.error().message;
}

TEST(Scenario, DefaultsAreThoseOfTheHeader) {
  const auto scenario = ParseScenario(kLeast, "FILE");
  ASSERT_TRUE(scenario) << scenario.error().message;
  EXPECT_TRUE(scenario->prorata);
  EXPECT_EQ(scenario->warmup_ns, 0);
  ASSERT_EQ(scenario->programs.size(), 1u);
  const ProgramSpec& a = scenario->programs[0];
  EXPECT_EQ(a.share, "a");
  EXPECT_EQ(a.stop_ns, 1'000'000'000);
  EXPECT_EQ(a.kernel.low_ns, 1'000'000);
  EXPECT_EQ(a.per_sync, 16);
  ASSERT_EQ(scenario->shares.size(), 1u);
  EXPECT_EQ(scenario->shares[0].compute.request, Fraction::Zero());
  EXPECT_EQ(scenario->shares[0].compute.limit, Fraction::One());
  EXPECT_EQ(scenario->shares[0].compute.weight, 1u);
  EXPECT_EQ(scenario->shares[0].memory_bytes, kGiB);
}

TEST(Scenario, OpenLoopsAndPriorities) {
  const auto scenario = ParseScenario(
      With("every_us = 20000\npoisson = true\npriority = 3\nyield_within_ms = 0.5"), "FILE");
  ASSERT_TRUE(scenario) << scenario.error().message;
  EXPECT_EQ(scenario->programs[0].every_ns, 20'000'000);
  EXPECT_TRUE(scenario->programs[0].poisson);
  EXPECT_EQ(scenario->shares[0].compute.priority, 3);
  EXPECT_EQ(scenario->shares[0].compute.yield_within_ns, 500'000);
  EXPECT_NE(ErrorOf(With("every_us = 5\nper_sync = 0")), "");
  EXPECT_NE(ErrorOf(With("every_us = 5\ngap_us = 5")), "");
  EXPECT_NE(ErrorOf(With("priority = 1001")), "");
  EXPECT_NE(ErrorOf(With("yield_within_ms = -1")), "");
}

TEST(Scenario, UpdatesChangeWhatTheyNameInTheOrderOfTheirTimes) {
  const auto scenario = ParseScenario(
      "elastic_ceiling = \"0.9\"\n" +
          With("compute = \"0.2\"\ncompute_limit = \"0.3\"\nweight = 7\n"
               "[[updates]]\nat_ms = 800\nshare = \"a\"\ncompute = \"0.5\"\npriority = 2\n"
               "[[updates]]\nat_ms = 500\nshare = \"a\"\ncompute_limit = \"0.6\"\n"),
      "FILE");
  ASSERT_TRUE(scenario) << scenario.error().message;
  EXPECT_EQ(scenario->elastic_ceiling.ppm, 900'000u);
  ASSERT_EQ(scenario->updates.size(), 2u);
  const UpdateSpec& first = scenario->updates[0];
  EXPECT_EQ(first.at_ns, 500'000'000);
  EXPECT_EQ(first.compute.request.ppm, 200'000u);
  EXPECT_EQ(first.compute.limit.ppm, 600'000u);
  EXPECT_EQ(first.compute.weight, 7u);
  const UpdateSpec& second = scenario->updates[1];
  EXPECT_EQ(second.share, "a");
  EXPECT_EQ(second.compute.request.ppm, 500'000u);
  EXPECT_EQ(second.compute.limit.ppm, 600'000u);
  EXPECT_EQ(second.compute.priority, 2);
}

TEST(Scenario, KernelTimesInTheirThreeForms) {
  EXPECT_EQ(ParseScenario(With("kernel_us = 1.5"), "FILE")->programs[0].kernel.high_ns, 1500);
  const auto range = ParseScenario(With("kernel_us = [20, 5000]"), "FILE");
  EXPECT_EQ(range->programs[0].kernel.low_ns, 20'000);
  EXPECT_EQ(range->programs[0].kernel.high_ns, 5'000'000);
  const auto choice = ParseScenario(With("kernel_us = { choice = [20, 200] }"), "FILE");
  EXPECT_EQ(choice->programs[0].kernel.choice_ns, (std::vector<int64_t>{20'000, 200'000}));
}

TEST(Scenario, WhatModelsLaunch) {
  const auto scenario = ParseScenario(
      With("kernel_us = [5, 50]\nhost_us = 10\nfunctions = 300\nsteps = 4\ngap_us = 100\n"
           "every_us = 5000\nburst_ms = 200\nquiet_ms = 300"),
      "FILE");
  ASSERT_TRUE(scenario) << scenario.error().message;
  const ProgramSpec& program = scenario->programs[0];
  EXPECT_EQ(program.host_ns, 10'000);
  EXPECT_EQ(program.functions, 300);
  EXPECT_EQ(program.steps, 4);
  EXPECT_EQ(program.gap_ns, 100'000) << "between two steps";
  EXPECT_EQ(program.burst_ns, 200'000'000);
  EXPECT_EQ(program.quiet_ns, 300'000'000);
  EXPECT_EQ(ParseScenario(With("kernel_us = [5, 50]\ngrows_over = 9"), "FILE")
                ->programs[0]
                .kernel.grows_over,
            9);
}

TEST(Scenario, WhatIsCopied) {
  const auto scenario =
      ParseScenario(With("copy_in = \"32MiB\"\ncopy_out = \"64KiB\"\ncopy_every = 4"), "FILE");
  ASSERT_TRUE(scenario) << scenario.error().message;
  EXPECT_EQ(scenario->programs[0].copy_in_bytes, 32u << 20);
  EXPECT_EQ(scenario->programs[0].copy_out_bytes, 64u << 10);
  EXPECT_EQ(scenario->programs[0].copy_every, 4);
  EXPECT_TRUE(ParseScenario(With("copy_in = \"32MiB\"\ncopy_ahead = true"), "FILE"));
  for (const char* wrong : {"copy_in = \"much\"", "copy_in = 32", "copy_ahead = true",
                            "copy_in = \"1MiB\"\ncopy_ahead = true\ncopy_every = 1",
                            "copy_in = \"1MiB\"\ncopy_ahead = true\nper_sync = 0"}) {
    EXPECT_FALSE(ParseScenario(With(wrong), "FILE")) << wrong;
  }
}

TEST(Scenario, TheMachineIsReadByItsOwnRules) {
  const std::string head = "machine = { devices = [{ time_slice_us = 500 }] }\n";
  const auto scenario = ParseScenario(head + kLeast, "FILE");
  ASSERT_TRUE(scenario) << scenario.error().message;
  EXPECT_EQ(scenario->machine.devices[0].time_slice_ns, 500'000);
  EXPECT_NE(
      ErrorOf("machine = { devices = [{ slice = 5 }] }\n" + std::string(kLeast)).find("slice"),
      std::string::npos);
}

TEST(Scenario, ProgramsOfOneShareAgree) {
  const auto scenario = ParseScenario(
      With("compute = \"0.5\"\n[[programs]]\nname = \"b\"\nshare = \"a\"\nweight = 3\n"), "FILE");
  ASSERT_TRUE(scenario) << scenario.error().message;
  ASSERT_EQ(scenario->shares.size(), 1u);
  EXPECT_EQ(scenario->shares[0].compute.request.ppm, 500'000u);
  EXPECT_EQ(scenario->shares[0].compute.weight, 3u);
  EXPECT_NE(ErrorOf(With("compute = \"0.5\"\n[[programs]]\nname = \"b\"\nshare = \"a\"\n"
                         "compute = \"0.4\"\n"))
                .find("different terms"),
            std::string::npos);
}

TEST(Scenario, MistakesAreNamedWithTheirPlace) {
  const std::pair<const char*, const char*> mistakes[] = {
      {"kernels_us = 5", "programs[0].kernels_us: unknown key"},
      {"kernel_us = \"5\"", "programs[0].kernel_us: expected"},
      {"kernel_us = [5, 4]", "programs[0].kernel_us: expected"},
      {"kernel_us = { choice = [] }", "programs[0].kernel_us: expected"},
      {"compute = \"1.5\"", "programs[0].compute: expected"},
      {"compute = \"0.5\"\ncompute_limit = \"0.4\"", "below compute"},
      {"stop_ms = 1001", "programs[0].stop_ms: expected"},
      {"start_ms = 600\nstop_ms = 500", "programs[0].stop_ms: expected"},
      {"per_sync = 0\ngap_us = 5", "programs[0].gap_us: expected"},
      {"devices = [0, 0]", "programs[0].devices: expected"},
      {"devices = [1]", "is on device 1, which the machine has not"},
      {"collective_every = 1", "programs[0].collective_every: expected"},
      {"first_more = 1", "programs[0].first_more: expected"},
      {"per_sync = 0\nburst_ms = 1", "programs[0].burst_ms: expected"},
      {"grows_over = 2\nfunctions = 2", "programs[0].grows_over: expected"},
      {"per_sync = 0\nfirst_gap_us = 1", "programs[0].first_gap_us: expected"},
      {"[[programs]]\nname = \"a\"", "two are named"},
      {"[[expect]]\nprogram = \"b\"\ngpu_time = 1", "there is no \"b\""},
      {"[[updates]]\nshare = \"a\"", "updates[0].at_ms: expected"},
      {"[[updates]]\nat_ms = 1001\nshare = \"a\"", "updates[0].at_ms: expected"},
      {"[[updates]]\nat_ms = 5", "updates[0].share: expected"},
      {"[[updates]]\nat_ms = 5\nshare = \"b\"", "no share \"b\""},
      {"[[updates]]\nat_ms = 5\nshare = \"a\"\nmemory = \"1GiB\"", "updates[0].memory"},
      {"compute = \"0.5\"\n[[updates]]\nat_ms = 5\nshare = \"a\"\ncompute_limit = \"0.4\"",
       "below compute"},
      {"[[expect]]\ngpu_time = 1", "one of program"},
      {"[[expect]]\nprogram = \"a\"", "expect[0].gpu_time: expected"},
      {"[[expect]]\nprogram = \"a\"\nshare = \"a\"\ngpu_time = 1", "one of program"},
  };
  for (const auto& [text, error] : mistakes) {
    EXPECT_NE(ErrorOf(With(text)).find(error), std::string::npos)
        << text << "\ngave: " << ErrorOf(With(text));
    EXPECT_EQ(ErrorOf(With(text)).find("FILE: "), 0u) << text;
  }
  EXPECT_NE(ErrorOf("elastic_ceiling = \"0\"\n" + With("")).find("elastic_ceiling: expected"),
            std::string::npos);
  EXPECT_NE(ErrorOf("x = ").find("FILE: line 1"), std::string::npos);
  EXPECT_NE(ErrorOf("name = \"x\"\nduration_ms = 5\nwarmup_ms = 5\n[[programs]]\nname = \"a\"\n")
                .find("warmup_ms"),
            std::string::npos);
}

TEST(Scenario, AllOfTestsScenariosCanBeRead) {
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(SCENARIOS)) {
    if (entry.path().extension() != ".toml") continue;
    ++files;
    const auto scenario = ReadScenario(entry.path());
    EXPECT_TRUE(scenario) << scenario.error().message;
    EXPECT_TRUE(!scenario || !scenario->expect.empty()) << entry.path();
  }
  EXPECT_GE(files, 8);
}

}  // namespace
}  // namespace prorata::simulation
