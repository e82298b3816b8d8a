#include "sim/core/model/rules.h"

namespace prorata::simgpu {
namespace {

constexpr std::string_view kNames[] = {
#define X(constant, name) name,
    PRORATA_SIM_RULES(X)
#undef X
};

}  // namespace

Rule RuleNamed(std::string_view name) {
  size_t index = 0;
  while (index < std::size(kNames) && kNames[index] != name) ++index;
  return static_cast<Rule>(index);
}

std::string_view NameOf(Rule rule) { return kNames[static_cast<size_t>(rule)]; }

}  // namespace prorata::simgpu
