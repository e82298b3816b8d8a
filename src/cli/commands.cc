#include "cli/commands.h"
#include "cli/agent_start.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "api/agent_api.h"
#include "base/bytes.h"
#include "cli/command.h"
#include "cli/start_wait.h"
#include "cli/text/tables.h"

namespace prorata::cli {
namespace {

// How often a share is asked for again when the agent ended while we asked: one that ends when idle
// may be just about to when we come.
constexpr int kAttemptsMax = 20;

api::ShareSpec SpecOf(const ShareOptions& options) {
  api::ShareSpec spec;
  if (!options.name.empty()) spec.name = options.name;
  spec.gpus = options.gpus;
  spec.gpu_count = options.gpu_count;
  spec.memory = options.memory;
  spec.memory_request = options.memory_request;
  spec.compute_request = options.compute_request;
  spec.compute_limit = options.compute_limit;
  spec.weight = options.weight;
  spec.priority = options.priority;
  spec.yield_within_ns = options.yield_within_ns;
  spec.on = options.on;
  spec.on_full = options.on_full;
  spec.gang = options.gang;
  spec.guaranteed = options.guaranteed;
  spec.share_memory_with = options.share_memory_with;
  spec.allow_users = options.allow_users;
  spec.any_container = options.any_container;
  spec.exclusive = options.exclusive;
  return spec;
}

// Names all GPUs that the agent has, in their order: what --gpus all asks for.
Status NameAllGpus(ControlConnection* connection, api::ShareSpec* spec) {
  const auto devices = ListDevices(connection);
  if (!devices) return std::unexpected(devices.error());
  if (devices->empty()) {
    return Fail("unknown_gpu", "--gpus all: the agent has no GPU that it knows of");
  }
  spec->gpus.clear();
  for (const auto& device : *devices) spec->gpus.push_back(std::to_string(device.index));
  return {};
}

}  // namespace

Result<api::ShareStatus> MakeShare(const ShareOptions& options, const AgentPlace& place,
                                   const std::optional<std::string>& token) {
  api::ShareSpec spec = SpecOf(options);
  spec.token = token;
  if (options.wait && !options.all_gpus) return CreateShareInLine(spec, place, options.wait_ms);
  Result<api::ShareStatus> made = Fail("agent_gone", "");
  for (int i = 0; i < kAttemptsMax && !made && made.error().code == "agent_gone"; ++i) {
    auto connection = ConnectOrStart(place);
    if (!connection) return std::unexpected(connection.error());
    const Status named = options.all_gpus ? NameAllGpus(&*connection, &spec) : Status{};
    if (!named) {
      made = std::unexpected(named.error());
    } else if (options.wait) {
      return CreateShareInLine(spec, place, options.wait_ms);
    } else {
      made = CreateShare(&*connection, spec);
    }
  }
  return made;
}

namespace {

// The connection; nothing where no agent runs, which is worth a word but no error: it has no share.
Result<std::optional<ControlConnection>> ConnectToShow(const AgentPlace& place) {
  auto connection = ConnectTo(place);
  if (connection) return std::optional<ControlConnection>(std::move(*connection));
  if (connection.error().code != "no_agent") return std::unexpected(connection.error());
  PrintError(NoAgentText(place, "; `prorata run` starts one, or `prorata agent`"));
  return std::nullopt;
}

template <typename Item>
std::string JsonList(const std::vector<Item>& items) {
  nlohmann::json array = nlohmann::json::array();
  for (const Item& item : items) array.push_back(api::ToJson(item));
  return array.dump(2) + "\n";
}

// Leaves those with one of the names; each must be there. No names: all stay.
Status KeepNamed(const std::vector<std::string>& names, std::vector<api::ShareStatus>* shares,
                 std::vector<api::WaitingShare>* line) {
  if (names.empty()) return {};
  for (const std::string& name : names) {
    const auto named = [&name](const auto& one) { return one.name == name; };
    if (std::ranges::any_of(*shares, named) || std::ranges::any_of(*line, named)) continue;
    return Fail("no_share",
                "there is no share named '" + name + "'; `prorata ps` without a name lists them");
  }
  const auto other = [&names](const auto& one) {
    return std::ranges::find(names, one.name) == names.end();
  };
  std::erase_if(*shares, other);
  std::erase_if(*line, other);
  return {};
}

template <typename Item>
std::string NamesOf(const std::vector<Item>& items) {
  std::string names;
  for (const Item& item : items) names += item.name.empty() ? "" : item.name + "\n";
  return names;
}

std::vector<std::string> Environment() {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  return environment;
}

}  // namespace

int Run(const RunOptions& options, const AgentPlace& place) {
  const char* path = std::getenv("PATH");
  auto program = FindProgram(options.command.front(), path != nullptr ? path : "/usr/bin:/bin");
  if (!program) {
    PrintError(program.error().message);
    return ExitStatusOf(program.error());
  }
  auto library_dir = FindLibraryDir(place.executable);
  if (!library_dir) return Refuse(library_dir.error());
  // All that can fail by itself comes before the share: a refusal changes nothing.
  if (auto ok = ShareEnvironment({}, "", *library_dir); !ok) return Refuse(ok.error());
  auto share = MakeShare(options, place, std::nullopt);
  if (!share) return Refuse(share.error());
  const auto environment = ShareEnvironment(Environment(), share->directory, *library_dir);
  const Error error = BecomeProgram(*program, options.command, *environment);
  PrintError(error.message);
  return ExitStatusOf(error);
}

int ShowShares(const PsOptions& options, bool json, const AgentPlace& place) {
  auto connection = ConnectToShow(place);
  if (!connection) return Refuse(connection.error());
  std::vector<api::ShareStatus> shares;
  std::vector<api::WaitingShare> line;
  if (*connection) {
    auto found = ListShares(&**connection, &line);
    if (!found) return Refuse(found.error());
    shares = std::move(*found);
  }
  if (options.waiting) shares.clear();
  if (auto ok = KeepNamed(options.names, &shares, &line); !ok) return Refuse(ok.error());
  if (options.quiet) return Print(options.waiting ? NamesOf(line) : NamesOf(shares));
  if (json) return Print(options.waiting ? JsonList(line) : JsonList(shares));
  if (options.waiting) return Print(WaitingTable(line));
  const bool shows_line = !line.empty();
  if (shares.empty() && !options.names.empty()) return Print(WaitingTable(line));
  return Print(ShareTable(shares) + (shows_line ? "\n" + WaitingTable(line) : ""));
}

int Update(const UpdateOptions& options, const AgentPlace& place) {
  auto connection = ConnectTo(place);
  if (!connection && connection.error().code == "no_agent") {
    return Refuse({"no_agent", NoAgentText(place, ", so there is no share to update")});
  }
  if (!connection) return Refuse(connection.error());
  auto share = UpdateShare(&*connection, options.name, options.change);
  if (!share) return Refuse(share.error());
  for (const api::ShareDevice& device : share->devices) {
    if (device.used_bytes <= device.memory_limit_bytes) continue;
    PrintError("share '" + share->name + "' holds " + FormatBytes(device.used_bytes) + " of GPU " +
               std::to_string(device.index) + ", above its new limit of " +
               FormatBytes(device.memory_limit_bytes) +
               ": it gets nothing more until it has freed enough");
  }
  return kExitOk;
}

int ShowDevices(bool json, const AgentPlace& place) {
  auto connection = ConnectToShow(place);
  if (!connection) return Refuse(connection.error());
  std::vector<api::DeviceStatus> devices;
  if (*connection) {
    auto found = ListDevices(&**connection);
    if (!found) return Refuse(found.error());
    devices = std::move(*found);
  }
  return Print(json ? JsonList(devices) : DeviceTable(devices));
}

}  // namespace prorata::cli
