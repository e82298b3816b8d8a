// The trace of a whole simulated run, by what the simulated device and the agent say of the same
// run.

#include "sim/node/chrome_trace.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "sim/node/report.h"

namespace prorata::simulation {
namespace {

// Of one run: seconds by share and slice, and what else is known of it.
struct Traced {
  std::map<std::string, std::map<std::string, double>> seconds;
  std::map<std::string, int64_t> last_end_us;  // no two slices of a share at once
  std::map<std::string, double> slices_charged_s, charged_s, busy_s;
  std::string text;

  double Held(const std::string& share) {
    return seconds[share]["runs"] + seconds[share]["drains"] + seconds[share]["stalled"];
  }
};

void AddSlices(Traced& traced) {
  const auto trace = nlohmann::json::parse(traced.text);
  std::map<int, std::string> tracks;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("name") == "thread_name") tracks[event.at("tid")] = event.at("args").at("name");
  }
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    const std::string& track = tracks.at(event.at("tid").get<int>());
    const int64_t begin = event.at("ts"), took = event.at("dur");
    EXPECT_GT(took, 0);
    EXPECT_GE(begin, traced.last_end_us[track]) << track;
    traced.last_end_us[track] = begin + took;
    traced.seconds[track][event.at("name")] += static_cast<double>(took) / 1e6;
    traced.slices_charged_s[track] += event.at("args").value("charged_ms", 0.0) / 1e3;
  }
}

Traced ChromeTraceOf(const std::string& name) {
  const auto scenario = ReadScenario(std::string(SCENARIOS) + "/" + name + ".toml");
  EXPECT_TRUE(scenario.has_value());
  Traced traced;
  WorldOptions options;
  options.at_end = [&](World& world) {
    std::ostringstream out;
    WriteChromeTrace(world, out);
    traced.text = out.str();
    for (size_t i = 0; i < scenario->programs.size(); ++i) {
      const std::string& share = scenario->programs[i].share;
      traced.charged_s[share] += static_cast<double>(world.agent()->ChargedNs(share)) / 1e9;
      traced.busy_s[share] += static_cast<double>(world.ProgramBusyNs(i)) / 1e9;
    }
  };
  RunScenario(*scenario, options);
  AddSlices(traced);
  return traced;
}

// What the slices say was charged is all that was, but for the one that goes on at the end. And
// while somebody waits, as here, a share has the device from its grant until it has drained: it is
// charged for that, less what it shares with whoever is let on before, or drains late.
TEST(SimulatedTrace, BusySharesRanForWhatTheyWereCharged) {
  Traced traced = ChromeTraceOf("shares_532");
  ASSERT_EQ(traced.charged_s.size(), 3u);
  for (const auto& [share, charged_s] : traced.charged_s) {
    EXPECT_LE(traced.slices_charged_s[share], charged_s + 1e-6) << share;
    EXPECT_GT(traced.slices_charged_s[share], charged_s - 0.03) << share;
    EXPECT_GT(traced.Held(share), charged_s) << share;
    EXPECT_LT(traced.Held(share), 1.2 * charged_s) << share;
    EXPECT_GT(traced.Held(share), traced.busy_s.at(share)) << share;
    EXPECT_GT(traced.seconds[share]["waits: other shares"], 1) << share;
  }
}

TEST(SimulatedTrace, TheSameSeedGivesTheSameTrace) {
  EXPECT_EQ(ChromeTraceOf("two_busy").text, ChromeTraceOf("two_busy").text);
}

}  // namespace
}  // namespace prorata::simulation
