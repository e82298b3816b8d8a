#pragma once

// The pods of a node, as a list and a watch of the API server report them. Pure; one thread.

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "kubernetes/resize/wish.h"

namespace prorata::kubernetes {

struct PodClaim {
  std::string entry;  // of spec.resourceClaims
  std::string name;   // of the ResourceClaim; empty: it is not made yet
};

struct PodView {
  std::string name_space;
  std::string name;
  std::string uid;
  bool running = false;
  Annotations annotations;
  std::vector<PodClaim> claims;
};

// "bad_pod": the object is no pod of the API's.
Result<PodView> ReadPod(const nlohmann::json& pod);

class PodSet {
 public:
  // The answer to a list; what was known before is forgotten.
  Status Replace(const nlohmann::json& list);
  // An event of a watch. "gone": the watch is of no use any more, and the pods are to be listed.
  Status Apply(const nlohmann::json& event);

  // Where a watch goes on.
  const std::string& resource_version() const { return resource_version_; }
  std::vector<PodView> WithClaims() const;

 private:
  std::map<std::string, PodView> pods_;  // by UID; those with claims
  std::string resource_version_;
};

}  // namespace prorata::kubernetes
