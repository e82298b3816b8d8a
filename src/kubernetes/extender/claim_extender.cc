#include "kubernetes/extender/claim_extender.h"

#include <spdlog/spdlog.h>

#include <nlohmann/json.hpp>

#include "kubernetes/dra/names.h"
#include "kubernetes/extender/protocol.h"

namespace prorata::kubernetes {

using nlohmann::json;

ClaimExtender::ClaimExtender(KubeClient& client)
    : slices_(client,
              std::string("/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.driver%3D") +
                  kDriverName,
              "the cluster's ResourceSlices",
              {[this](const json& slice) {
                 const std::lock_guard lock(mutex_);
                 account_.SetSlice(slice);
               },
               [this](const json& slice) {
                 const std::lock_guard lock(mutex_);
                 account_.RemoveSlice(slice);
               },
               [this](const auto& uids) {
                 const std::lock_guard lock(mutex_);
                 account_.KeepOnlySlices(uids);
                 slices_listed_ = true;
               }}),
      claims_(client, "/apis/resource.k8s.io/v1/resourceclaims", "the cluster's ResourceClaims",
              {[this](const json& claim) {
                 const std::lock_guard lock(mutex_);
                 account_.SetClaim(claim);
               },
               [this](const json& claim) {
                 const std::lock_guard lock(mutex_);
                 account_.RemoveClaim(claim.at("metadata").at("uid"));
               },
               [this](const auto& uids) {
                 const std::lock_guard lock(mutex_);
                 account_.KeepOnlyClaims(uids);
                 claims_listed_ = true;
                 const auto counts = account_.counts();
                 spdlog::info("{} claims for GPUs on {} nodes", counts.claims, counts.nodes);
               }}) {}

bool ClaimExtender::Ready() {
  const std::lock_guard lock(mutex_);
  return slices_listed_ && claims_listed_;
}

Result<std::string> ClaimExtender::Answer(std::string_view path, std::string_view body) {
  if (path != "/prioritize") return Fail("not_found", "there are /prioritize and /healthz");
  const auto args = ParseExtenderArgs(body);
  if (!args) {
    spdlog::warn("{}", args.error().message);
    return "[]";
  }
  const std::lock_guard lock(mutex_);
  try {
    return FormatPriorities(args->nodes, account_.Scores(args->pod, args->nodes, kMaxPriority));
  } catch (const json::exception& error) {
    spdlog::warn("a pod that is asked about cannot be read: {}", error.what());
    return "[]";
  }
}

}  // namespace prorata::kubernetes
