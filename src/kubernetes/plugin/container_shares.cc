#include "kubernetes/plugin/container_shares.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "kubernetes/pods/annotations.h"
#include "kubernetes/resize/change.h"

namespace prorata::kubernetes {
namespace {

constexpr std::string_view kPodSharePrefix = "pod-unit-";
constexpr std::string_view kPodTokenPrefix = "kubernetes-pod-";
constexpr char kShareClass[] = "prorata.dev/share=";
constexpr uint32_t kPpmOfUnit = Fraction::kOne / kWholeGpuPercent;

std::optional<uint32_t> UnitNumber(std::string_view id) {
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), number);
  if (error != std::errc() || end != id.data() + id.size()) return std::nullopt;
  return number;
}

bool SameIds(std::span<const std::string> one, std::span<const std::string> other) {
  return std::set<std::string>(one.begin(), one.end()) ==
         std::set<std::string>(other.begin(), other.end());
}

const ContainerRequest* FindContainer(const std::vector<ContainerRequest>& requests,
                                      const std::string& name) {
  const auto found = std::ranges::find(requests, name, &ContainerRequest::name);
  return found == requests.end() ? nullptr : &*found;
}

// The container with these IDs. An init container and one that runs after it may have the same: it
// is taken for the latter, which has at least as much.
const DeviceGrant* FindGrant(const std::vector<DeviceGrant>& grants, const std::string& resource,
                             std::span<const std::string> ids,
                             const std::function<bool(const DeviceGrant&)>& is_init) {
  const DeviceGrant* found = nullptr;
  for (const DeviceGrant& grant : grants) {
    if (grant.resource != resource || !SameIds(grant.ids, ids)) continue;
    if (found == nullptr || is_init(*found)) found = &grant;
  }
  return found;
}

const DeviceGrant* MemoryOf(const std::vector<DeviceGrant>& grants, const std::string& pod_uid,
                            const std::string& container, const std::string& memory) {
  const auto found = std::ranges::find_if(grants, [&](const DeviceGrant& grant) {
    return grant.pod_uid == pod_uid && grant.container == container && grant.resource == memory;
  });
  return found == grants.end() ? nullptr : &*found;
}

Result<std::vector<std::string>> AllocatedGpus(const NodePod& pod,
                                               const ContainerRequest& request) {
  if (!pod.assigned) {
    return Fail("not_assigned", "pod " + pod.name + " has no annotation " +
                                    kAssignedGpusAnnotation +
                                    ": it was not bound by prorata's scheduler extender; delete "
                                    "it, and let the cluster's scheduler bind it "
                                    "(docs/guide/kubernetes-resources.md)");
  }
  const auto assigned = ParseAssignedGpus(*pod.assigned);
  if (!assigned) return std::unexpected(assigned.error());
  const auto gpus = assigned->find(request.name);
  if (gpus == assigned->end() || gpus->second.size() != request.gpu_count) {
    return Fail("bad_annotation", "the annotation " + std::string(kAssignedGpusAnnotation) +
                                      " of pod " + pod.name + " does not name " +
                                      std::to_string(request.gpu_count) + " GPU(s) of container '" +
                                      request.name + "'");
  }
  return gpus->second;
}

// The share of a container of the pod, by the memory that the kubelet gave it.
Result<api::ShareSpec> SpecOf(const NodePod& pod, const ContainerRequest& request,
                              const DeviceGrant& memory) {
  auto gpus = AllocatedGpus(pod, request);
  if (!gpus) return std::unexpected(gpus.error());
  auto name = ShareOfUnits(memory.ids);
  if (!name) return std::unexpected(name.error());
  api::ShareSpec spec;
  spec.name = std::move(*name);
  spec.token = std::string(kPodTokenPrefix) + memory.pod_uid + "/" + memory.container;
  spec.gpus = std::move(*gpus);
  spec.memory = api::MemorySize(request.memory_units * kMemoryUnitBytes);
  // It is the container's alone, on a GPU that the agent overcommits, too.
  spec.memory_request = spec.memory;
  spec.compute_request = Fraction{request.compute_percent * kPpmOfUnit};
  if (!pod.wishes) return std::unexpected(pod.wishes.error());
  const auto wish = pod.wishes->find(request.name);
  return wish == pod.wishes->end() ? spec : WishedShare(std::move(spec), wish->second);
}

