#pragma once

// The policies that a simulated agent may have: prorata's own, and those to compare it with.

#include <memory>
#include <string_view>
#include <vector>

#include "policy/compute/lease_policy.h"

namespace prorata::simulation {

// default: prorata's. gemini: as its code is. gemini-least: the same, but that every quota is the
// least, the shortest quotas it can give. round-robin: equal slices.
std::vector<std::string_view> PolicyNames();

// Null: there is none of this name. Only prorata's knows an elastic ceiling.
std::unique_ptr<policy::LeasePolicy> MakePolicy(std::string_view name,
                                                Fraction elastic_ceiling = Fraction::One());

}  // namespace prorata::simulation
