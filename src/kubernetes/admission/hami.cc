#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "kubernetes/admission/older_systems.h"
#include "kubernetes/admission/pod_fields.h"
#include "kubernetes/dra/resource_slice.h"

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxHamiMemoryMib = uint64_t{1} << 28;
constexpr char kPolicy[] = "GPU_CORE_UTILIZATION_POLICY";

std::string EnvironmentOf(const json& container, const std::string& name) {
  for (const json& variable : container.value("env", json::array())) {
    if (NameOf(variable) == name) return variable.value("value", std::string());
  }
  return "";
}

std::vector<std::string> SplitList(const std::string& text) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    if (end > begin) parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

GpuChoice ReadChoice(const Annotations& annotations) {
  const auto names = [&](const char* annotation) {
    const auto found = annotations.find(annotation);
    return found == annotations.end() ? std::vector<std::string>() : SplitList(found->second);
  };
  return {{names("nvidia.com/use-gputype"), names("nvidia.com/nouse-gputype")},
          {names("nvidia.com/use-gpuuuid"), names("nvidia.com/nouse-gpuuuid")}};
}

Status ReadPodOptions(const Annotations& annotations, PodAsks* asks) {
  if (const auto mode = annotations.find("nvidia.com/vgpu-mode");
      mode != annotations.end() && mode->second != "hami-core") {
    return BadAsk("annotation nvidia.com/vgpu-mode is '" + mode->second +
                  "', which prorata does not offer; remove it or use 'hami-core'");
  }
  for (const char* other :
       {"nvidia.com/numa-bind", "hami.io/node-scheduler-policy", "hami.io/gpu-scheduler-policy"}) {
    if (annotations.contains(other)) {
      asks->warnings.push_back("annotation " + std::string(other) +
                               " has no effect with prorata, which packs GPUs");
    }
  }
  return {};
}

Status ReadHamiMemory(const json& container, GpuAsk* ask) {
  const auto mib = CountOf(container, kHamiMemory, 1, kMaxHamiMemoryMib, "MiB");
  if (!mib) return std::unexpected(mib.error());
  const auto part = CountOf(container, kHamiMemoryPart, 1, 100, "hundredths of a GPU's memory");
  if (!part) return std::unexpected(part.error());
  if (*mib && *part) {
    return BadAsk("container '" + NameOf(container) + "' asks for both " + kHamiMemory + " and " +
                  kHamiMemoryPart + "; remove one of them");
  }
  if (*mib) {
    const uint64_t bytes = **mib * kMiB;
    ask->share.memory_bytes = (bytes + kMemoryStepBytes - 1) / kMemoryStepBytes * kMemoryStepBytes;
  }
  if (*part && **part < 100) {
    ask->memory_part = Fraction{static_cast<uint32_t>(**part * (Fraction::kOne / 100))};
  }
  return {};
}

// HAMi's cores are a limit, but for a container that is alone on its GPU, unless its policy says
// otherwise: guaranteed here, and what others leave on top.
Status ReadCores(const json& container, GpuAsk* ask) {
  const auto cores = CountOf(container, kHamiCores, 0, 100, "hundredths of a GPU's time");
  if (!cores) return std::unexpected(cores.error());
  if (!*cores || **cores == 0) return {};
  ask->share.compute_percent = **cores;
  if (EnvironmentOf(container, kPolicy) == "force" && **cores < 100) {
    ask->share.compute_limit_percent = **cores;
  }
  return {};
}

Status ReadHamiContainer(const json& container, const GpuChoice& choice, PodAsks* asks) {
  const bool shares = ResourceOf(container, kHamiMemory) ||
                      ResourceOf(container, kHamiMemoryPart) || ResourceOf(container, kHamiCores);
  if (!shares) return {};
  const std::string name = NameOf(container);
  GpuAsk ask;
  ask.entry = EntryOfContainer(name);
  ask.containers = {name};
  ask.choice = choice;
  const auto gpus = CountOf(container, kHamiGpus, 1, api::kMaxGpusOfShare, "GPUs");
  if (!gpus) return std::unexpected(gpus.error());
  ask.gpus = static_cast<uint32_t>(gpus->value_or(1));
  if (auto ok = ReadHamiMemory(container, &ask); !ok) return ok;
  if (auto ok = ReadCores(container, &ask); !ok) return ok;
  const auto priority = CountOf(container, kHamiPriority, 0, 1, "0 is high, 1 low");
  if (!priority) return std::unexpected(priority.error());
  if (*priority && **priority == 0) ask.share.priority = 1;
  asks->system = "HAMi";
  asks->resources = {kHamiGpus, kHamiMemory, kHamiMemoryPart, kHamiCores, kHamiPriority};
  asks->asks.push_back(std::move(ask));
  return {};
}

}  // namespace

Status ReadHami(const json& pod, PodAsks* asks) {
  const Annotations annotations = TextsOf(pod, "annotations");
  const GpuChoice choice = ReadChoice(annotations);
  for (const json* container : ContainersOf(pod)) {
    if (auto ok = ReadHamiContainer(*container, choice, asks); !ok) return ok;
  }
  return asks->system == "HAMi" ? ReadPodOptions(annotations, asks) : Status{};
}

}  // namespace prorata::kubernetes
