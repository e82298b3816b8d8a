#include "kubernetes/admission/bypass.h"

#include <nlohmann/json.hpp>
#include <string>

#include "kubernetes/admission/pod_asks.h"
#include "kubernetes/admission/pod_fields.h"

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

constexpr std::string_view kProtected[] = {"/dev", "/run/prorata", "/var/run/prorata"};
constexpr char kVisibleDevices[] = "NVIDIA_VISIBLE_DEVICES";

std::string WithSlash(std::string path) {
  while (path.ends_with('/')) path.pop_back();
  return path + "/";
}

// Whether the folder has `path`, or is in it.
bool Reaches(const std::string& folder, std::string_view path) {
  const std::string one = WithSlash(folder);
  const std::string other = WithSlash(std::string(path));
  return one.starts_with(other) || other.starts_with(one);
}

Status CheckContainer(const json& container) {
  const std::string of = "container '" + NameOf(container) + "'";
  const json security = container.value("securityContext", json::object());
  if (security.value("privileged", json(false)) == json(true)) {
    return Fail("bypass", of + " is privileged and would see all GPUs of its node, with nothing "
                               "that holds it to its share; remove securityContext.privileged");
  }
  for (const json& variable : container.value("env", json::array())) {
    if (NameOf(variable) != kVisibleDevices) continue;
    const std::string value = variable.value("value", std::string());
    if (value.empty() || value == "void" || value == "none") continue;
    return Fail("bypass", of + " sets " + kVisibleDevices + " to '" + value +
                              "', by which NVIDIA's runtime would give it GPUs besides its share; "
                              "remove it");
  }
  return {};
}

Status CheckVolume(const json& volume) {
  const json host = volume.value("hostPath", json());
  if (!host.is_object()) return {};
  const std::string path = host.value("path", std::string());
  for (const std::string_view kept : kProtected) {
    // What lies in /dev and is no GPU's is harmless.
    const bool other_device = path.starts_with("/dev/") && !path.starts_with("/dev/nvidia");
    if (other_device || !Reaches(path, kept)) continue;
    return Fail("bypass", "volume '" + NameOf(volume) + "' is '" + path +
                              "' of the node, through which the pod would get around its share "
                              "of a GPU; remove it");
  }
  return {};
}

}  // namespace

Status CheckBypass(const json& pod) {
  for (const json* container : ContainersOf(pod)) {
    if (auto ok = CheckContainer(*container); !ok) return ok;
  }
  const json spec = pod.value("spec", json::object());
  for (const json& volume : spec.value("volumes", json::array())) {
    if (auto ok = CheckVolume(volume); !ok) return ok;
  }
  return {};
}

}  // namespace prorata::kubernetes
