#include "agent/share/memory_fit.h"

#include <algorithm>

#include "agent/config/overcommit.h"
#include "agent/share/choose_devices.h"
#include "base/bytes.h"

namespace prorata::agent {
namespace {

uint64_t Less(uint64_t bytes, uint64_t taken) { return bytes > taken ? bytes - taken : 0; }

// What programs outside prorata leave.
uint64_t There(const api::DeviceStatus& device) {
  return Less(device.total_bytes, device.foreign_bytes);
}

uint64_t NotSetAside(const api::DeviceStatus& device) {
  return Less(There(device), device.promised_bytes);
}

uint64_t FreeNow(const api::DeviceStatus& device) {
  return Less(NotSetAside(device), device.borrowed_bytes);
}

uint64_t LeftByRatio(const api::DeviceStatus& device) {
  const auto most = static_cast<uint64_t>(device.overcommit * static_cast<double>(There(device)));
  return Less(most, device.limit_bytes);
}

// "8 GiB of its 16 GiB are promised to 2 other shares and 0 B are used outside prorata"
std::string WhatIsTaken(const api::DeviceStatus& device) {
  return FormatBytes(device.promised_bytes) + " of its " + FormatBytes(device.total_bytes) +
         " are promised to " + OtherShares(device.shares) + " and " +
         FormatBytes(device.foreign_bytes) + " are used outside prorata";
}

// What to ask for where that is more than the device could ever give.
std::string AtMost(const api::DeviceStatus& device) {
  const uint64_t bytes = NotSetAside(device);
  return bytes == 0 ? "; end or `prorata update` a share there"
                    : "; ask for at most " + FormatBytes(bytes);
}

std::unexpected<Error> Exceeded(std::string message) {
  return Fail("memory_exceeded", std::move(message));
}

Status CheckSetAside(const MemoryTerms& terms, const api::DeviceStatus& device) {
  const std::string asks =
      !terms.limit_said && terms.limit_bytes == api::kMemoryStep
          ? "a share without --memory takes all that is left, but " + Describe(device)
          : "the share " +
                std::string(terms.request_bytes == terms.limit_bytes ? "asks for " : "requests ") +
                FormatBytes(terms.request_bytes) + " of memory, but " + Describe(device);
  if (terms.request_bytes > device.total_bytes && NotSetAside(device) == device.total_bytes) {
    return Exceeded(asks + " has only " + FormatBytes(device.total_bytes) + " in all" +
                    AtMost(device));
  }
  if (terms.request_bytes > NotSetAside(device)) {
    return Exceeded(asks + " has only " + FormatBytes(NotSetAside(device)) +
                    " left: " + WhatIsTaken(device) +
                    (terms.request_bytes > device.total_bytes
                         ? AtMost(device)
                         : "; ask for less, have less guaranteed (--memory-request), or end or "
                           "`prorata update` a share there"));
  }
  if (terms.request_bytes > FreeNow(device)) {
    return Exceeded(asks + " has only " + FormatBytes(FreeNow(device)) +
                    " left now: " + WhatIsTaken(device) + ", and shares hold " +
                    FormatBytes(device.borrowed_bytes) +
                    " beyond their requests; try again when they have freed it, or ask for less");
  }
  return {};
}

}  // namespace

MemoryTerms SettleMemory(const MemoryAsked& asked, const api::DeviceStatus& device) {
  auto all_of = [](uint64_t bytes) {
    return std::max(bytes / api::kMemoryStep * api::kMemoryStep, api::kMemoryStep);
  };
  MemoryTerms terms{.limit_said = asked.limit_bytes.has_value()};
  if (asked.request_bytes) {
    terms.request_bytes = *asked.request_bytes;
    terms.limit_bytes =
        asked.limit_bytes.value_or(std::max(all_of(NotSetAside(device)), terms.request_bytes));
  } else if (asked.guaranteed || device.overcommit <= 1) {
    terms.limit_bytes = terms.request_bytes = asked.limit_bytes.value_or(all_of(FreeNow(device)));
  } else {
    terms.by_ratio = true;
    terms.limit_bytes = asked.limit_bytes.value_or(all_of(MemoryLeft(device)));
  }
  return terms;
}

MemoryTerms NewMemory(const api::ShareSpec& spec, const api::TermsOnGpu& own,
                      const api::DeviceStatus& device) {
  MemoryAsked asked = AskedOn(spec, own, device);
  asked.guaranteed = spec.guaranteed;
  return SettleMemory(asked, device);
}

Status CheckMemory(const MemoryTerms& terms, const api::DeviceStatus& device,
                   const MemoryTerms& before) {
  if (terms.limit_bytes == 0) {
    return Fail("memory_zero", "the share asks for no memory at all of " + Describe(device) +
                                   ", with which no program can run; give it some, or leave "
                                   "--memory out for all that is free");
  }
  if (terms.limit_said && terms.limit_bytes < api::kMinShareBytes &&
      terms.limit_bytes != before.limit_bytes) {
    return Fail("memory_too_small",
                "the share asks for " + FormatBytes(terms.limit_bytes) + " of " + Describe(device) +
                    ", and no program runs in less than " + FormatBytes(api::kMinShareBytes) +
                    ": its CUDA context alone takes more; ask for more");
  }
  if (terms.request_bytes > terms.limit_bytes) {
    return Fail("limit_below_request",
                "the memory limit on " + Describe(device) + ", " + FormatBytes(terms.limit_bytes) +
                    ", is below the memory request, " + FormatBytes(terms.request_bytes) +
                    "; raise --memory or lower --memory-request");
  }
  if (terms.request_bytes > before.request_bytes) {
    if (auto ok = CheckSetAside(terms, device); !ok) return ok;
  }
  if (terms.limit_bytes <= before.limit_bytes) return {};
  if (terms.limit_bytes > NotSetAside(device)) {
    return Exceeded("the share asks for up to " + FormatBytes(terms.limit_bytes) +
                    " of memory, but " + Describe(device) + " could never give it more than " +
                    FormatBytes(NotSetAside(device)) + ": " + WhatIsTaken(device) +
                    "; ask for a lower limit");
  }
  if (terms.by_ratio && terms.limit_bytes > LeftByRatio(device)) {
    return Exceeded("the share asks for up to " + FormatBytes(terms.limit_bytes) +
                    " of memory, but " + Describe(device) + " has only " +
                    FormatBytes(LeftByRatio(device)) + " left: the limits of " +
                    OtherShares(device.shares) + " add up to " + FormatBytes(device.limit_bytes) +
                    ", and the agent (--overcommit) allows no more than " +
                    FormatRatio(device.overcommit) + " times the " + FormatBytes(There(device)) +
                    " that shares can hold; ask for less, or say with --memory-request how much "
                    "is guaranteed");
  }
  return {};
}

uint64_t MemoryLeft(const api::DeviceStatus& device) {
  if (device.overcommit <= 1) return FreeNow(device);
  return std::min(NotSetAside(device), LeftByRatio(device));
}

}  // namespace prorata::agent
