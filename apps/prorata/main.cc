// prorata: the command line, and the agent.

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "agent/agent.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/version.h"

namespace {

using prorata::cli::AgentPlace;
using prorata::cli::Options;
using prorata::cli::Verb;

int RunAgentCommand(const Options& options) {
  prorata::agent::AgentOptions agent;
  agent.exit_when_idle = options.agent.exit_when_idle;
  agent.ready_fd = options.agent.ready_fd;
  agent.log_level = options.agent.log_level;
  agent.dilation = options.agent.dilation;
  agent.slow_disk_ms = options.agent.slow_disk_ms;
  agent.overcommit = options.agent.overcommit;
  agent.elastic_ceilings = options.agent.elastic_ceilings;
  agent.resource_configs = options.agent.resource_configs;
  agent.metrics = options.agent.metrics;
  agent.program_version = prorata::cli::kVersion;
  return prorata::agent::RunAgent(agent);
}

AgentPlace FindPlace() {
  AgentPlace place;
  place.runtime_dir = prorata::agent::RuntimeDir();
  place.socket_path = place.runtime_dir + "/control";
  std::error_code ignored;
  place.executable = std::filesystem::read_symlink("/proc/self/exe", ignored).string();
  return place;
}

}  // namespace

int main(int argc, char** argv) {
  const auto outcome = prorata::cli::ParseCommandLine({argv + 1, argv + argc});
  std::fputs(outcome.out.c_str(), stdout);
  std::fputs(outcome.err.c_str(), stderr);
  if (!outcome.options) return outcome.status;
  const Options& options = *outcome.options;
  switch (options.verb) {
    case Verb::kRun:
      return prorata::cli::Run(options.run, FindPlace());
    case Verb::kPs:
      return prorata::cli::ShowShares(options.json, FindPlace());
    case Verb::kGpus:
      return prorata::cli::ShowDevices(options.json, FindPlace());
    case Verb::kUpdate:
      return prorata::cli::Update(options.update, FindPlace());
    case Verb::kEvents:
      return prorata::cli::ShowEvents(options.events, options.json, FindPlace());
    case Verb::kTop:
      return prorata::cli::ShowTop(options.top, options.json, FindPlace());
    case Verb::kAgent:
      return RunAgentCommand(options);
  }
  return prorata::cli::kExitUsage;
}
