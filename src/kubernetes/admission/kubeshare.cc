#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "kubernetes/admission/older_systems.h"
#include "kubernetes/admission/pod_fields.h"
#include "kubernetes/api/quantity.h"
#include "kubernetes/dra/resource_slice.h"

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

constexpr std::string_view kLabels = "sharedgpu/";
constexpr std::string_view kAnnotations = "kubeshare/";
constexpr uint32_t kWholeGpu = 100;
constexpr uint32_t kWeightOfPriority = 9;
constexpr double kMaxGroup = 1000;

// By their names without the prefix: version 2's labels, or version 1's annotations.
struct KubeShareFields {
  std::string_view prefix;
  Annotations values;

  const std::string* Find(const std::string& name) const {
    const auto found = values.find(name);
    return found == values.end() ? nullptr : &found->second;
  }
  std::string Full(const std::string& name) const { return std::string(prefix) + name; }
};

KubeShareFields FieldsOf(const Annotations& texts, std::string_view prefix) {
  KubeShareFields fields{prefix, {}};
  for (const auto& [key, value] : texts) {
    if (key.starts_with(prefix)) fields.values[key.substr(prefix.size())] = value;
  }
  return fields;
}

Result<uint32_t> PartOf(const KubeShareFields& fields, const std::string& name,
                        uint32_t otherwise) {
  const std::string* text = fields.Find(name);
  return text == nullptr ? otherwise : PercentOfDecimal(fields.Full(name), *text);
}

Status ReadMemory(const KubeShareFields& fields, uint32_t request, GpuAsk* ask) {
  const std::string* text = fields.Find("gpu_mem");
  if (text == nullptr) {
    // Version 2's rule: the same part of the memory as of the time.
    if (request > 0 && request < kWholeGpu) {
      ask->memory_part = Fraction{request * (Fraction::kOne / kWholeGpu)};
    }
    return {};
  }
  const auto bytes = ParseQuantity(*text);
  if (!bytes || *bytes == 0) {
    return BadAsk(fields.Full("gpu_mem") + " is '" + *text +
                  "', and must be a number of bytes above 0");
  }
  ask->share.memory_bytes = (*bytes + kMemoryStepBytes - 1) / kMemoryStepBytes * kMemoryStepBytes;
  return {};
}

Status ReadTime(const KubeShareFields& fields, GpuAsk* ask) {
  const auto request = PartOf(fields, "gpu_request", 0);
  if (!request) return std::unexpected(request.error());
  const auto limit = PartOf(fields, "gpu_limit", std::max(*request, kWholeGpu));
  if (!limit) return std::unexpected(limit.error());
  if (*limit == 0) return BadAsk(fields.Full("gpu_limit") + " is 0, with which nothing would run");
  if (*limit < *request) {
    return BadAsk(fields.Full("gpu_limit") + ", " + *fields.Find("gpu_limit") + ", is below " +
                  fields.Full("gpu_request") + ", " + *fields.Find("gpu_request"));
  }
  if (*request > kWholeGpu) {
    if (*limit != *request) {
      return BadAsk(fields.Full("gpu_limit") + " must be the same as " +
                    fields.Full("gpu_request") + " above one GPU");
    }
    ask->gpus = *request / kWholeGpu;
    ask->share.compute_percent = kWholeGpu;
    return {};
  }
  if (*limit > kWholeGpu) {
    return BadAsk(fields.Full("gpu_limit") + " is above one GPU, of which " +
                  fields.Full("gpu_request") + " asks for a part");
  }
  ask->share.compute_percent = *request;
  if (*limit < kWholeGpu) ask->share.compute_limit_percent = *limit;
  return ReadMemory(fields, *request, ask);
}

// Above 0 a "guarantee" pod, which has more of what is left over.
Status ReadPriority(const KubeShareFields& fields, GpuAsk* ask) {
  const std::string* text = fields.Find("priority");
  if (text == nullptr) return {};
  ShareWish number;
  const auto read = ReadWishField("priority", *text, &number);
  if (!read) {
    return BadAsk(fields.Full("priority") + " is '" + *text +
                  "', and must be a whole number up to 100");
  }
  if (*number.priority > 0) {
    ask->share.weight =
        api::kDefaultWeight + kWeightOfPriority * static_cast<uint32_t>(*number.priority);
  }
  return {};
}

bool ReadNumber(const std::string* text, double* number) {
  if (text == nullptr) return false;
  const char* end = text->data() + text->size();
  const auto read = std::from_chars(text->data(), end, *number, std::chars_format::fixed);
  return read.ec == std::errc() && read.ptr == end;
}

// So many of the group's pods as `threshold` of `headcount`, rounded. Without these KubeShare takes
// no notice of the group.
void ReadGroup(const KubeShareFields& fields, PodAsks* asks) {
  const std::string* name = fields.Find("group_name");
  if (name == nullptr) name = fields.Find("pod_group_name");  // as its README has it
  if (name == nullptr) return;
  double pods = 0;
  double part = 0;
  if (!ReadNumber(fields.Find("group_headcount"), &pods) ||
      !ReadNumber(fields.Find("group_threshold"), &part) || !(pods >= 1 && pods <= kMaxGroup) ||
      !(part > 0 && part <= 1)) {
    asks->warnings.push_back(fields.Full("group_name") + " has no effect without " +
                             fields.Full("group_headcount") + ", a number of pods, and " +
                             fields.Full("group_threshold") +
                             ", a part of them above 0 and up to 1");
    return;
  }
  const auto least = static_cast<uint64_t>(std::llround(part * pods));
  asks->group = {*name, std::to_string(std::max<uint64_t>(least, 1))};
}

}  // namespace

Status ReadKubeShare(const json& pod, PodAsks* asks) {
  KubeShareFields fields = FieldsOf(TextsOf(pod, "labels"), kLabels);
  if (fields.values.empty()) fields = FieldsOf(TextsOf(pod, "annotations"), kAnnotations);
  if (!fields.Find("gpu_request") && !fields.Find("gpu_limit") && !fields.Find("gpu_mem")) {
    return {};
  }
  asks->system = "KubeShare";
  GpuAsk ask;
  ask.entry = kEntryOfPod;
  for (const json& container : pod.at("spec").value("containers", json::array())) {
    ask.containers.push_back(NameOf(container));
  }
  if (auto ok = ReadTime(fields, &ask); !ok) return ok;
  if (auto ok = ReadPriority(fields, &ask); !ok) return ok;
  if (const std::string* model = fields.Find("gpu_model")) ask.choice.models.any = {*model};
  ReadGroup(fields, asks);
  for (const char* affinity : {"sched_affinity", "sched_anti-affinity", "sched_exclusion"}) {
    if (fields.Find(affinity)) {
      asks->warnings.push_back(fields.Full(affinity) + " has no effect with prorata");
    }
  }
  asks->asks.push_back(std::move(ask));
  return {};
}

}  // namespace prorata::kubernetes
