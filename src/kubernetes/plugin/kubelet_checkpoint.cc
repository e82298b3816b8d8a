#include "kubernetes/plugin/kubelet_checkpoint.h"

#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace prorata::kubernetes {

using nlohmann::json;

Result<std::vector<DeviceGrant>> ParseKubeletCheckpoint(std::string_view text) {
  std::vector<DeviceGrant> grants;
  try {
    const json entries = json::parse(text).at("Data").at("PodDeviceEntries");
    if (entries.is_null()) return grants;  // nothing was given yet
    for (const json& entry : entries) {
      DeviceGrant grant{
          entry.at("PodUID"), entry.at("ContainerName"), entry.at("ResourceName"), {}};
      for (const auto& [numa_node, ids] : entry.at("DeviceIDs").items()) {
        for (const json& id : ids) grant.ids.push_back(id);
      }
      grants.push_back(std::move(grant));
    }
  } catch (const json::exception& error) {
    return Fail("checkpoint",
                std::string("the kubelet's checkpoint of devices has a layout that this version of "
                            "prorata-kubernetes does not know: ") +
                    error.what());
  }
  return grants;
}

Result<std::vector<DeviceGrant>> ReadKubeletCheckpoint(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) {
    return FailErrno("checkpoint", "cannot read the kubelet's checkpoint '" + path + "'", errno);
  }
  return ParseKubeletCheckpoint(text.str());
}

}  // namespace prorata::kubernetes
