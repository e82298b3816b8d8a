#include "sim/node/policies.h"

#include "policy/compute/time_sharing.h"
#include "sim/policies/gemini_tokens.h"
#include "sim/policies/round_robin.h"

namespace prorata::simulation {

std::vector<std::string_view> PolicyNames() {
  return {"default", "gemini", "gemini-least", "round-robin"};
}

std::unique_ptr<policy::LeasePolicy> MakePolicy(std::string_view name, Fraction elastic_ceiling) {
  if (name == "default") {
    policy::TimeSharingOptions options;
    options.elastic_ceiling = elastic_ceiling;
    return std::make_unique<policy::TimeSharing>(options);
  }
  if (name == "round-robin") return std::make_unique<policy::RoundRobin>();
  if (name == "gemini" || name == "gemini-least") {
    policy::GeminiOptions options;
    options.always_least_quota = name == "gemini-least";
    return std::make_unique<policy::GeminiTokens>(options);
  }
  return nullptr;
}

}  // namespace prorata::simulation