// Else it is still an init container's, or one that is about to be removed.
bool HasSizeOf(const api::ShareSpec& spec, const api::ShareStatus& share) {
  return share.devices.size() == spec.gpus.size() &&
         std::ranges::all_of(share.devices, [&](const api::ShareDevice& on) {
           return on.memory_limit_bytes == spec.memory->bytes &&
                  on.compute_request == spec.compute_request &&
                  std::ranges::find(spec.gpus, on.uuid) != spec.gpus.end();
         });
}

}  // namespace

Result<std::string> ShareOfUnits(std::span<const std::string> ids) {
  std::optional<uint32_t> least;
  for (const std::string& id : ids) {
    const auto number = UnitNumber(id);
    if (!number) return Fail("bad_device", "the device ID '" + id + "' is no memory unit's");
    if (!least || *number < *least) least = number;
  }
  if (!least) return Fail("bad_device", "a container without memory units has no share");
  return std::string(kPodSharePrefix) + std::to_string(*least);
}

bool IsPodShare(std::string_view share_name) {
  if (!share_name.starts_with(kPodSharePrefix)) return false;
  return UnitNumber(share_name.substr(kPodSharePrefix.size())).has_value();
}

Result<std::string> ContainerShares::CdiDeviceOf(std::span<const std::string> ids) {
  const auto share = ShareOfUnits(ids);
  if (!share) return std::unexpected(share.error());
  return kShareClass + *share;
}

Result<std::string> ContainerShares::Start(const std::string& resource,
                                           std::span<const std::string> ids,
                                           Agent::Deadline deadline) {
  const auto grants = read_();
  if (!grants) return std::unexpected(grants.error());
  const auto is_init = [&](const DeviceGrant& grant) {
    const auto pod = pods_.Find(grant.pod_uid, deadline);
    if (!pod || !pod->requests) return false;
    const ContainerRequest* request = FindContainer(*pod->requests, grant.container);
    return request != nullptr && request->kind == ContainerKind::kInit;
  };
  const DeviceGrant* grant = FindGrant(*grants, resource, ids, is_init);
  if (grant == nullptr) {
    return Fail("unknown_device",
                "the kubelet's checkpoint names no container that has just these " +
                    std::to_string(ids.size()) + " devices of " + resource);
  }
  const auto pod = pods_.Find(grant->pod_uid, deadline);
  if (!pod) {
    return Fail("unknown_pod", "the API server did not name the pod with UID " + grant->pod_uid +
                                   " among those of this node in time");
  }
  if (!pod->requests) return std::unexpected(pod->requests.error());
  const std::string name = pod->name + "/" + grant->container;
  const ContainerRequest* request = FindContainer(*pod->requests, grant->container);
  const DeviceGrant* memory = MemoryOf(*grants, grant->pod_uid, grant->container, names_.memory);
  if (request == nullptr || memory == nullptr) {
    return Fail("bad_request", "container " + name + " has no devices of " + names_.memory);
  }
  const auto spec = SpecOf(*pod, *request, *memory);
  if (!spec) return std::unexpected(spec.error());
  Status ok = EndOthers(*grants, *memory, *pod, deadline);
  if (ok) ok = Create(*spec, deadline);
  if (!ok) return std::unexpected(ok.error());
  return name;
}

Status ContainerShares::Create(const api::ShareSpec& spec, Agent::Deadline deadline) {
  const auto held = locks_.Lock(*spec.name, deadline);
  if (!held) return Fail("busy", "another call for share '" + *spec.name + "' has not ended yet");
  auto made = agent_.Create(spec, deadline);
  if (!made && made.error().code == "name_in_use") {
    // Of a container that had these IDs before and has ended: the kubelet gave them to another.
    if (auto ok = agent_.Remove(*spec.name, deadline); !ok) return ok;
    made = agent_.Create(spec, deadline);
  }
  if (!made) return std::unexpected(made.error());
  return {};
}

// An init container runs alone, beside sidecars; when another runs, all of those have ended. What
// they had is the next one's.
Status ContainerShares::EndOthers(const std::vector<DeviceGrant>& grants,
                                  const DeviceGrant& container, const NodePod& pod,
                                  Agent::Deadline deadline) {
  const ContainerRequest* starting = FindContainer(*pod.requests, container.container);
  for (const ContainerRequest& other : *pod.requests) {
    const bool over = starting->kind == ContainerKind::kInit ? other.kind != ContainerKind::kSidecar
                                                             : other.kind == ContainerKind::kInit;
    if (!over || other.name == container.container) continue;
    const DeviceGrant* memory = MemoryOf(grants, container.pod_uid, other.name, names_.memory);
    if (memory == nullptr) continue;
    const auto spec = SpecOf(pod, other, *memory);
    if (!spec) return std::unexpected(spec.error());
    if (auto ok = EndShare(*spec, deadline); !ok) return ok;
  }
  return {};
}

