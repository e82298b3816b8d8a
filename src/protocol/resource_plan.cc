#include "protocol/resource_plan.h"

#include <algorithm>

namespace prorata::protocol {
namespace {

const FileShare* Find(std::span<const FileShare> shares, std::string_view name) {
  for (const FileShare& share : shares) {
    if (share.name == name) return &share;
  }
  return nullptr;
}

// What the device promised, with `terms` in the place of `now`.
void Replace(DeviceStatus& device, const ShareTerms& now, const ShareTerms& terms) {
  device.promised_bytes += terms.memory_bytes - std::min(device.promised_bytes, now.memory_bytes);
  device.promised_request.ppm +=
      terms.compute_request.ppm - std::min(device.promised_request.ppm, now.compute_request.ppm);
}

// What the share gives up, taken at once; what it gains comes later.
ShareTerms Lowered(const ShareTerms& now, const ShareTerms& terms) {
  ShareTerms lowered = now;
  lowered.memory_bytes = std::min(now.memory_bytes, terms.memory_bytes);
  lowered.compute_request = std::min(now.compute_request, terms.compute_request);
  return lowered;
}

Status CheckNew(const ResourceClient& client, const DeviceStatus& device,
                std::span<const std::string> names) {
  ShareSpec spec;
  spec.name = client.id;
  spec.memory_bytes = client.memory_bytes;
  spec.compute_request = client.request;
  spec.compute_limit = client.limit;
  const auto valid = ValidateShare(spec, {&device, 1}, names);
  if (!valid) return std::unexpected(valid.error());
  return {};
}

Status CheckKept(const ResourceClient& client, const ShareTerms& now, const DeviceStatus& device) {
  ShareChange change;
  change.memory_bytes = client.memory_bytes;
  change.compute_request = client.request;
  change.compute_limit = client.limit;
  const auto valid = ValidateChange(change, {&now, 1}, {&device, 1});
  if (!valid) return std::unexpected(valid.error());
  return {};
}

}  // namespace

ShareTerms TermsOf(const ResourceClient& client, const ShareTerms& now) {
  ShareTerms terms = now;
  terms.memory_bytes = client.memory_bytes;
  terms.compute_request = client.request;
  terms.compute_limit = client.limit;
  return terms;
}

Status CheckResourcePlan(std::string_view file, std::span<const ResourceClient> clients,
                         const DeviceStatus& device, std::span<const FileShare> former,
                         std::span<const std::string> others) {
  DeviceStatus after = device;
  std::vector<std::string> names(others.begin(), others.end());
  for (const FileShare& share : former) {
    const auto line =
        std::find_if(clients.begin(), clients.end(),
                     [&](const ResourceClient& client) { return client.id == share.name; });
    const bool stays = line != clients.end() || share.has_members;
    if (stays) names.push_back(share.name);
    if (line != clients.end()) {
      Replace(after, share.terms, Lowered(share.terms, TermsOf(*line, share.terms)));
    } else if (!stays) {
      Replace(after, share.terms, {});
      after.shares -= std::min(after.shares, 1u);
    }
  }
  for (const ResourceClient& client : clients) {
    const FileShare* before = Find(former, client.id);
    const ShareTerms now =
        before != nullptr ? Lowered(before->terms, TermsOf(client, before->terms)) : ShareTerms{};
    const Status ok =
        before != nullptr ? CheckKept(client, now, after) : CheckNew(client, after, names);
    if (!ok) {
      return Fail("resource_config",
                  AtLine(file, client.line, "'" + client.id + "': " + ok.error().message));
    }
    Replace(after, now, TermsOf(client, now));
    if (before != nullptr) continue;
    ++after.shares;
    names.push_back(client.id);
  }
  return {};
}

}  // namespace prorata::protocol
