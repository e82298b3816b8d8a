// Whether a share that is asked for can be had.

#include <algorithm>

#include "base/bytes.h"
#include "protocol/control.h"

namespace prorata::protocol {
namespace {

constexpr uint64_t kDefaultGranularity = 2 * kMiB;  // what a driver hands memory out in

std::string Describe(const DeviceStatus& device) {
  return "GPU " + std::to_string(device.index) + " (" + device.uuid + ")";
}

uint64_t MemoryLeft(const DeviceStatus& device) {
  const uint64_t taken = device.promised_bytes + device.foreign_bytes;
  return device.total_bytes > taken ? device.total_bytes - taken : 0;
}

uint32_t RequestLeft(const DeviceStatus& device) {
  return Fraction::kOne - std::min(Fraction::kOne, device.promised_request.ppm);
}

Status CheckMemory(const ShareSpec& spec, const DeviceStatus& device) {
  const uint64_t left = MemoryLeft(device);
  const std::string taken = FormatBytes(device.promised_bytes) + " of its " +
                            FormatBytes(device.total_bytes) + " are promised to " +
                            std::to_string(device.shares) + " shares and " +
                            FormatBytes(device.foreign_bytes) + " are used outside prorata";
  if (!spec.memory_bytes) {
    if (left >= kDefaultGranularity) return {};
    return Fail("memory_exceeded", Describe(device) + " has no memory left for another share: " +
                                       taken + "; end a share, or give each its --memory");
  }
  if (*spec.memory_bytes <= left) return {};
  return Fail("memory_exceeded", "the share asks for " + FormatBytes(*spec.memory_bytes) +
                                     " of memory, but " + Describe(device) + " has only " +
                                     FormatBytes(left) + " left: " + taken);
}

Status CheckTerms(const ShareTerms& terms) {
  if (terms.compute_request.ppm > Fraction::kOne || terms.compute_limit.ppm > Fraction::kOne) {
    return Fail("bad_fraction", "a request or limit above 1 is more than a GPU");
  }
  if (terms.compute_limit.ppm == 0) {
    return Fail("bad_fraction", "a compute limit of 0 would never let the share run");
  }
  if (terms.compute_limit < terms.compute_request) {
    return Fail("limit_below_request", "the compute limit, " + FormatFraction(terms.compute_limit) +
                                           ", is below the request, " +
                                           FormatFraction(terms.compute_request));
  }
  if (terms.weight < 1 || terms.weight > kMaxWeight) {
    return Fail("bad_weight", "a weight is from 1 to " + std::to_string(kMaxWeight));
  }
  return {};
}

Status CheckRequest(const ShareSpec& spec, const DeviceStatus& device) {
  if (spec.compute_request.ppm <= RequestLeft(device)) return {};
  return Fail("request_exceeded",
              "the share requests " + FormatFraction(spec.compute_request) + " of " +
                  Describe(device) + ", but only " + FormatFraction({RequestLeft(device)}) +
                  " is left: the requests of its " + std::to_string(device.shares) +
                  " shares add up to " + FormatFraction(device.promised_request) +
                  "; ask for less, or for less request and a higher --compute-limit");
}

Result<size_t> FindDevice(const std::string& asked, std::span<const DeviceStatus> devices) {
  std::string known;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (asked == devices[i].uuid || asked == std::to_string(devices[i].index)) return i;
    known += (known.empty() ? "" : ", ") + std::to_string(devices[i].index) + " (" +
             devices[i].uuid + ", " + devices[i].name + ")";
  }
  return Fail("unknown_gpu", "there is no GPU '" + asked +
                                 "' here; the GPUs are: " + (known.empty() ? "none" : known));
}

// Where a share goes that names no GPU: where it fits, and of those where most memory is left.
Result<size_t> ChooseDevice(const ShareSpec& spec, std::span<const DeviceStatus> devices) {
  if (spec.gpu) return FindDevice(*spec.gpu, devices);
  if (devices.empty())
    return Fail("unknown_gpu", "this machine has no GPU that the agent knows of");
  size_t best = devices.size();
  for (size_t i = 0; i < devices.size(); ++i) {
    if (!CheckMemory(spec, devices[i]) || !CheckRequest(spec, devices[i])) continue;
    if (best == devices.size() || MemoryLeft(devices[i]) > MemoryLeft(devices[best])) best = i;
  }
  return best == devices.size() ? 0 : best;  // nowhere: the first one's error is told
}

}  // namespace

