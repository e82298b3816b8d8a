#pragma once

// Whether what a resource-config.txt asks for can be had on its device, as a whole: its lines are
// judged together, so that what one gives up another may take.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "agent/config/resource_config.h"
#include "api/control.h"

namespace prorata::agent {

// A share of the device that the file asked for before.
struct FileShare {
  std::string name;
  api::ShareTerms terms;
  bool has_members = false;  // without its line it keeps what it has until they are gone
};

// The share as its line says it: with as much memory set aside as for another share of the device
// where it does not say. Of what no line says (weight and so on) it keeps what it has.
api::ShareTerms TermsOf(const ResourceClient& client, const api::ShareTerms& now,
                        const api::DeviceStatus& device);

// `device` is as it is, with the `former` shares on it; `others` are the names of all other shares
// of the agent. "resource_config" with a message that begins with "FILE:LINE: ".
Status CheckResourcePlan(std::string_view file, std::span<const ResourceClient> clients,
                         const api::DeviceStatus& device, std::span<const FileShare> former,
                         std::span<const std::string> others);

}  // namespace prorata::agent
