#include "agent/containers/cdi.h"

#include <nlohmann/json.hpp>

namespace prorata::agent {
namespace {

using nlohmann::json;

bool IsLetterOrDigit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

}  // namespace

Status ValidateCdiName(std::string_view name) {
  bool allowed = !name.empty() && IsLetterOrDigit(name.front()) && IsLetterOrDigit(name.back());
  for (const char c : name) {
    allowed &= IsLetterOrDigit(c) || c == '_' || c == '-' || c == '.' || c == ':';
  }
  if (allowed) return {};
  return Fail("bad_name", "'" + std::string(name) +
                              "' cannot be the name of a share for containers: a name in the "
                              "Container Device Interface has letters, digits, '_', '-' and '.', "
                              "and begins and ends with a letter or a digit");
}

std::string CdiFileName(std::string_view share) {
  return "prorata.dev-share-" + std::string(share) + ".json";
}

json CdiSpecification(std::string_view share, const CdiEdits& edits) {
  json container = json::object();
  if (!edits.environment.empty()) container["env"] = edits.environment;
  for (const std::string& path : edits.device_nodes) {
    container["deviceNodes"].push_back({{"path", path}});
  }
  for (const CdiMount& mount : edits.mounts) {
    container["mounts"].push_back(
        {{"hostPath", mount.host_path},
         {"containerPath", mount.container_path},
         {"options", {mount.writable ? "rw" : "ro", "nosuid", "nodev", "bind"}}});
  }
  for (const CdiHook& hook : edits.hooks) {
    container["hooks"].push_back(
        {{"hookName", hook.name}, {"path", hook.path}, {"args", hook.arguments}});
  }
  return {{"cdiVersion", "0.5.0"},
          {"kind", kCdiKind},
          {"devices", json::array({{{"name", share}, {"containerEdits", std::move(container)}}})}};
}

}  // namespace prorata::agent
