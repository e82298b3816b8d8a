#include "kubernetes/dra/claim_api.h"

#include "kubernetes/dra/names.h"

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

constexpr char kClaims[] = "/apis/resource.k8s.io/v1";
constexpr char kPage[] = "/resourceclaims?limit=500";

bool HasDeviceOf(const json& claim, const std::string& pool) {
  const json::json_pointer where("/status/allocation/devices/results");
  if (!claim.contains(where)) return false;
  for (const json& result : claim.at(where)) {
    if (result.value("driver", "") == kDriverName && result.value("pool", "") == pool) return true;
  }
  return false;
}

}  // namespace

Result<json> KubeClaimApi::Get(const ClaimReference& claim) {
  return client_.Get(std::string(kClaims) + "/namespaces/" + claim.name_space + "/resourceclaims/" +
                     claim.name);
}

Result<std::map<std::string, json>> KubeClaimApi::ListAllocated(const std::string& pool) {
  std::map<std::string, json> claims;
  std::string rest;
  do {
    const auto page =
        client_.Get(std::string(kClaims) + kPage + (rest.empty() ? "" : "&continue=" + rest));
    if (!page) return std::unexpected(page.error());
    try {
      for (const json& claim : page->at("items")) {
        if (HasDeviceOf(claim, pool)) claims[claim.at("metadata").at("uid")] = claim;
      }
      rest = page->at("metadata").value("continue", "");
    } catch (const json::exception& error) {
      return Fail("api_error", std::string("the API server's list of claims: ") + error.what());
    }
  } while (!rest.empty());
  return claims;
}

}  // namespace prorata::kubernetes
