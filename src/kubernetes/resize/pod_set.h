#pragma once

// The pods of a node, as a list and a watch of the API server report them. Pure; one thread.

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "kubernetes/pods/wish.h"

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
  // Listed, new or changed. Errors: ReadPod's; nothing changed.
  Status Change(const nlohmann::json& pod);
  void Remove(const std::string& uid);
  // A list is complete: others are gone.
  void KeepOnly(const std::unordered_set<std::string>& uids);

  std::vector<PodView> WithClaims() const;

 private:
  std::map<std::string, PodView> pods_;  // by UID; those with claims
};

}  // namespace prorata::kubernetes
