#include "kubernetes/kai/kai_part.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "api/memory_size.h"
#include "base/bytes.h"

namespace prorata::kubernetes {
namespace {

constexpr char kFraction[] = "gpu-fraction";
constexpr char kMemory[] = "gpu-memory";
constexpr char kDeviceCount[] = "gpu-fraction-num-devices";
constexpr char kContainerName[] = "gpu-fraction-container-name";
// Where NVIDIA's own NRI plugin is asked for a GPU, which has no limits.
constexpr std::string_view kNvidiaNri = "nvidia.cdi.k8s.io/container.";
constexpr std::string_view kPortion = "GPU_PORTION";
constexpr std::string_view kOldPortion = "RUNAI_NUM_OF_GPUS";  // before KAI 0.7.6
constexpr std::string_view kVisible = "NVIDIA_VISIBLE_DEVICES";
constexpr std::string_view kGpuUuid = "GPU-";
constexpr std::string_view kDeviceClass = "prorata.dev/share=";
constexpr std::string_view kShareMount = "/run/prorata/share";
constexpr std::string_view kSharePrefix = "kai-";
constexpr std::string_view kTokenPrefix = "kubernetes-kai-";
constexpr size_t kUidLength = 36;
constexpr uint64_t kMaxMemoryMib = uint64_t{1} << 24;  // 16 TiB: no GPU has more
// KAI accounts a part rounded to hundredths, and memory of a GPU whose size it knows roughly.
constexpr uint32_t kRoundingPpm = 10'000;
constexpr uint32_t kMemoryRoundingPpm = 2 * kRoundingPpm;
// By so much of itself a share may be smaller than its part, for what programs outside took of the
// GPU since the others' shares were made.
constexpr uint64_t kSmallerBy = 32;

std::optional<std::string> AnnotationOf(const RuntimePod& pod, const std::string& name) {
  const auto found = pod.annotations.find(name);
  if (found == pod.annotations.end() || found->second.empty()) return std::nullopt;
  return found->second;
}

std::optional<std::string> VariableOf(const RuntimeContainer& container, std::string_view name) {
  for (const std::string_view variable : container.environment) {
    if (variable.size() > name.size() && variable.starts_with(name) &&
        variable[name.size()] == '=') {
      return std::string(variable.substr(name.size() + 1));
    }
  }
  return std::nullopt;
}

std::string Describe(const RuntimePod& pod) { return pod.name_space + "/" + pod.name; }

std::string Quoted(std::string_view text) {
  constexpr size_t kShown = 60;
  return "'" + std::string(text.substr(0, kShown)) + (text.size() > kShown ? "..." : "") + "'";
}

std::unexpected<Error> BadAnnotation(const RuntimePod& pod, const std::string& name,
                                     const std::string& value, const std::string& what) {
  return Fail("bad_annotation", "the annotation " + name + " of pod " + Describe(pod) + " is " +
                                    Quoted(value) + ": " + what);
}

// From 0 to 1, rounded down. As KAI reads it (Go's ParseFloat), but for a plus and hexadecimal.
std::optional<Fraction> FractionOf(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (!(value >= 0 && value <= 1)) return std::nullopt;  // a NaN is neither
  constexpr double kDoublesOwn = 1e-6;                   // 0.29 times a million is 289999.99...
  return Fraction{static_cast<uint32_t>(value * Fraction::kOne + kDoublesOwn)};
}

std::optional<uint64_t> NumberOf(std::string_view text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

Result<std::vector<std::string>> GpusOf(const RuntimePod& pod, const RuntimeContainer& container) {
  const std::string who = "container '" + container.name + "' of pod " + Describe(pod);
  if (const auto by_nri = AnnotationOf(pod, std::string(kNvidiaNri) + container.name)) {
    return Fail("no_gpu", who + " gets its GPU from NVIDIA's NRI plugin, by the annotation " +
                              std::string(kNvidiaNri) + container.name +
                              ", and that gives it all of it: have KAI name GPUs by " +
                              std::string(kVisible) + " (turn its NRI integration off)");
  }
  const std::string visible = VariableOf(container, kVisible).value_or("");
  std::vector<std::string> gpus;
  for (size_t at = 0; at <= visible.size();) {
    const size_t end = std::min(visible.find(',', at), visible.size());
    std::string_view device = std::string_view(visible).substr(at, end - at);
    device.remove_prefix(device.rfind('=') + 1);  // of a CDI device; npos + 1 is 0
    if (!device.starts_with(kGpuUuid)) {
      return Fail("no_gpu",
                  who + " has part of a GPU by KAI, but its " + std::string(kVisible) + " is " +
                      Quoted(visible) +
                      " and does not name GPUs by their UUIDs (GPU-...): did KAI's binder "
                      "bind this pod? See `kubectl describe pod` for its events");
    }
    gpus.emplace_back(device);
    at = end + 1;
  }
  const std::string count = AnnotationOf(pod, kDeviceCount).value_or("1");
  if (NumberOf(count) == gpus.size()) return gpus;
  return BadAnnotation(pod, kDeviceCount, count,
                       "KAI gave container '" + container.name + "' " +
                           std::to_string(gpus.size()) +
                           " GPU(s); delete the pod and make it anew");
}

Result<KaiPart> SizeOf(const RuntimePod& pod, const std::string& portion) {
  KaiPart part;
  const auto accounted = FractionOf(portion);
  if (!accounted) {
    return Fail("bad_annotation", "pod " + Describe(pod) + " has " + std::string(kPortion) + "=" +
                                      Quoted(portion) +
                                      " by KAI, which is no part of a GPU from 0 to 1");
  }
  part.accounted = *accounted;
  const auto fraction = AnnotationOf(pod, kFraction);
  const auto memory = AnnotationOf(pod, kMemory);
  if (fraction && memory) {
    return BadAnnotation(pod, kFraction, *fraction,
                         std::string("the pod has ") + kMemory + " as well; leave one of them out");
  }
  if (memory) {
    const auto mib = NumberOf(*memory);
    if (!mib || *mib == 0 || *mib > kMaxMemoryMib) {
      return BadAnnotation(pod, kMemory, *memory,
                           "it must be a whole number of MiB above 0, for example \"4096\"");
    }
    part.memory_bytes = *mib * kMiB;
    return part;
  }
  part.fraction = FractionOf(*fraction);
  if (!part.fraction || part.fraction->ppm == 0 || *part.fraction == Fraction::One()) {
    return BadAnnotation(pod, kFraction, *fraction,
                         "it must be a number above 0 and below 1, for example \"0.5\"");
  }
  const uint32_t high = std::max(part.fraction->ppm, accounted->ppm);
  if (high - std::min(part.fraction->ppm, accounted->ppm) > kRoundingPpm) {
    return BadAnnotation(pod, kFraction, *fraction,
                         "KAI bound the pod with " + portion +
                             " of a GPU; delete the pod and make it anew to change it");
  }
  return part;
}

uint64_t Less(uint64_t from, uint64_t what) { return from - std::min(from, what); }

// Of memory on one GPU. All GPUs of a share have the same limit: the least.
uint64_t MemoryOn(const KaiPart& part, const api::DeviceStatus& device) {
  const uint64_t for_shares = Less(device.total_bytes, device.foreign_bytes);
  const uint64_t wanted =
      part.fraction ? api::MemorySize(*part.fraction).Of(for_shares) : part.memory_bytes;
  const uint64_t left = Less(for_shares, device.promised_bytes + device.borrowed_bytes);
  const bool nearly = left < wanted && wanted - left <= wanted / kSmallerBy;
  return nearly ? left / api::kMemoryStep * api::kMemoryStep : wanted;
}

}  // namespace

bool HasShare(const RuntimeContainer& container) {
  return std::ranges::any_of(
             container.cdi_devices,
             [](const std::string& name) { return name.starts_with(kDeviceClass); }) ||
         std::ranges::find(container.mount_targets, kShareMount) != container.mount_targets.end();
}

Result<std::optional<KaiPart>> KaiPartOf(const RuntimePod& pod, const RuntimeContainer& container) {
  if (!AnnotationOf(pod, kFraction) && !AnnotationOf(pod, kMemory)) return std::nullopt;
  if (HasShare(container)) return std::nullopt;
  const auto named = AnnotationOf(pod, kContainerName);
  if (named && *named != container.name) return std::nullopt;
  auto portion = VariableOf(container, kPortion);
  if (!portion) portion = VariableOf(container, kOldPortion);
  if (!portion) return std::nullopt;
  auto part = SizeOf(pod, *portion);
  if (!part) return std::unexpected(part.error());
  auto gpus = GpusOf(pod, container);
  if (!gpus) return std::unexpected(gpus.error());
  part->gpus = std::move(*gpus);
  return std::move(*part);
}

std::string ShareNameOfKaiPod(std::string_view pod_uid) {
  return std::string(kSharePrefix) + std::string(pod_uid);
}

std::optional<std::string> KaiPodOfShare(std::string_view share_name) {
  if (!share_name.starts_with(kSharePrefix)) return std::nullopt;
  share_name.remove_prefix(kSharePrefix.size());
  if (share_name.size() != kUidLength) return std::nullopt;
  for (size_t i = 0; i < share_name.size(); ++i) {
    const char letter = share_name[i];
    const bool dash = i == 8 || i == 13 || i == 18 || i == 23;
    const bool hex = (letter >= '0' && letter <= '9') || (letter >= 'a' && letter <= 'f');
    if (dash ? letter != '-' : !hex) return std::nullopt;
  }
  return std::string(share_name);
}

Result<api::ShareSpec> KaiShare(const KaiPart& part, const RuntimePod& pod,
                                const std::string& container,
                                const std::vector<api::DeviceStatus>& devices) {
  api::ShareSpec spec;
  spec.name = ShareNameOfKaiPod(pod.uid);
  if (!KaiPodOfShare(*spec.name)) {
    return Fail("bad_pod", "the UID of pod " + Describe(pod) + ", " + Quoted(pod.uid) +
                               ", is not of the form that the API server gives; was the pod made "
                               "by KAI's cluster?");
  }
  spec.token = std::string(kTokenPrefix) + pod.uid + "/" + container;
  spec.gpus = part.gpus;
  uint64_t memory = UINT64_MAX;
  Fraction compute = part.fraction.value_or(Fraction::One());
  for (const std::string& uuid : part.gpus) {
    const auto device = std::ranges::find(devices, uuid, &api::DeviceStatus::uuid);
    if (device == devices.end()) {
      return Fail("no_such_device", "KAI gave pod " + Describe(pod) + " part of " + uuid +
                                        ", which is no GPU of prorata's agent on this node; see "
                                        "`prorata gpus` there");
    }
    memory = std::min(memory, MemoryOn(part, *device));
    if (part.fraction) continue;
    // In exact parts, for KAI's hundredths are rounded up and may add up to more than the GPU.
    const double of_device = static_cast<double>(part.memory_bytes) /
                             static_cast<double>(std::max<uint64_t>(1, device->total_bytes));
    if (of_device * Fraction::kOne > part.accounted.ppm + kMemoryRoundingPpm) {
      return BadAnnotation(pod, kMemory, std::to_string(part.memory_bytes / kMiB),
                           "KAI bound the pod with " + FormatFraction(part.accounted) +
                               " of a GPU, and this is more of " + uuid +
                               "; delete the pod and make it anew to change it");
    }
    compute = std::min(compute, Fraction{static_cast<uint32_t>(of_device * Fraction::kOne)});
  }
  spec.memory = api::MemorySize(memory);
  spec.memory_request = spec.memory;
  spec.compute_request = compute;
  return spec;
}

}  // namespace prorata::kubernetes
