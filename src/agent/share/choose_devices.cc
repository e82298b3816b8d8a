#include "agent/share/choose_devices.h"

#include <algorithm>

#include "agent/share/memory_fit.h"
#include "policy/placement/linked_devices.h"
#include "shm/limits_file.h"

namespace prorata::agent {
namespace {

static_assert(api::kMaxGpusOfShare == shm::kMaxDevices);

bool Names(const std::string& asked, const api::DeviceStatus& device) {
  return asked == device.uuid || asked == std::to_string(device.index);
}

std::string Count(size_t count) { return std::to_string(count) + (count == 1 ? " GPU" : " GPUs"); }

Result<size_t> FindDevice(const std::string& asked, std::span<const api::DeviceStatus> devices) {
  std::string known;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (Names(asked, devices[i])) return i;
    known += (known.empty() ? "" : ", ") + std::to_string(devices[i].index) + " (" +
             devices[i].uuid + ", " + devices[i].name + ")";
  }
  return Fail("unknown_gpu", "there is no GPU '" + asked +
                                 "' here; the GPUs are: " + (known.empty() ? "none" : known));
}

Result<std::vector<size_t>> FindNamed(const api::ShareSpec& spec,
                                      std::span<const api::DeviceStatus> devices) {
  if (spec.gpu_count && *spec.gpu_count != spec.gpus.size()) {
    return Fail("gpu_count", "the share asks for " + Count(*spec.gpu_count) + " and names " +
                                 std::to_string(spec.gpus.size()) +
                                 "; give either their number or their names");
  }
  std::vector<size_t> found;
  for (const std::string& asked : spec.gpus) {
    auto device = FindDevice(asked, devices);
    if (!device) return std::unexpected(device.error());
    if (std::find(found.begin(), found.end(), *device) != found.end()) {
      return Fail("gpu_twice", "the share names " + Describe(devices[*device]) +
                                   " twice, the second time as '" + asked +
                                   "'; it holds each GPU once, so name each once");
    }
    found.push_back(*device);
  }
  return found;
}

// The higher, the better for a share on both.
uint32_t RankOf(const DeviceLink& link) {
  const auto rank = static_cast<uint32_t>(link.kind);
  return link.kind == LinkClass::kNvlink ? rank + std::min(link.nvlinks, 1000u) : rank;
}

std::vector<uint32_t> RanksOf(std::span<const api::DeviceStatus> devices) {
  const size_t count = devices.size();
  std::vector<uint32_t> ranks(count * count);
  for (size_t a = 0; a < count; ++a) {
    for (size_t b = 0; b < count; ++b) {
      // Of what the two say of each other the worse, should NVML contradict itself.
      const bool known = b < devices[a].links.size() && a < devices[b].links.size();
      if (known && a != b) {
        ranks[a * count + b] = std::min(RankOf(devices[a].links[b]), RankOf(devices[b].links[a]));
      }
    }
  }
  return ranks;
}

}  // namespace

std::string OtherShares(uint64_t count) {
  return std::to_string(count) + (count == 1 ? " other share" : " other shares");
}

std::string Describe(const api::DeviceStatus& device) {
  return "GPU " + std::to_string(device.index) + " (" + device.uuid + ")";
}

Result<std::vector<size_t>> ChooseDevices(
    const api::ShareSpec& spec, std::span<const api::DeviceStatus> devices,
    const std::function<Status(const api::DeviceStatus&)>& fits) {
  const size_t count = spec.gpus.empty() ? spec.gpu_count.value_or(1) : spec.gpus.size();
  if (count == 0 || count > api::kMaxGpusOfShare) {
    return Fail("gpu_count", "the share asks for " + Count(count) + "; a share holds 1 to " +
                                 std::to_string(api::kMaxGpusOfShare));
  }
  if (!spec.gpus.empty()) return FindNamed(spec, devices);
  if (devices.empty())
    return Fail("unknown_gpu", "this machine has no GPU that the agent knows of");
  if (count > devices.size()) {
    return Fail("gpu_count", "the share asks for " + Count(count) + ", but this machine has only " +
                                 std::to_string(devices.size()) + "; ask for no more");
  }
  if (!spec.on.empty()) {
    return Fail("gpu_not_in_share", "the share has terms for GPU '" + spec.on.front().gpu +
                                        "' alone, but leaves it to the agent which GPUs it gets; "
                                        "name them with --gpu");
  }
  std::vector<policy::PlacementDevice> places;
  std::vector<Error> refusals;
  for (const api::DeviceStatus& device : devices) {
    const Status ok = fits(device);
    if (!ok) refusals.push_back(ok.error());
    places.push_back({ok.has_value(), MemoryLeft(device)});
  }
  auto chosen = policy::ChooseLinked(places, RanksOf(devices), count);
  if (chosen) return *chosen;
  // Too few: the first one's reason is reported.
  if (count == 1) return std::unexpected(refusals.front());
  return Fail(refusals.front().code,
              "the share asks for " + Count(count) + ", but only " +
                  std::to_string(devices.size() - refusals.size()) + " of the " +
                  std::to_string(devices.size()) +
                  " of this machine can take it: " + refusals.front().message);
}

Result<std::vector<api::TermsOnGpu>> MatchTerms(std::span<const api::TermsOnGpu> on,
                                                std::span<const size_t> own,
                                                std::span<const api::DeviceStatus> devices) {
  std::vector<api::TermsOnGpu> matched(own.size());
  for (const api::TermsOnGpu& terms : on) {
    const auto at = std::find_if(own.begin(), own.end(),
                                 [&](size_t i) { return Names(terms.gpu, devices[i]); });
    if (at == own.end()) {
      std::string known;
      for (const size_t i : own) known += (known.empty() ? "" : ", ") + Describe(devices[i]);
      return Fail("gpu_not_in_share", "there are terms for GPU '" + terms.gpu +
                                          "', which is none of the share's; it has " + known);
    }
    api::TermsOnGpu& into = matched[static_cast<size_t>(at - own.begin())];
    if (!into.gpu.empty()) {
      return Fail("gpu_twice", "there are terms for " + Describe(devices[*at]) +
                                   " twice, the second time as GPU '" + terms.gpu +
                                   "'; say all of it once");
    }
    into = terms;
  }
  return matched;
}

}  // namespace prorata::agent
