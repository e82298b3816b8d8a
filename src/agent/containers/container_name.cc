#include "agent/containers/container_name.h"

#include <nlohmann/json.hpp>
#include <vector>

namespace prorata::agent {
namespace {

using nlohmann::json;

// Names are shown on terminals; engines allow no others.
std::string PrintableName(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = '?';
  }
  return text.substr(0, 253);
}

std::string TextOf(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// Of /proc/PID/cmdline: each ends with a zero.
std::vector<std::string_view> ArgumentsOf(std::string_view command_line) {
  std::vector<std::string_view> arguments;
  while (!command_line.empty()) {
    const size_t end = std::min(command_line.find('\0'), command_line.size());
    arguments.push_back(command_line.substr(0, end));
    command_line.remove_prefix(std::min(end + 1, command_line.size()));
  }
  return arguments;
}

}  // namespace

std::string NameOfMonitor(std::string_view command_line, std::string_view id) {
  const auto arguments = ArgumentsOf(command_line);
  if (arguments.empty() || !arguments[0].ends_with("conmon")) return "";
  std::string_view name;
  bool same = false;
  for (size_t i = 1; i + 1 < arguments.size(); ++i) {
    if (arguments[i] == "-c" || arguments[i] == "--cid") same |= arguments[i + 1] == id;
    if (arguments[i] == "-n" || arguments[i] == "--name") name = arguments[i + 1];
  }
  return same ? PrintableName(std::string(name)) : "";
}

std::optional<ShimTask> TaskOfShim(std::string_view command_line) {
  const auto arguments = ArgumentsOf(command_line);
  if (arguments.empty()) return std::nullopt;
  const std::string_view program = arguments[0].substr(arguments[0].rfind('/') + 1);
  if (!program.starts_with("containerd-shim")) return std::nullopt;
  ShimTask task;
  for (size_t i = 1; i + 1 < arguments.size(); ++i) {
    if (arguments[i] == "-namespace") task.name_space = arguments[i + 1];
    if (arguments[i] == "-id") task.id = arguments[i + 1];
  }
  if (task.name_space.empty() || task.id.empty()) return std::nullopt;
  return task;
}

std::string NameOfDockerConfig(std::string_view text) {
  const json config = json::parse(text, nullptr, false);
  if (!config.is_object()) return "";
  std::string name = TextOf(config, "Name");
  if (name.starts_with('/')) name.erase(0, 1);
  return PrintableName(std::move(name));
}

std::string NameOfOciConfig(std::string_view text) {
  const json config = json::parse(text, nullptr, false);
  if (!config.is_object() || !config.contains("annotations")) return "";
  const json& notes = config["annotations"];
  if (!notes.is_object()) return "";
  for (const auto& [space, pod, container] :
       {std::tuple("io.kubernetes.cri.sandbox-namespace", "io.kubernetes.cri.sandbox-name",
                   "io.kubernetes.cri.container-name"),
        std::tuple("io.kubernetes.pod.namespace", "io.kubernetes.pod.name",
                   "io.kubernetes.container.name")}) {
    if (TextOf(notes, container).empty()) continue;
    return PrintableName(TextOf(notes, space) + "/" + TextOf(notes, pod) + "/" +
                         TextOf(notes, container));
  }
  // nerdctl.
  return PrintableName(TextOf(notes, "nerdctl/name"));
}

}  // namespace prorata::agent
