#include "kubernetes/admission/pod_asks.h"

#include "kubernetes/admission/older_systems.h"
#include "kubernetes/admission/pod_fields.h"

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

constexpr size_t kMaxEntryLength = 63;

struct System {
  std::string_view name;
  Status (*read)(const json& pod, PodAsks* asks);
};
// The last one only where no other has anything: annotations are for what runs, too.
constexpr System kReaders[] = {{"kubeshare", ReadKubeShare},
                               {"gaiagpu", ReadGaiaGpu},
                               {"hami", ReadHami},
                               {"resources", ReadOwnResources}};

Result<PodAsks> ReadAll(const json& pod, const Systems& systems) {
  PodAsks found;
  for (const System& system : kReaders) {
    if (!systems.contains(system.name)) continue;
    PodAsks asks;
    if (auto ok = system.read(pod, &asks); !ok) return std::unexpected(ok.error());
    if (asks.asks.empty()) continue;
    if (!found.asks.empty()) {
      return BadAsk("the pod asks for parts of GPUs in the names of both " + found.system +
                    " and " + asks.system + "; keep those of one of them");
    }
    found = std::move(asks);
  }
  return found;
}

}  // namespace

Result<PodAsks> ReadAsks(const json& pod, const Systems& systems) {
  try {
    return ReadAll(pod, systems);
  } catch (const json::exception& error) {
    return BadAsk(std::string("the pod is not as the API has it: ") + error.what());
  }
}

bool NamesGpuResources(const json& container) {
  for (const char* name : {kVcudaCore, kVcudaMemory, kHamiMemory, kHamiMemoryPart, kHamiCores,
                           kOwnMemory, kOwnCompute}) {
    if (ResourceOf(container, name)) return true;
  }
  return false;
}

std::vector<const json*> ContainersOf(const json& pod) {
  std::vector<const json*> containers;
  const auto spec = pod.find("spec");
  if (spec == pod.end()) return containers;
  for (const char* list : {"initContainers", "containers", "ephemeralContainers"}) {
    const auto found = spec->find(list);
    if (found == spec->end() || !found->is_array()) continue;
    for (const json& container : *found) containers.push_back(&container);
  }
  return containers;
}

std::string EntryOfContainer(const std::string& container) {
  std::string entry = std::string(kEntryOfPod) + "-" + container;
  if (entry.size() > kMaxEntryLength) entry.resize(kMaxEntryLength);
  while (entry.ends_with('-')) entry.pop_back();
  return entry;
}

}  // namespace prorata::kubernetes
