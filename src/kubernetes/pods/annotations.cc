#include "kubernetes/pods/annotations.h"

#include <nlohmann/json.hpp>

#include "kubernetes/pods/pod_request.h"

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

constexpr uint32_t kPpmPerPercent = Fraction::kOne / kWholeGpuPercent;

std::unexpected<Error> BadAnnotation(const char* name, const std::string& what) {
  return Fail("bad_annotation", std::string("the annotation ") + name + " cannot be read: " + what);
}

}  // namespace

std::string FormatNodeGpus(std::span<const NodeGpu> gpus) {
  json list = json::array();
  for (const NodeGpu& gpu : gpus) {
    list.push_back({{"uuid", gpu.uuid},
                    {"model", gpu.model},
                    {"memory", gpu.memory_units},
                    {"compute", gpu.compute_percent},
                    {"size", gpu.size_units}});
  }
  return list.dump(-1, ' ', false, json::error_handler_t::replace);
}

Result<std::vector<NodeGpu>> ParseNodeGpus(std::string_view text) {
  std::vector<NodeGpu> gpus;
  try {
    for (const json& entry : json::parse(text)) {
      gpus.push_back({entry.at("uuid"), entry.at("model"), entry.at("memory"), entry.at("compute"),
                      entry.value("size", 0u)});
    }
  } catch (const json::exception& error) {
    return BadAnnotation(kNodeGpusAnnotation, error.what());
  }
  return gpus;
}

std::string FormatAssignedGpus(const AssignedGpus& assigned) {
  return json(assigned).dump(-1, ' ', false, json::error_handler_t::replace);
}

Result<AssignedGpus> ParseAssignedGpus(std::string_view text) {
  try {
    return json::parse(text).get<AssignedGpus>();
  } catch (const json::exception& error) {
    return BadAnnotation(kAssignedGpusAnnotation, error.what());
  }
}

std::optional<std::string> AnnotationOf(const json& object, const char* name) {
  const json::json_pointer where = json::json_pointer("/metadata/annotations") / name;
  if (!object.contains(where) || !object.at(where).is_string()) return std::nullopt;
  return object.at(where).get<std::string>();
}

std::vector<NodeGpu> GpusForPods(std::span<const api::DeviceStatus> devices,
                                 std::span<const api::ShareStatus> shares,
                                 bool (*is_pod)(std::string_view)) {
  struct Outside {
    uint64_t bytes = 0;
    uint64_t ppm = 0;
  };
  std::map<std::string, Outside> outside;
  for (const api::ShareStatus& share : shares) {
    if (is_pod(share.name)) continue;
    for (const api::ShareDevice& on : share.devices) {
      outside[on.uuid].bytes += on.memory_request_bytes;
      outside[on.uuid].ppm += on.compute_request.ppm;
    }
  }
  std::vector<NodeGpu> gpus;
  for (const api::DeviceStatus& device : devices) {
    NodeGpu gpu{.uuid = device.uuid, .model = device.name};
    gpu.size_units = static_cast<uint32_t>(device.total_bytes / kMemoryUnitBytes);
    const Outside& others = outside[device.uuid];
    const uint64_t taken = device.foreign_bytes + others.bytes;
    if (device.exclusive.empty() && taken < device.total_bytes && others.ppm < Fraction::kOne) {
      gpu.memory_units = static_cast<uint32_t>((device.total_bytes - taken) / kMemoryUnitBytes);
      gpu.compute_percent = static_cast<uint32_t>((Fraction::kOne - others.ppm) / kPpmPerPercent);
    }
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

}  // namespace prorata::kubernetes
