#pragma once

// The agent: the daemon of a node. It owns shares, the ledger of their memory and the leases of
// their time. `RunAgent` is what programs call; `Agent` is the same in parts, for tests.
//
// Threads: one runs everything (a Boost.Asio loop), the heartbeat included, so that members know by
// it that leases are granted. What may block runs on workers (worker.h): one for NVML, one for the
// disk. All else below src/agent belongs to the loop's thread.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/config/elastic_ceiling.h"
#include "agent/config/metrics_address.h"
#include "agent/config/overcommit.h"
#include "agent/config/resource_config.h"
#include "agent/containers/container_options.h"
#include "agent/runtime/runtime_dir.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace prorata::driver {
class Nvml;
}

namespace prorata::agent {

struct AgentOptions {
  // Where the agent lives; absent: RuntimeDir().
  std::optional<std::string> runtime_dir;
  // Ends a second after the last share, but not before a first share or ten seconds.
  bool exit_when_idle = false;
  // A descriptor to say "ready\n" on, or one line with what is wrong; closed after that. -1: none.
  int ready_fd = -1;
  // trace, debug, info, warn, error, off: what goes to stderr.
  std::string log_level = "info";
  // What hello answers.
  std::string program_version = "0";
  // How much more than there is may be promised of a device; a later one wins over an earlier, and
  // all of them over what shares that are taken over were made under. Absent: nothing.
  std::vector<agent::Overcommit> overcommit = {};
  // The most of a device's time that shares use together above their requests; a later one wins
  // over an earlier, and all of them over the agent before.
  std::vector<agent::ElasticCeiling> elastic_ceilings = {};
  // Gemini's configuration: shares that are there because a file asks for them, one for each GPU.
  std::vector<agent::ResourceConfigFile> resource_configs = {};
  // Where metrics are offered over HTTP; absent: nowhere.
  std::optional<agent::MetricsAddress> metrics = {};
  // How shares become devices of containers; absent: they do not.
  std::optional<ContainerOptions> containers = {};
  // For tests on a simulated GPU with the same `dilation`: so many real nanoseconds are one of
  // every quantum, bound, heartbeat and look of this agent and of its members. What waits for the
  // operating system or for people (saving, joining, memory of the dead, idleness) stays real.
  uint32_t dilation = 1;
  // For tests: so much longer, in milliseconds, the disk takes for each writing of the state.
  uint32_t slow_disk_ms = 0;
};

// Runs an agent until SIGTERM or SIGINT, a shutdown request, or idleness. Shares and their files
// stay for the next agent, unless there is no share left. Returns the exit status of a program;
// what went wrong was logged and said on ready_fd.
int RunAgent(const AgentOptions& options);

class Agent {
 public:
  // Takes the folder (one agent each), unless `lock` says that it has been taken, and the devices
  // (one agent on a machine), adopts the shares it finds there, and listens. Errors: "runtime_dir"
  // (cannot be made, or is not ours), "agent_running" (another agent holds it), "device_taken"
  // (another agent shares out a device of it), "state" (its state cannot be read), "listen",
  // "metrics_listen", "resource_config", "read".
  static Result<std::unique_ptr<Agent>> Start(const AgentOptions& options, driver::Nvml& nvml,
                                              UniqueFd lock = {});
  ~Agent();

  // Until Stop, a shutdown request, or idleness.
  void Run();
  // Ends Run soon. From any thread.
  void Stop();
  // SIGTERM and SIGINT do so from now on.
  void StopOnSignals();

 private:
  struct Parts;
  explicit Agent(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace prorata::agent
