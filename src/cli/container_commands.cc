#include "cli/container_commands.h"
#include "cli/agent_start.h"

#include <sys/random.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "api/agent_api.h"
#include "cli/commands.h"
#include "cli/end_share.h"

namespace prorata::cli {
namespace {

Result<ControlConnection> ConnectFor(const std::string& what, const AgentPlace& place) {
  auto connection = ConnectTo(place);
  if (connection || connection.error().code != "no_agent") return connection;
  return Fail("no_agent", NoAgentText(place, ", so there is no share to " + what));
}

Result<Inspected> Ask(const std::string& what, const std::string& name, const AgentPlace& place) {
  auto connection = ConnectFor(what, place);
  if (!connection) return std::unexpected(connection.error());
  return InspectShare(&*connection, name);
}

// The word for this one creation: should the agent end before it answers, the share that it made is
// known by it.
Result<std::string> NewToken() {
  unsigned char bytes[16];
  if (::getrandom(bytes, sizeof bytes, 0) != sizeof bytes) {
    return FailErrno("token", "cannot get random bytes", errno);
  }
  std::string token;
  for (const unsigned char byte : bytes) {
    char text[3];
    std::snprintf(text, sizeof text, "%02x", byte);
    token += text;
  }
  return token;
}

Result<nlohmann::json> SpecificationOf(const std::string& name, const AgentPlace& place) {
  auto found = Ask("show", name, place);
  if (!found) return std::unexpected(found.error());
  if (found->cdi.is_object()) return found->cdi;
  return Fail("cdi", "share '" + name +
                         "' is no device for containers: only shares of `prorata create` are, and "
                         "only while they are not ending");
}

}  // namespace

int Create(const ShareOptions& options, const AgentPlace& place) {
  const auto token = NewToken();
  if (!token) return Refuse(token.error());
  auto share = MakeShare(options, place, *token);
  if (!share) return Refuse(share.error());
  const Status written = WriteOut("prorata.dev/share=" + share->name + "\n");
  if (written) return kExitOk;
  return Refuse({written.error().code,
                 "share '" + share->name + "' was made, and ends with `prorata rm " + share->name +
                     "`, but its name was not printed: " + written.error().message});
}

int Inspect(const NamedOptions& options, bool as_json, const AgentPlace& place) {
  auto found = Ask("show", options.names.front(), place);
  if (!found) return Refuse(found.error());
  if (!as_json) return Print(InspectText(found->share, found->cdi.is_object()));
  nlohmann::json object = api::ToJson(found->share);
  if (found->cdi.is_object()) object["cdi"] = found->cdi;
  return Print(object.dump(2) + "\n");
}

int Remove(const NamedOptions& options, const AgentPlace& place) {
  auto connection = ConnectFor("end", place);
  if (!connection) return Refuse(connection.error());
  int status = kExitOk;
  for (const std::string& name : options.names) {
    const Status ended = EndShare(&*connection, name, options.force);
    if (!ended) status = Refuse(ended.error());
  }
  return status;
}

int Cdi(const NamedOptions& options, const AgentPlace& place) {
  const auto specification = SpecificationOf(options.names.front(), place);
  if (!specification) return Refuse(specification.error());
  if (!options.ctr && !options.volumes) return Print(specification->dump(2) + "\n");
  const auto arguments =
      MountArguments(*specification, options.ctr ? MountStyle::kCtr : MountStyle::kVolumes);
  if (!arguments) return Refuse(arguments.error());
  return Print(*arguments);
}

Result<std::string> MountArguments(const nlohmann::json& specification, MountStyle style) {
  const bool ctr = style == MountStyle::kCtr;
  std::string arguments;
  const auto add = [&](const std::string& option, const std::string& value) {
    arguments += option + (ctr ? "\n" : "=") + value + "\n";
  };
  try {
    const nlohmann::json& edits = specification.at("devices").at(0).at("containerEdits");
    for (const nlohmann::json& variable : edits.value("env", nlohmann::json::array())) {
      add("--env", variable.get<std::string>());
    }
    for (const nlohmann::json& node : edits.value("deviceNodes", nlohmann::json::array())) {
      add("--device", node.at("path").get<std::string>());
    }
    for (const nlohmann::json& mount : edits.value("mounts", nlohmann::json::array())) {
      const auto from = mount.at("hostPath").get<std::string>();
      const auto to = mount.at("containerPath").get<std::string>();
      if ((from + to).find_first_of(",: \t\n'\"*?[$`\\") != std::string::npos) {
        return Fail("cdi", "'" + from +
                               "' has a character that cannot stand in an engine's argument; move "
                               "prorata or its folder (PRORATA_DIR) to a path without");
      }
      std::string flags;
      for (const nlohmann::json& option : mount.at("options")) {
        // Engines' volumes are bound without being told, and have these two by themselves.
        const bool own = option == "bind" || option == "nosuid" || option == "nodev";
        if (ctr ? option != "bind" : !own) flags += ":" + option.get<std::string>();
      }
      if (ctr) {
        add("--mount", "type=bind,src=" + from + ",dst=" + to + ",options=rbind" + flags);
      } else {
        add("--volume", from + ":" + to + flags);
      }
    }
  } catch (const nlohmann::json::exception& error) {
    return Fail("agent_reply", std::string("the share's specification cannot be read (") +
                                   error.what() + "); are agent and prorata of the same version?");
  }
  return arguments;
}

}  // namespace prorata::cli
