#include "agent/node/device_terms.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "base/fraction.h"

namespace prorata::agent {
namespace {

// f(device) for the one that is named, or for each where none is.
template <typename F>
Status ForEachNamed(const Devices& devices, const std::string& gpu, std::string_view option, F f) {
  if (!gpu.empty()) {
    const auto device = devices.Named(gpu, option);
    if (!device) return std::unexpected(device.error());
    f(*device);
    return {};
  }
  for (size_t device = 0; device < devices.count(); ++device) f(device);
  return {};
}

bool HasSharesOn(const SavedState& saved, const std::string& uuid) {
  return std::ranges::any_of(saved.shares, [&](const SavedShare& share) {
    return std::ranges::any_of(share.config.devices,
                               [&](const DeviceOfShare& on) { return on.uuid == uuid; });
  });
}

}  // namespace

DeviceTerms::DeviceTerms(const Devices& devices, Leases& leases, std::vector<Overcommit> overcommit,
                         std::vector<ElasticCeiling> elastic_ceilings)
    : devices_(devices),
      leases_(leases),
      overcommit_(std::move(overcommit)),
      elastic_ceilings_(std::move(elastic_ceilings)),
      ratios_(devices.count(), 1) {}

Status DeviceTerms::Adopt(const SavedState& saved) {
  if (auto ok = AdoptOvercommit(saved); !ok) return ok;
  return AdoptElasticCeilings(saved);
}

Status DeviceTerms::AdoptOvercommit(const SavedState& saved) {
  std::map<size_t, double> reported;
  for (const Overcommit& over : overcommit_) {
    if (auto ok = ForEachNamed(devices_, over.gpu, "--overcommit",
                               [&](size_t device) { reported[device] = over.ratio; });
        !ok) {
      return ok;
    }
  }
  for (size_t device = 0; device < devices_.count(); ++device) {
    const std::string& uuid = devices_[device].uuid;
    if (reported.contains(device)) {
      ratios_[device] = reported[device];
    } else if (HasSharesOn(saved, uuid) && saved.overcommit.contains(uuid)) {
      ratios_[device] = saved.overcommit.at(uuid);
    }
    if (ratios_[device] > 1) {
      spdlog::info("GPU {}: up to {} times its memory is promised", device,
                   FormatRatio(ratios_[device]));
    }
  }
  return {};
}

Status DeviceTerms::AdoptElasticCeilings(const SavedState& saved) {
  std::map<size_t, Fraction> reported;
  for (const ElasticCeiling& ceiling : elastic_ceilings_) {
    if (auto ok = ForEachNamed(devices_, ceiling.gpu, "--elastic-ceiling",
                               [&](size_t device) { reported[device] = ceiling.ceiling; });
        !ok) {
      return ok;
    }
  }
  for (size_t device = 0; device < devices_.count(); ++device) {
    const std::string& uuid = devices_[device].uuid;
    Fraction ceiling = Fraction::One();
    const auto before = saved.elastic_ceiling_ppm.find(uuid);
    if (HasSharesOn(saved, uuid) && before != saved.elastic_ceiling_ppm.end())
      ceiling = {before->second};
    if (reported.contains(device)) ceiling = reported[device];
    if (ceiling < Fraction::One()) {
      spdlog::info("GPU {}: above their requests, shares use up to {} of its time together", device,
                   FormatFraction(ceiling));
    }
    leases_.SetElasticCeiling(device, ceiling);
  }
  return {};
}

void DeviceTerms::Save(SavedState* state) const {
  for (size_t device = 0; device < devices_.count(); ++device) {
    const std::string& uuid = devices_[device].uuid;
    if (ratios_[device] > 1) state->overcommit[uuid] = ratios_[device];
    const Fraction ceiling = leases_.elastic_ceiling(device);
    if (ceiling < Fraction::One()) state->elastic_ceiling_ppm[uuid] = ceiling.ppm;
  }
}

}  // namespace prorata::agent
