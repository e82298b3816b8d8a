#include "kubernetes/admission/translate.h"

#include <openssl/sha.h>

#include <algorithm>

#include "base/bytes.h"
#include "kubernetes/admission/older_systems.h"
#include "kubernetes/admission/pod_fields.h"
#include "kubernetes/api/quantity.h"
#include "kubernetes/dra/names.h"
#include "kubernetes/dra/resource_slice.h"

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

constexpr size_t kMaxAlternatives = 8;  // of the API
constexpr size_t kHashBytes = 8;

std::string HashOf(const std::string& text) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
  std::string hex;
  for (size_t i = 0; i < kHashBytes; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", digest[i]);
    hex += digits;
  }
  return hex;
}

json Selector(const std::string& expression) { return {{"cel", {{"expression", expression}}}}; }

// As GpuChoice::Allows has it, in CEL.
json SelectorsOf(const GpuChoice& choice) {
  const std::string attributes = "device.attributes[\"" + std::string(kDriverName) + "\"].";
  const std::string model = attributes + R"(model.lowerAscii().replace("-", " "))";
  json selectors = json::array();
  const auto add = [&](const GpuChoice::Names& names, const auto& condition_of) {
    const auto any_of = [&](const std::vector<std::string>& list) {
      std::string any;
      for (const std::string& each : list) any += (any.empty() ? "" : " || ") + condition_of(each);
      return any;
    };
    if (!names.any.empty()) selectors.push_back(Selector(any_of(names.any)));
    if (!names.not_of.empty()) selectors.push_back(Selector("!(" + any_of(names.not_of) + ")"));
  };
  add(choice.models, [&](const std::string& part) {
    return model + ".contains(" + CelText(ComparableModel(part)) + ")";
  });
  add(choice.uuids,
      [&](const std::string& uuid) { return attributes + "uuid == " + CelText(uuid); });
  return selectors;
}

// A DeviceRequest without its name.
json ExactRequest(const GpuAsk& ask, std::optional<uint64_t> memory_bytes) {
  json capacity = {{kComputeCapacity, std::to_string(ask.share.compute_percent.value_or(0))}};
  if (memory_bytes) capacity[kMemoryCapacity] = FormatBinaryQuantity(*memory_bytes);
  json request = {{"deviceClassName", kDriverName},
                  {"allocationMode", "ExactCount"},
                  {"count", ask.gpus},
                  {"capacity", {{"requests", capacity}}}};
  if (json selectors = SelectorsOf(ask.choice); !selectors.empty()) {
    request["selectors"] = std::move(selectors);
  }
  return request;
}

// A part of whichever GPU it is: one alternative for each size of GPU.
Result<json> PartRequest(const GpuAsk& ask, std::span<const uint64_t> gpu_bytes) {
  const std::string part = FormatPercent(*ask.memory_part) + " of a GPU's memory";
  if (gpu_bytes.empty()) {
    return BadAsk("the pod asks for " + part +
                  ", and the cluster has no GPU of prorata's by whose size that is known; ask for "
                  "an amount");
  }
  if (gpu_bytes.size() > kMaxAlternatives) {
    return BadAsk("the pod asks for " + part + ", and the cluster has GPUs of " +
                  std::to_string(gpu_bytes.size()) + " sizes, of which a claim can name " +
                  std::to_string(kMaxAlternatives) + "; ask for an amount");
  }
  if (gpu_bytes.size() == 1) {
    return json{{"name", "gpu"},
                {"exactly", ExactRequest(ask, PartOfMemory(*ask.memory_part, gpu_bytes[0]))}};
  }
  json alternatives = json::array();
  for (const uint64_t bytes : gpu_bytes) {
    const std::string mib = std::to_string(bytes / kMiB);
    json request = ExactRequest(ask, PartOfMemory(*ask.memory_part, bytes));
    request["name"] = "gpu-of-" + mib + "-mib";
    request["selectors"].push_back(Selector("device.attributes[\"" + std::string(kDriverName) +
                                            "\"]." + kMemorySizeAttribute + " == " + mib));
    alternatives.push_back(std::move(request));
  }
  return json{{"name", "gpu"}, {"firstAvailable", alternatives}};
}

