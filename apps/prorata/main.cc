// prorata: the command line, and the agent.

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "agent/containers/cache_hook.h"
#include "agent/server/agent.h"
#include "base/standard_descriptors.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/container_commands.h"
#include "cli/options/options.h"
#include "cli/text/version.h"
#include "sim/cluster/simulate.h"

namespace {

using prorata::cli::AgentPlace;
using prorata::cli::Options;
using prorata::cli::Verb;

constexpr size_t kMaxHookStateBytes = 1 << 20;

// Where engines look for devices by themselves: all do in root's folder. Nothing: the client
// library is not there, so a container could not have it.
std::optional<prorata::agent::ContainerOptions> ContainersOf(const Options& options,
                                                             const AgentPlace& place) {
  auto library = prorata::cli::FindLibraryDir(place.executable);
  if (!library) return std::nullopt;
  const std::string folder = !options.agent.cdi_dir.empty() ? options.agent.cdi_dir
                             : ::geteuid() == 0             ? "/var/run/cdi"
                                                            : place.runtime_dir + "/cdi";
  return prorata::agent::ContainerOptions{folder, *library, place.executable};
}

int RunAgentCommand(const Options& options, const AgentPlace& place) {
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
  agent.containers = ContainersOf(options, place);
  agent.program_version = prorata::cli::kVersion;
  return prorata::agent::RunAgent(agent);
}

int RunSimulateCommand(const Options& options) {
  const prorata::cli::SimulateOptions& typed = options.simulate;
  return prorata::sim::cluster::Simulate({.nodes = typed.nodes,
                                          .pods = typed.pods,
                                          .policies = typed.policies,
                                          .arrivals = typed.arrivals,
                                          .ties = typed.ties,
                                          .seeds = typed.seeds,
                                          .load_percent = typed.load_percent,
                                          .gpus = typed.gpus,
                                          .look_ahead = typed.look_ahead,
                                          .move_every = typed.move_every,
                                          .cpu_nodes = typed.cpu_nodes,
                                          .plan = typed.plan,
                                          .json = options.json,
                                          .progress = typed.progress,
                                          .csv = typed.csv,
                                          .packing = typed.packing,
                                          .plot = typed.plot});
}

// A container must not fail for what it can do without: what went wrong is said, and no more.
int RunContainerHook(const Options& options) {
  std::string state;
  char buffer[4096];
  while (const size_t count = std::fread(buffer, 1, sizeof buffer, stdin)) {
    if (state.size() < kMaxHookStateBytes) state.append(buffer, count);
  }
  const auto ok = prorata::agent::UpdateLoaderCache(state, options.named.names);
  if (!ok) prorata::cli::PrintError("container-hook: " + ok.error().message);
  return prorata::cli::kExitOk;
}

AgentPlace FindPlace() {
  AgentPlace place;
  place.runtime_dir = prorata::agent::RuntimeDir();
  place.socket_path = place.runtime_dir + "/control";
  std::error_code ignored;
  place.executable = std::filesystem::read_symlink("/proc/self/exe", ignored).string();
  return place;
}

int RunCommand(const Options& options) {
  switch (options.verb) {
    case Verb::kRun:
      return prorata::cli::Run(options.run, FindPlace());
    case Verb::kPs:
      return prorata::cli::ShowShares(options.ps, options.json, FindPlace());
    case Verb::kGpus:
      return prorata::cli::ShowDevices(options.json, FindPlace());
    case Verb::kUpdate:
      return prorata::cli::Update(options.update, FindPlace());
    case Verb::kEvents:
      return prorata::cli::ShowEvents(options.events, options.json, FindPlace());
    case Verb::kTop:
      return prorata::cli::ShowTop(options.top, options.json, FindPlace());
    case Verb::kDebugTrace:
      return prorata::cli::DebugTrace(options.debug_trace, FindPlace());
    case Verb::kSimulate:
      return RunSimulateCommand(options);
    case Verb::kCreate:
      return prorata::cli::Create(options.create, FindPlace());
    case Verb::kInspect:
      return prorata::cli::Inspect(options.named, options.json, FindPlace());
    case Verb::kRemove:
      return prorata::cli::Remove(options.named, FindPlace());
    case Verb::kCdi:
      return prorata::cli::Cdi(options.named, FindPlace());
    case Verb::kContainerHook:
      return RunContainerHook(options);
    case Verb::kAgent:
      return RunAgentCommand(options, FindPlace());
  }
  return prorata::cli::kExitUsage;
}

}  // namespace

int main(int argc, char** argv) {
  prorata::ReserveStandardDescriptors();
  const auto outcome = prorata::cli::ParseCommandLine({argv + 1, argv + argc});
  std::fputs(outcome.err.c_str(), stderr);
  if (!outcome.options) {
    return outcome.out.empty() ? outcome.status : prorata::cli::Print(outcome.out);
  }
  return prorata::cli::CloseOutput(RunCommand(*outcome.options));
}
