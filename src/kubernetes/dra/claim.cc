#include "kubernetes/dra/claim.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "kubernetes/api/quantity.h"
#include "kubernetes/dra/names.h"
#include "kubernetes/dra/share_config.h"

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

constexpr std::string_view kSharePrefix = "claim-";
constexpr std::string_view kTokenPrefix = "kubernetes-claim-";
constexpr size_t kMaxLabelLength = 63;
constexpr uint64_t kWholeCompute = 100;

std::string TextOf(const json& object, const char* field) {
  const auto found = object.find(field);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// An empty array where there is none.
const json& ListOf(const json& object, const json::json_pointer& where) {
  static const json kNone = json::array();
  if (!object.contains(where) || !object.at(where).is_array()) return kNone;
  return object.at(where);
}

Result<uint64_t> ConsumedOf(const json& result, const char* capacity) {
  const json::json_pointer where = json::json_pointer("/consumedCapacity") / capacity;
  if (!result.contains(where) || !result.at(where).is_string()) {
    return Fail("bad_allocation",
                std::string("the allocation does not say how much ") + capacity +
                    " of the device is the claim's (consumedCapacity); the cluster needs the "
                    "feature gate DRAConsumableCapacity, which Kubernetes 1.36 has on by default");
  }
  return ParseQuantity(result.at(where).get<std::string>());
}

Result<const api::DeviceStatus*> FindDevice(std::span<const api::DeviceStatus> devices,
                                            const std::string& name) {
  for (const api::DeviceStatus& device : devices) {
    if (DeviceName(device.uuid) == name) return &device;
  }
  return Fail("no_such_device", "the allocated device '" + name +
                                    "' is not among the GPUs that this node's agent sees; "
                                    "`prorata gpus` on the node lists them");
}

// What one result gives of its GPU.
Result<api::TermsOnGpu> TermsOf(const json& result, std::span<const api::DeviceStatus> devices) {
  const auto device = FindDevice(devices, TextOf(result, "device"));
  if (!device) return std::unexpected(device.error());
  const auto memory = ConsumedOf(result, kMemoryCapacity);
  if (!memory) return std::unexpected(memory.error());
  const auto compute = ConsumedOf(result, kComputeCapacity);
  if (!compute) return std::unexpected(compute.error());
  if (*memory < api::kMinShareBytes || *compute > kWholeCompute) {
    return Fail("bad_allocation", "the allocation gives " + std::to_string(*memory) +
                                      " bytes and " + std::to_string(*compute) +
                                      " % of a GPU, which no share can be");
  }
  api::TermsOnGpu terms;
  terms.gpu = (*device)->uuid;
  terms.memory = api::MemorySize(*memory);
  // What is consumed is the claim's alone, on a GPU that the agent overcommits, too.
  terms.memory_request = api::MemorySize(*memory);
  terms.compute_request =
      Fraction{static_cast<uint32_t>(*compute * (Fraction::kOne / kWholeCompute))};
  return terms;
}

// The first part of "REQUEST/ALTERNATIVE".
std::string_view MainRequest(std::string_view request) {
  return request.substr(0, request.find('/'));
}

bool IsFor(const json& config, const std::string& request) {
  const json& requests = ListOf(config, json::json_pointer("/requests"));
  return requests.empty() || std::any_of(requests.begin(), requests.end(), [&](const json& name) {
           return name == request || name == std::string(MainRequest(request));
         });
}

// The class's before the claim's, as they are listed: the later one's word counts.
Status ApplyConfigs(const json& claim, const std::string& request, api::ShareSpec* share) {
  for (const json& config :
       ListOf(claim, json::json_pointer("/status/allocation/devices/config"))) {
    const json opaque = config.value("opaque", json::object());
    if (TextOf(opaque, "driver") != kDriverName || !IsFor(config, request)) continue;
    auto ok = ApplyShareConfig(opaque.value("parameters", json()), share);
    if (!ok) return ok;
  }
  return {};
}

// Whether the agent could be asked for anything at all with these results.
Status CheckResult(const json& result, const std::string& pool, const ClaimPlan& before) {
  if (TextOf(result, "pool") != pool) {
    return Fail("bad_allocation", "the claim's device is of pool '" + TextOf(result, "pool") +
                                      "', and this node's is '" + pool + "'");
  }
  if (result.value("adminAccess", json(false)) != false) {
    return Fail("bad_allocation",
                "the claim asks for adminAccess, which this driver does not offer; leave it out");
  }
  if (before.devices.empty()) return {};
  if (before.devices.front().request != TextOf(result, "request")) {
    return Fail("many_requests", "the claim has devices of several requests ('" +
                                     before.devices.front().request + "', '" +
                                     TextOf(result, "request") +
                                     "'), and a share is what one container has; make a claim "
                                     "with one request for each");
  }
  for (const AllocatedDevice& other : before.devices) {
    if (other.device != TextOf(result, "device")) continue;
    return Fail("bad_allocation", "the claim has device '" + other.device +
                                      "' twice; ask for more of it once, or for distinct devices "
                                      "(distinctAttribute: gpu.prorata.dev/uuid)");
  }
  return {};
}

// How the agent is asked: of one GPU, or of several that may differ.
void SetTerms(std::vector<api::TermsOnGpu> terms, api::ShareSpec* share) {
  for (const api::TermsOnGpu& on : terms) share->gpus.push_back(on.gpu);
  share->memory = terms.front().memory;
  share->memory_request = terms.front().memory_request;
  share->compute_request = *terms.front().compute_request;
  if (terms.size() > 1) share->on = std::move(terms);
}

}  // namespace