json ParametersOf(const ShareWish& share) {
  json parameters = json::object();
  if (share.compute_limit_percent) parameters["computeLimit"] = *share.compute_limit_percent;
  if (share.weight) parameters["weight"] = *share.weight;
  if (share.priority) parameters["priority"] = *share.priority;
  if (share.yield_within_ns) {
    parameters["yieldWithin"] = std::to_string(*share.yield_within_ns / 1'000) + "us";
  }
  if (share.on_full) parameters["onFull"] = FormatOnFull(*share.on_full);
  if (share.gang) parameters["gang"] = FormatGang(*share.gang);
  if (parameters.empty()) return parameters;
  parameters["apiVersion"] = kConfigVersion;
  parameters["kind"] = kConfigKind;
  return parameters;
}

Result<json> TemplateOf(const GpuAsk& ask, std::span<const uint64_t> gpu_bytes) {
  if (auto ok = CheckMemorySize(ask, gpu_bytes); !ok) return std::unexpected(ok.error());
  Result<json> request =
      ask.memory_part
          ? PartRequest(ask, gpu_bytes)
          : json{{"name", "gpu"}, {"exactly", ExactRequest(ask, ask.share.memory_bytes)}};
  if (!request) return request;
  json devices = {{"requests", {std::move(*request)}}};
  if (ask.gpus > 1) {
    devices["constraints"] = {{{"distinctAttribute", std::string(kDriverName) + "/uuid"}}};
  }
  if (const json parameters = ParametersOf(ask.share); !parameters.empty()) {
    devices["config"] = {{{"opaque", {{"driver", kDriverName}, {"parameters", parameters}}}}};
  }
  return json{{"apiVersion", "resource.k8s.io/v1"},
              {"kind", "ResourceClaimTemplate"},
              {"metadata",
               {{"name", "prorata-" + HashOf(devices.dump())},
                {"labels", {{"app.kubernetes.io/managed-by", "prorata"}}}}},
              {"spec", {{"spec", {{"devices", devices}}}}}};
}

Status AddClaimTo(const GpuAsk& ask, const std::string& template_name, json* pod) {
  json& spec = (*pod)["spec"];
  for (const json& entry : spec.value("resourceClaims", json::array())) {
    if (NameOf(entry) != ask.entry) continue;
    return BadAsk("the pod has a claim '" + ask.entry +
                  "' already, which is what its part of a GPU would be called; rename it");
  }
  spec["resourceClaims"].push_back(
      {{"name", ask.entry}, {"resourceClaimTemplateName", template_name}});
  for (const char* list : {"initContainers", "containers"}) {
    if (!spec.contains(list)) continue;
    for (json& container : spec[list]) {
      const auto& names = ask.containers;
      if (std::find(names.begin(), names.end(), NameOf(container)) == names.end()) continue;
      container["resources"]["claims"].push_back({{"name", ask.entry}});
    }
  }
  return {};
}

}  // namespace

Result<Translation> TranslateToClaims(const json& pod, const PodAsks& asks,
                                      std::span<const uint64_t> gpu_bytes) {
  Translation made;
  made.pod = pod;
  for (const GpuAsk& ask : asks.asks) {
    auto claim_template = TemplateOf(ask, gpu_bytes);
    if (!claim_template) return std::unexpected(claim_template.error());
    const std::string name = (*claim_template)["metadata"]["name"];
    if (auto ok = AddClaimTo(ask, name, &made.pod); !ok) return std::unexpected(ok.error());
    made.templates.push_back(std::move(*claim_template));
  }
  FinishTranslation(asks, &made.pod);
  return made;
}

}  // namespace prorata::kubernetes
