#include "agent/devices.h"

#include <algorithm>
#include <string>

#include "base/bytes.h"

namespace prorata::agent {
namespace {

constexpr size_t kRemembered = 8;

}  // namespace

Devices::Devices(driver::Nvml& nvml) : nvml_(nvml), learned_(nvml.Devices().size()) {}

std::optional<size_t> Devices::Find(std::string_view uuid) const {
  for (size_t i = 0; i < count(); ++i) {
    if ((*this)[i].uuid == uuid) return i;
  }
  return std::nullopt;
}

Result<size_t> Devices::Named(std::string_view gpu, std::string_view option) const {
  if (const auto device = Find(gpu)) return *device;
  for (size_t i = 0; i < count(); ++i) {
    if (std::to_string(i) == gpu) return i;
  }
  // No agent runs that `prorata gpus` could ask.
  return Fail("unknown_gpu", std::string(option) + ": there is no GPU '" + std::string(gpu) +
                                 "' here; `nvidia-smi -L` lists them");
}

Result<Devices::ByProcess> Devices::Processes(size_t device) {
  auto list = nvml_.Processes(device);
  if (!list) return std::unexpected(list.error());
  ByProcess by_process;
  for (const driver::NvmlProcess& process : *list) by_process[process.pid] = process.used_bytes;
  return by_process;
}

uint64_t Devices::ContextOverhead(size_t device) const {
  const auto& learned = learned_[device];
  if (!learned.empty()) return *std::max_element(learned.begin(), learned.end());
  // About half a GiB on an H200, less on small devices.
  return std::clamp<uint64_t>((*this)[device].total_bytes / 64, 16 * kMiB, 512 * kMiB);
}

void Devices::LearnContextOverhead(size_t device, uint64_t bytes) {
  learned_[device].push_back(bytes);
  if (learned_[device].size() > kRemembered) learned_[device].pop_front();
}

}  // namespace prorata::agent