std::string Describe(const ClaimReference& claim) { return claim.name_space + "/" + claim.name; }

std::string DeviceName(std::string_view uuid) {
  std::string name;
  for (const char letter : uuid) {
    const bool plain = std::isalnum(static_cast<unsigned char>(letter)) != 0;
    name += plain ? static_cast<char>(std::tolower(static_cast<unsigned char>(letter))) : '-';
  }
  if (name.size() > kMaxLabelLength) name.resize(kMaxLabelLength);
  while (name.ends_with('-')) name.pop_back();
  return name;
}

std::string ShareNameOfClaim(std::string_view uid) {
  return std::string(kSharePrefix) + std::string(uid);
}

std::string TokenOfClaim(std::string_view uid) {
  return std::string(kTokenPrefix) + std::string(uid);
}

std::optional<std::string> ClaimOfShare(std::string_view share_name) {
  constexpr size_t kUidLength = 36;
  if (!share_name.starts_with(kSharePrefix)) return std::nullopt;
  share_name.remove_prefix(kSharePrefix.size());
  if (share_name.size() != kUidLength) return std::nullopt;
  for (size_t i = 0; i < share_name.size(); ++i) {
    const bool dash = i == 8 || i == 13 || i == 18 || i == 23;
    const char letter = share_name[i];
    const bool hex = (letter >= '0' && letter <= '9') || (letter >= 'a' && letter <= 'f');
    if (dash ? letter != '-' : !hex) return std::nullopt;
  }
  return std::string(share_name);
}

namespace {

// Throws nlohmann's exception where a field has another type than the API's.
Result<ClaimPlan> ReadClaim(const json& claim, const ClaimReference& reference,
                            const std::string& pool, std::span<const api::DeviceStatus> devices) {
  const std::string uid = TextOf(claim.value("metadata", json::object()), "uid");
  if (uid != reference.uid) {
    return Fail("claim_changed", "the claim " + Describe(reference) + " is '" + uid +
                                     "' now, and the kubelet asks for the earlier '" +
                                     reference.uid + "'");
  }
  ClaimPlan plan;
  std::vector<api::TermsOnGpu> terms;
  for (const json& result :
       ListOf(claim, json::json_pointer("/status/allocation/devices/results"))) {
    if (TextOf(result, "driver") != kDriverName) continue;
    if (auto ok = CheckResult(result, pool, plan); !ok) return std::unexpected(ok.error());
    auto on = TermsOf(result, devices);
    if (!on) return std::unexpected(on.error());
    terms.push_back(std::move(*on));
    const std::string share_id = TextOf(result, "shareID");
    plan.devices.push_back({TextOf(result, "request"), pool, TextOf(result, "device"),
                            share_id.empty() ? std::nullopt : std::optional(share_id)});
  }
  if (terms.empty()) {
    return Fail("not_allocated",
                "nothing of " + std::string(kDriverName) + " is allocated to the claim");
  }
  plan.share.name = ShareNameOfClaim(uid);
  plan.share.token = TokenOfClaim(uid);
  // A claim is there for all containers and pods that refer to it.
  plan.share.any_container = true;
  SetTerms(std::move(terms), &plan.share);
  if (auto ok = ApplyConfigs(claim, plan.devices.front().request, &plan.share); !ok) {
    return std::unexpected(ok.error());
  }
  return plan;
}

}  // namespace

AllocatedPart AllocatedOn(const api::ShareSpec& share, const std::string& gpu) {
  for (const api::TermsOnGpu& on : share.on) {
    if (on.gpu == gpu) return {on.memory_request->bytes, on.compute_request->ppm};
  }
  if (!share.on.empty() || share.gpus.front() != gpu) return {};
  return {share.memory_request->bytes, share.compute_request.ppm};
}

Result<ClaimPlan> PlanClaim(const json& claim, const ClaimReference& reference,
                            const std::string& pool, std::span<const api::DeviceStatus> devices) {
  try {
    return ReadClaim(claim, reference, pool, devices);
  } catch (const json::exception& error) {
    return Fail("bad_allocation", "the claim " + Describe(reference) +
                                      " is not as resource.k8s.io/v1 has it: " + error.what());
  }
}

}  // namespace prorata::kubernetes