// An init container's least unit may be another container's by now, and a share of its name that
// one's: the agent answers with the share only to who has its token.
Status ContainerShares::EndShare(const api::ShareSpec& spec, Agent::Deadline deadline) {
  const auto held = locks_.Lock(*spec.name, deadline);
  if (!held) return Fail("busy", "another call for share '" + *spec.name + "' has not ended yet");
  const auto state = agent_.List(deadline);
  if (!state) return std::unexpected(state.error());
  const bool there = std::ranges::any_of(state->shares, [&](const api::ShareStatus& share) {
    return share.name == *spec.name && !share.ended;
  });
  if (!there || !agent_.Create(spec, std::chrono::steady_clock::now())) return {};
  return agent_.Remove(*spec.name, deadline);
}

std::optional<ShareHolder> ContainerShares::HolderOf(const std::string& share) {
  const auto grants = read_();
  if (!grants || !IsPodShare(share)) return std::nullopt;
  // Of those that had the unit one after another the last is the one that runs.
  std::optional<ShareHolder> holder;
  for (const DeviceGrant& grant : *grants) {
    const auto own = ShareOfUnits(grant.ids);
    if (grant.resource != names_.memory || !own || *own != share) continue;
    const auto pod = pods_.Find(grant.pod_uid, std::chrono::steady_clock::now());
    if (!pod) continue;
    const size_t slash = pod->name.find('/');
    holder = {{pod->name.substr(0, slash), pod->name.substr(slash + 1), grant.pod_uid},
              grant.container};
  }
  return holder;
}

Result<std::vector<std::string>> ContainerShares::RemoveStale(Agent::Deadline deadline) {
  const auto state = agent_.List(deadline);
  if (!state) return std::unexpected(state.error());
  std::vector<std::string> removed;
  for (const api::ShareStatus& share : state->shares) {
    if (share.ended || !IsPodShare(share.name)) continue;
    const auto stale = RemoveIfStale(share.name, deadline);
    if (!stale) return std::unexpected(stale.error());
    if (*stale) removed.push_back(share.name);
  }
  return removed;
}

std::map<std::string, api::ShareSpec> ContainerShares::WantedShares(
    const std::vector<DeviceGrant>& grants) {
  std::map<std::string, api::ShareSpec> wanted;
  for (const DeviceGrant& grant : grants) {
    if (grant.resource != names_.memory) continue;
    const auto pod = pods_.Find(grant.pod_uid, std::chrono::steady_clock::now());
    if (!pod || !pod->requests) continue;
    const ContainerRequest* request = FindContainer(*pod->requests, grant.container);
    // What an init container had is a later one's, under the same name.
    if (request == nullptr || request->kind == ContainerKind::kInit) continue;
    auto spec = SpecOf(*pod, *request, grant);
    if (spec) wanted.insert_or_assign(*spec->name, std::move(*spec));
  }
  return wanted;
}

Result<std::vector<std::string>> ContainerShares::ApplyWishes(Agent::Deadline deadline) {
  const auto state = agent_.List(deadline);
  if (!state) return std::unexpected(state.error());
  const auto grants = read_();
  if (!grants) return std::unexpected(grants.error());
  const auto wanted = WantedShares(*grants);
  std::vector<std::string> changed;
  for (const api::ShareStatus& share : state->shares) {
    const auto found = wanted.find(share.name);
    if (found == wanted.end() || share.ended || !HasSizeOf(found->second, share)) continue;
    const auto change = ChangeTo(found->second, share);
    if (!change || change->Empty()) continue;
    const auto after = agent_.Update(share.name, *change, deadline);
    if (!after) return std::unexpected(after.error());
    changed.push_back(share.name + ": " + DescribeChange(share, *after));
  }
  return changed;
}

Result<bool> ContainerShares::RemoveIfStale(const std::string& name, Agent::Deadline deadline) {
  const auto held = locks_.Lock(name, deadline);
  if (!held) return Fail("busy", "another call for share '" + name + "' has not ended yet");
  const auto grants = read_();
  if (!grants) return std::unexpected(grants.error());
  const auto alive = pods_.Alive();
  if (!alive) return false;
  for (const DeviceGrant& grant : *grants) {
    if (grant.resource != names_.memory || !alive->contains(grant.pod_uid)) continue;
    const auto share = ShareOfUnits(grant.ids);
    if (share && *share == name) return false;
  }
  if (auto ok = agent_.Remove(name, deadline); !ok) return std::unexpected(ok.error());
  return true;
}

}  // namespace prorata::kubernetes
