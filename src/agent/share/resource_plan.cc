#include "agent/share/resource_plan.h"
#include "agent/share/validate_share.h"

#include <algorithm>

#include "agent/share/memory_fit.h"

namespace prorata::agent {
namespace {

const FileShare* Find(std::span<const FileShare> shares, std::string_view name) {
  for (const FileShare& share : shares) {
    if (share.name == name) return &share;
  }
  return nullptr;
}

// What the device promised, with `terms` in the place of `now`.
void Replace(api::DeviceStatus& device, const api::ShareTerms& now, const api::ShareTerms& terms) {
  device.promised_bytes +=
      terms.memory_request_bytes - std::min(device.promised_bytes, now.memory_request_bytes);
  device.limit_bytes += terms.memory_bytes - std::min(device.limit_bytes, now.memory_bytes);
  device.promised_request.ppm +=
      terms.compute_request.ppm - std::min(device.promised_request.ppm, now.compute_request.ppm);
}

// What the share gives up, taken at once; what it gains comes later.
api::ShareTerms Lowered(const api::ShareTerms& now, const api::ShareTerms& terms) {
  api::ShareTerms lowered = now;
  lowered.memory_bytes = std::min(now.memory_bytes, terms.memory_bytes);
  lowered.memory_request_bytes = std::min(now.memory_request_bytes, terms.memory_request_bytes);
  lowered.compute_request = std::min(now.compute_request, terms.compute_request);
  return lowered;
}

Status CheckNew(const ResourceClient& client, const api::DeviceStatus& device,
                std::span<const std::string> names) {
  api::ShareSpec spec;
  spec.name = client.id;
  spec.memory = client.memory_bytes;
  if (client.memory_request_bytes) spec.memory_request = *client.memory_request_bytes;
  spec.compute_request = client.request;
  spec.compute_limit = client.limit;
  const auto valid = ValidateShare(spec, {&device, 1}, names);
  if (!valid) return std::unexpected(valid.error());
  return {};
}

Status CheckKept(const ResourceClient& client, const api::ShareTerms& now,
                 const api::DeviceStatus& device) {
  api::ShareChange change;
  change.memory = client.memory_bytes;
  const uint64_t request = TermsOf(client, now, device).memory_request_bytes;
  if (client.memory_request_bytes || request != now.memory_request_bytes) {
    change.memory_request = request;
  }
  change.compute_request = client.request;
  change.compute_limit = client.limit;
  const auto valid = ValidateChange(change, {&now, 1}, {&device, 1});
  if (!valid) return std::unexpected(valid.error());
  return {};
}

}  // namespace

api::ShareTerms TermsOf(const ResourceClient& client, const api::ShareTerms& now,
                        const api::DeviceStatus& device) {
  api::ShareTerms terms = now;
  terms.memory_bytes = client.memory_bytes;
  terms.memory_request_bytes =
      SettleMemory({client.memory_bytes, client.memory_request_bytes}, device).request_bytes;
  terms.compute_request = client.request;
  terms.compute_limit = client.limit;
  return terms;
}

Status CheckResourcePlan(std::string_view file, std::span<const ResourceClient> clients,
                         const api::DeviceStatus& device, std::span<const FileShare> former,
                         std::span<const std::string> others) {
  api::DeviceStatus after = device;
  std::vector<std::string> names(others.begin(), others.end());
  for (const FileShare& share : former) {
    const auto line =
        std::find_if(clients.begin(), clients.end(),
                     [&](const ResourceClient& client) { return client.id == share.name; });
    const bool stays = line != clients.end() || share.has_members;
    if (stays) names.push_back(share.name);
    if (line != clients.end()) {
      Replace(after, share.terms, Lowered(share.terms, TermsOf(*line, share.terms, device)));
    } else if (!stays) {
      Replace(after, share.terms, {});
      after.shares -= std::min(after.shares, 1u);
    }
  }
  for (const ResourceClient& client : clients) {
    const FileShare* before = Find(former, client.id);
    const api::ShareTerms now = before != nullptr
                                    ? Lowered(before->terms, TermsOf(client, before->terms, device))
                                    : api::ShareTerms{};
    const Status ok =
        before != nullptr ? CheckKept(client, now, after) : CheckNew(client, after, names);
    if (!ok) {
      return Fail("resource_config",
                  AtLine(file, client.line, "'" + client.id + "': " + ok.error().message));
    }
    Replace(after, now, TermsOf(client, now, device));
    if (before != nullptr) continue;
    ++after.shares;
    names.push_back(client.id);
  }
  return {};
}

}  // namespace prorata::agent