Status ValidateShareName(std::string_view name) {
  auto bad = [name](std::string_view why) {
    return Fail("bad_name", "'" + std::string(name.substr(0, 80)) +
                                "' cannot be the name of a share: " + std::string(why));
  };
  if (name.empty()) return bad("it is empty");
  if (name.size() > kMaxShareNameLength) return bad("it is longer than 63 characters");
  if (name.front() == '-') return bad("it begins with '-'");
  size_t part = 0;  // where the part between slashes began
  for (size_t i = 0; i <= name.size(); ++i) {
    const char c = i < name.size() ? name[i] : '/';
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '.' || c == '_' || c == '-' || c == '/';
    if (!plain) return bad("only letters, digits and . _ - / are allowed");
    if (c != '/') continue;
    const std::string_view text = name.substr(part, i - part);
    if (text.empty() || text == "." || text == "..") {
      return bad("a part between slashes is empty, '.' or '..'");
    }
    part = i + 1;
  }
  return {};
}

std::string ShareFolder(std::string_view name) {
  std::string folder(name);
  std::replace(folder.begin(), folder.end(), '/', '+');
  return folder;
}

Result<ValidShare> ValidateShare(const ShareSpec& spec, std::span<const DeviceStatus> devices,
                                 std::span<const std::string> names) {
  if (spec.name) {
    if (auto ok = ValidateShareName(*spec.name); !ok) return std::unexpected(ok.error());
    if (std::find(names.begin(), names.end(), *spec.name) != names.end()) {
      return Fail("name_in_use", "a share named '" + *spec.name +
                                     "' is there already; choose another --name, or none");
    }
  }
  if (names.size() >= kMaxShares) {
    return Fail("too_many_shares", "the agent holds " + std::to_string(names.size()) +
                                       " shares, which is all it can; end one first");
  }
  if (auto ok = CheckTerms({0, spec.compute_request, spec.compute_limit, spec.weight}); !ok) {
    return std::unexpected(ok.error());
  }
  auto device = ChooseDevice(spec, devices);
  if (!device) return std::unexpected(device.error());
  const DeviceStatus& chosen = devices[*device];
  if (auto ok = CheckMemory(spec, chosen); !ok) return std::unexpected(ok.error());
  if (auto ok = CheckRequest(spec, chosen); !ok) return std::unexpected(ok.error());
  const uint64_t all = MemoryLeft(chosen) / kDefaultGranularity * kDefaultGranularity;
  return ValidShare{*device, spec.memory_bytes.value_or(all)};
}

Result<ShareTerms> ValidateChange(const ShareChange& change, const ShareTerms& now,
                                  const DeviceStatus& device) {
  const ShareTerms terms{change.memory_bytes.value_or(now.memory_bytes),
                         change.compute_request.value_or(now.compute_request),
                         change.compute_limit.value_or(now.compute_limit),
                         change.weight.value_or(now.weight)};
  if (auto ok = CheckTerms(terms); !ok) return std::unexpected(ok.error());
  // As for a new share on the device without this one. Less than before is always to be had, also
  // where programs outside prorata took what was promised.
  DeviceStatus others = device;
  others.promised_bytes -= std::min(others.promised_bytes, now.memory_bytes);
  others.promised_request.ppm -= std::min(others.promised_request.ppm, now.compute_request.ppm);
  others.shares -= std::min(others.shares, 1u);
  ShareSpec spec;
  spec.memory_bytes = terms.memory_bytes;
  spec.compute_request = terms.compute_request;
  if (terms.memory_bytes > now.memory_bytes) {
    if (auto ok = CheckMemory(spec, others); !ok) return std::unexpected(ok.error());
  }
  if (now.compute_request < terms.compute_request) {
    if (auto ok = CheckRequest(spec, others); !ok) return std::unexpected(ok.error());
  }
  return terms;
}

}  // namespace prorata::protocol
