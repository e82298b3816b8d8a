#include "kubernetes/pods/pod_request.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/bytes.h"
#include "kubernetes/api/quantity.h"

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

// No node has more GPUs than 16, in the agent and in placement.
constexpr uint64_t kMaxCompute = uint64_t{16} * kWholeGpuPercent;

std::unexpected<Error> BadRequest(const std::string& container, const std::string& what) {
  return Fail("bad_request", "container '" + container + "' " + what);
}

// 0: it asks for none.
Result<uint64_t> LimitOf(const json& container, const std::string& resource) {
  const json::json_pointer where = json::json_pointer("/resources/limits") / resource;
  if (!container.contains(where)) return 0;
  const json& value = container.at(where);
  if (value.is_number_unsigned()) return value.get<uint64_t>();
  return ParseQuantity(value.is_string() ? value.get<std::string>() : value.dump());
}

ContainerKind KindOf(const json& container, bool init) {
  if (!init) return ContainerKind::kMain;
  const bool restarts = container.value("restartPolicy", "") == "Always";
  return restarts ? ContainerKind::kSidecar : ContainerKind::kInit;
}

Result<std::optional<ContainerRequest>> RequestOf(const json& container, ContainerKind kind,
                                                  const ResourceNames& names) {
  ContainerRequest request{.name = container.value("name", ""), .kind = kind};
  const auto compute = LimitOf(container, names.compute);
  if (!compute) return std::unexpected(compute.error());
  const auto memory = LimitOf(container, names.memory);
  if (!memory) return std::unexpected(memory.error());
  if (*compute == 0 && *memory == 0) return std::nullopt;
  const std::string asks = "asks for " + names.compute + ": " + std::to_string(*compute);
  if (*memory == 0) {
    return BadRequest(request.name, asks + " without memory; add " + names.memory +
                                        " to its limits, in units of 256 MiB");
  }
  const bool whole = *compute % kWholeGpuPercent == 0;
  if ((*compute > kWholeGpuPercent && !whole) || *compute > kMaxCompute) {
    return BadRequest(request.name, asks +
                                        "; write at most 100 for a part of one GPU, or a "
                                        "multiple of 100, up to 1600, for several whole ones");
  }
  request.gpu_count = static_cast<uint32_t>(std::max<uint64_t>(1, *compute / kWholeGpuPercent));
  if (*memory % request.gpu_count != 0) {
    return BadRequest(request.name, "asks for " + names.memory + ": " + std::to_string(*memory) +
                                        ", which its " + std::to_string(request.gpu_count) +
                                        " GPUs cannot share evenly; write a multiple of " +
                                        std::to_string(request.gpu_count));
  }
  request.compute_percent = static_cast<uint32_t>(*compute / request.gpu_count);
  request.memory_units = *memory / request.gpu_count;
  return request;
}

// An init container uses what a later container gets: it needs no room of its own.
Status CheckInit(const std::vector<ContainerRequest>& requests) {
  for (const ContainerRequest& init : requests) {
    if (init.kind != ContainerKind::kInit) continue;
    if (std::ranges::any_of(requests, [&](const auto& later) { return Covers(later, init); })) {
      continue;
    }
    return BadRequest(init.name,
                      "is an init container and asks for " + DescribeRequest(init) +
                          ", which is more than any container after it; ask for no more than one "
                          "of those");
  }
  return {};
}

}  // namespace

bool Covers(const ContainerRequest& later, const ContainerRequest& init) {
  return later.kind != ContainerKind::kInit && later.gpu_count >= init.gpu_count &&
         later.compute_percent >= init.compute_percent && later.memory_units >= init.memory_units;
}

std::string DescribeRequest(const ContainerRequest& request) {
  std::string text = FormatBytes(request.memory_units * kMemoryUnitBytes);
  if (request.compute_percent > 0) {
    text += " and " + std::to_string(request.compute_percent) + "% of its time";
  }
  const std::string choice = DescribeGpuChoice(request.choice);
  if (!choice.empty()) text += " (" + choice + ")";
  return text;
}

namespace {

// Throws nlohmann's exception where a field has another type than the API's.
Result<std::vector<ContainerRequest>> ReadRequests(const json& pod, const ResourceNames& names) {
  std::vector<ContainerRequest> requests;
  for (const bool init : {true, false}) {
    const json::json_pointer list(init ? "/spec/initContainers" : "/spec/containers");
    if (!pod.contains(list)) continue;
    for (const json& container : pod.at(list)) {
      auto request = RequestOf(container, KindOf(container, init), names);
      if (!request) return std::unexpected(request.error());
      if (*request) requests.push_back(std::move(**request));
    }
  }
  if (auto ok = CheckInit(requests); !ok) return std::unexpected(ok.error());
  if (requests.empty()) return requests;
  const auto choice = GpuChoiceOf(pod);
  if (!choice) return std::unexpected(choice.error());
  for (ContainerRequest& request : requests) request.choice = *choice;
  return requests;
}

}  // namespace

Result<std::vector<ContainerRequest>> GpuRequestsOf(const json& pod, const ResourceNames& names) {
  try {
    return ReadRequests(pod, names);
  } catch (const json::exception& error) {
    return Fail("bad_request", std::string("this is no pod as the API has it: ") + error.what());
  }
}

}  // namespace prorata::kubernetes
