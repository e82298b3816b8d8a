#pragma once

// Whether a share's memory can be had on a device: the arithmetic of promises, apart from what
// policy::MemoryAdmission says of shares that wait (which can only say "not now"). One place for
// new shares, changed ones, and those that wait to be made. Pure; thread-safe.
//
// A share has a request, which is set aside for it, and a limit. Of a device
//   1. all requests add up to at most what programs outside prorata leave;
//   2. a new share's request is free now: not borrowed by shares that hold more than they
//   requested;
//   3. no limit is beyond what the device could give at most: what the others' requests leave;
//   4. the limits of shares that did not say what to set aside add up to at most the agent's
//      --overcommit times what other programs leave.

#include <cstdint>

#include "api/control.h"
#include "base/result.h"

namespace prorata::agent {

// What of the memory a share is to have was said, on one device, in bytes.
struct MemoryAsked {
  std::optional<uint64_t> limit_bytes = {};    // absent: as much as it can have
  std::optional<uint64_t> request_bytes = {};  // absent: see SettleMemory
  bool guaranteed = false;                     // the request is the limit
};

struct MemoryTerms {
  uint64_t limit_bytes = 0;
  uint64_t request_bytes = 0;
  bool limit_said = true;  // false: it is all that there was
  // 4 is to be asked of it too: nobody said what is to be set aside, and the agent overcommits.
  bool by_ratio = false;
};

// Without a request the whole limit is set aside; nothing where the agent overcommits the device.
MemoryTerms SettleMemory(const MemoryAsked& asked, const api::DeviceStatus& device);

// What a ShareSpec or a ShareChange says of a device: of this one (`own`), or else of all.
template <typename Said>
MemoryAsked AskedOn(const Said& of_all, const api::TermsOnGpu& own,
                    const api::DeviceStatus& device) {
  const auto& limit = own.memory ? own.memory : of_all.memory;
  const auto& request = own.memory_request ? own.memory_request : of_all.memory_request;
  MemoryAsked asked;
  if (limit) asked.limit_bytes = limit->Of(device.total_bytes);
  if (request) asked.request_bytes = request->Of(device.total_bytes);
  return asked;
}

// What a new share would have of a device, by what it says.
MemoryTerms NewMemory(const api::ShareSpec& spec, const api::TermsOnGpu& own,
                      const api::DeviceStatus& device);

// Whether a share with these terms fits beside those on the device, now. What it has already
// (`before`, which is not in `device`) it may keep. "memory_zero", "limit_below_request",
// "memory_exceeded": the message says what was asked, on which device, what is there, and what to
// do.
Status CheckMemory(const MemoryTerms& terms, const api::DeviceStatus& device,
                   const MemoryTerms& before = {});

// The most memory that a share which says nothing of it would get.
uint64_t MemoryLeft(const api::DeviceStatus& device);

}  // namespace prorata::agent
