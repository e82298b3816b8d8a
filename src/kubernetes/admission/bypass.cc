#include "kubernetes/admission/bypass.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "kubernetes/admission/older_systems.h"
#include "kubernetes/admission/pod_asks.h"
#include "kubernetes/admission/pod_fields.h"

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

constexpr std::string_view kProtected[] = {"/dev", "/run/prorata", "/var/run/prorata"};
// What in /dev leads to no GPU; /dev/char and /dev/dri have links and nodes that do.
constexpr std::string_view kOtherDevices[] = {"/dev/shm/",  "/dev/hugepages/", "/dev/infiniband/",
                                              "/dev/fuse/", "/dev/kvm/",       "/dev/log/",
                                              "/dev/net/"};
constexpr std::string_view kMigPrefix = "nvidia.com/mig-";
constexpr char kVisibleDevices[] = "NVIDIA_VISIBLE_DEVICES";

// As the node's kernel reads it, with a slash at the end: "/dev//./x" is "/dev/x/".
std::string WithSlash(std::string_view path) {
  std::string normal = "/";
  for (const auto& part : std::filesystem::path(path).relative_path().lexically_normal()) {
    if (!part.empty() && part != ".") normal += part.string() + "/";
  }
  return normal;
}

// Whether the folder has `path`, or is in it.
bool Reaches(const std::string& folder, std::string_view path) {
  const std::string one = WithSlash(folder);
  const std::string other = WithSlash(path);
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
    const std::string value = variable.contains("valueFrom")
                                  ? "what is elsewhere"
                                  : variable.value("value", std::string());
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
  const std::string normal = WithSlash(path);
  for (const std::string_view other : kOtherDevices) {
    if (normal.starts_with(other)) return {};
  }
  for (const std::string_view kept : kProtected) {
    if (!Reaches(path, kept)) continue;
    return Fail("bypass", "volume '" + NameOf(volume) + "' is '" + path +
                              "' of the node, through which the pod would get around its share "
                              "of a GPU; remove it");
  }
  return {};
}

bool IsNvidias(const std::string& resource) {
  return resource == kHamiGpus || resource == kNvidiaShared || resource.starts_with(kMigPrefix);
}

}  // namespace

Status CheckOneGpu(const json& pod, const std::function<bool(const json& container)>& has_share) {
  for (const json* container : ContainersOf(pod)) {
    if (!has_share(*container)) continue;
    const json limits = container->value(json::json_pointer("/resources/limits"), json::object());
    for (const auto& [resource, amount] : limits.items()) {
      if (!IsNvidias(resource) || amount == json("0") || amount == json(0)) continue;
      return Fail("bypass", "container '" + NameOf(*container) + "' has a share and asks for " +
                                resource + ", a GPU of NVIDIA's device plugin with nothing that " +
                                "holds it to the share; remove one of the two");
    }
  }
  return {};
}

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
