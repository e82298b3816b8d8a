#include "cli/commands.h"

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

}  // namespace

Result<api::ShareStatus> MakeShare(const ShareOptions& options, const AgentPlace& place,
                                   const std::optional<std::string>& token) {
  api::ShareSpec spec = SpecOf(options);
  spec.token = token;
  if (options.wait) return CreateShareInLine(spec, place, options.wait_ms);
  Result<api::ShareStatus> made = Fail("agent_gone", "");
  for (int i = 0; i < kAttemptsMax && !made && made.error().code == "agent_gone"; ++i) {
    auto connection = ConnectOrStart(place);
    if (!connection) return std::unexpected(connection.error());
    made = CreateShare(&*connection, spec);
  }
  return made;
}

int Refuse(const Error& error) {
  Complain(error.message);
  return kExitRefused;
}

namespace {

void Print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

// Shows a list that an agent has; without an agent it is empty, which is worth a word but no error.
template <typename Item, typename List, typename Table>
int Show(bool json, const AgentPlace& place, List list, Table table) {
  auto connection = ControlConnection::Connect(place.socket_path);
  std::vector<Item> items;
  if (connection) {
    auto found = list(&*connection);
    if (!found) return Refuse(found.error());
    items = std::move(*found);
  } else if (connection.error().code == "no_agent") {
    Complain("no agent runs at '" + place.socket_path +
             "'; `prorata run` starts one, or `prorata agent`");
  } else {
    return Refuse(connection.error());
  }
  if (!json) {
    Print(table(items));
    return kExitOk;
  }
  nlohmann::json array = nlohmann::json::array();
  for (const Item& item : items) array.push_back(api::ToJson(item));
  Print(array.dump(2) + "\n");
  return kExitOk;
}

std::vector<std::string> Environment() {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  return environment;
}

}  // namespace

void Complain(const std::string& message) {
  std::string line = message;
  std::replace(line.begin(), line.end(), '\n', ' ');
  std::fprintf(stderr, "prorata: %s\n", line.c_str());
}

int Run(const RunOptions& options, const AgentPlace& place) {
  const char* path = std::getenv("PATH");
  auto program = FindProgram(options.command.front(), path != nullptr ? path : "/usr/bin:/bin");
  if (!program) {
    Complain(program.error().message);
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
  Complain(error.message);
  return ExitStatusOf(error);
}

int ShowShares(bool json, const AgentPlace& place) {
  std::vector<api::WaitingShare> line;
  const auto list = [&line](ControlConnection* connection) {
    return ListShares(connection, &line);
  };
  return Show<api::ShareStatus>(json, place, list, [&line](const auto& shares) {
    return ShareTable(shares) + (line.empty() ? "" : "\n" + WaitingTable(line));
  });
}

int ShowWaiting(bool json, const AgentPlace& place) {
  const auto list = [](ControlConnection* connection) -> Result<std::vector<api::WaitingShare>> {
    std::vector<api::WaitingShare> line;
    auto shares = ListShares(connection, &line);
    if (!shares) return std::unexpected(shares.error());
    return line;
  };
  return Show<api::WaitingShare>(json, place, list, WaitingTable);
}

int Update(const UpdateOptions& options, const AgentPlace& place) {
  auto connection = ControlConnection::Connect(place.socket_path);
  if (!connection && connection.error().code == "no_agent") {
    return Refuse({"no_agent",
                   "no agent runs at '" + place.socket_path + "', so there is no share to update"});
  }
  if (!connection) return Refuse(connection.error());
  auto share = UpdateShare(&*connection, options.name, options.change);
  if (!share) return Refuse(share.error());
  for (const api::ShareDevice& device : share->devices) {
    if (device.used_bytes <= device.memory_limit_bytes) continue;
    Complain("share '" + share->name + "' holds " + FormatBytes(device.used_bytes) + " of GPU " +
             std::to_string(device.index) + ", above its new limit of " +
             FormatBytes(device.memory_limit_bytes) +
             ": it gets nothing more until it has freed enough");
  }
  return kExitOk;
}

int ShowDevices(bool json, const AgentPlace& place) {
  return Show<api::DeviceStatus>(json, place, ListDevices, DeviceTable);
}

}  // namespace prorata::cli
