#include <nlohmann/json.hpp>

#include "kubernetes/admission/older_systems.h"
#include "kubernetes/admission/pod_fields.h"
#include "kubernetes/dra/resource_slice.h"

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

constexpr char kCoreLimit[] = "tencent.com/vcuda-core-limit";
constexpr uint64_t kCoresOfGpu = 100;
constexpr uint64_t kMaxVcudaMemory = uint64_t{1} << 20;  // 256 TiB

// A part of one GPU: a hard limit, or an elastic one up to the annotation.
Status ReadPart(const std::string& name, uint64_t core, std::optional<uint64_t> memory,
                const Annotations& annotations, GpuAsk* ask) {
  if (!memory) {
    return BadAsk("container '" + name + "' asks for " + std::to_string(core) + " of " +
                  kVcudaCore + ", a part of a GPU, and for none of its memory; add " +
                  kVcudaMemory + " (units of 256 MiB)");
  }
  ask->share.memory_bytes = *memory * kMemoryStepBytes;
  ask->share.compute_percent = core;
  uint32_t limit = static_cast<uint32_t>(core);
  if (const auto elastic = annotations.find(kCoreLimit); elastic != annotations.end()) {
    const auto read = ParseGpuPercent(elastic->second, 1);
    if (!read) {
      return BadAsk(std::string("annotation ") + kCoreLimit + " is '" + elastic->second +
                    "', and " + read.error().message);
    }
    if (*read < core) {
      return BadAsk(std::string("annotation ") + kCoreLimit + ", " + elastic->second +
                    ", is below the " + std::to_string(core) + " of " + kVcudaCore +
                    " that container '" + name + "' asks for");
    }
    limit = *read;
  }
  if (limit < kCoresOfGpu) ask->share.compute_limit_percent = limit;
  return {};
}

Status ReadContainer(const json& container, const Annotations& annotations, PodAsks* asks) {
  const std::string name = NameOf(container);
  const auto core =
      CountOf(container, kVcudaCore, 1, kCoresOfGpu * api::kMaxGpusOfShare, "hundredths of a GPU");
  if (!core) return std::unexpected(core.error());
  const auto memory = CountOf(container, kVcudaMemory, 1, kMaxVcudaMemory, "units of 256 MiB");
  if (!memory) return std::unexpected(memory.error());
  if (!*core && !*memory) return {};
  if (!*core) {
    return BadAsk("container '" + name + "' asks for " + kVcudaMemory + " and for no " +
                  kVcudaCore + "; add it (hundredths of a GPU)");
  }
  GpuAsk ask;
  ask.entry = EntryOfContainer(name);
  ask.containers = {name};
  if (**core < kCoresOfGpu) {
    if (auto ok = ReadPart(name, **core, *memory, annotations, &ask); !ok) return ok;
  } else if (**core % kCoresOfGpu != 0) {
    return BadAsk("container '" + name + "' asks for " + std::to_string(**core) + " of " +
                  kVcudaCore + ", which is neither below 100 nor a multiple of 100");
  } else {
    // Whole GPUs, of which gpu-manager does not limit the memory either.
    ask.gpus = static_cast<uint32_t>(**core / kCoresOfGpu);
    ask.share.compute_percent = kCoresOfGpu;
  }
  asks->system = "GaiaGPU";
  asks->resources = {kVcudaCore, kVcudaMemory};
  asks->asks.push_back(std::move(ask));
  return {};
}

}  // namespace

Status ReadGaiaGpu(const json& pod, PodAsks* asks) {
  const Annotations annotations = TextsOf(pod, "annotations");
  for (const json* container : ContainersOf(pod)) {
    if (auto ok = ReadContainer(*container, annotations, asks); !ok) return ok;
  }
  return {};
}

}  // namespace prorata::kubernetes
