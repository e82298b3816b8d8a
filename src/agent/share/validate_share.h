#pragma once

// Judging requests for shares, and changes of them. Pure; thread-safe.

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "api/control.h"
#include "base/result.h"

namespace prorata::agent {

struct ValidShare {
  struct Device {
    size_t device = 0;  // index in the list that was given
    api::ShareTerms terms;
  };
  std::vector<Device> devices;  // in the order in which the share's programs see them
};

// Judges a request for a share against the devices and shares there are, and settles what it left
// open (never its name). Every refusal names what was asked, on which GPU, what there is, and what
// to do.
Result<ValidShare> ValidateShare(const api::ShareSpec& spec,
                                 std::span<const api::DeviceStatus> devices,
                                 std::span<const std::string> names);
// Whether a request for a share may have come to a share on these devices with these terms, in the
// same order: what it left open may be anything. Of the request, what is said by a device.
bool MayBeOf(const api::ShareSpec& spec, std::span<const api::DeviceStatus> devices,
             std::span<const api::ShareTerms> terms);
// The codes of refusals that may pass when shares end: worth waiting in line for.
bool MayPass(const Error& refusal);
// A device as it would be without any share or other program: what cannot be had of it never fits.
api::DeviceStatus Emptied(api::DeviceStatus device);

// Judges a change of a share, whose present terms are `now`, on its devices (in the same order) as
// they are with the share on them. All of the change is good or none of it. A memory limit below
// what the share uses is no error: new allocations are refused until use has fallen. A memory
// request that was the whole limit follows it, where the change does not name it. Errors as for
// ValidateShare.
Result<std::vector<api::ShareTerms>> ValidateChange(const api::ShareChange& change,
                                                    std::span<const api::ShareTerms> now,
                                                    std::span<const api::DeviceStatus> devices);

}  // namespace prorata::agent
