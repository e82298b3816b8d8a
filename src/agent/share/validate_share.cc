#include "agent/share/validate_share.h"

#include <algorithm>

#include "agent/share/choose_devices.h"
#include "agent/share/memory_fit.h"
#include "base/bytes.h"
#include "base/duration.h"

namespace prorata::agent {
namespace {

uint32_t RequestLeft(const api::DeviceStatus& device) {
  return Fraction::kOne - std::min(Fraction::kOne, device.promised_request.ppm);
}

// `terms` with what `from` says in its place, but for the memory.
template <typename From>
api::ShareTerms Changed(const api::ShareTerms& terms, const From& from) {
  return {terms.memory_bytes,
          from.compute_request.value_or(terms.compute_request),
          from.compute_limit.value_or(terms.compute_limit),
          from.weight.value_or(terms.weight),
          terms.memory_request_bytes,
          from.priority.value_or(terms.priority),
          from.yield_within_ns.value_or(terms.yield_within_ns)};
}

// `where` says on which GPU, if that is known.
Status CheckTerms(const api::ShareTerms& terms, const std::string& where) {
  if (terms.compute_request.ppm > Fraction::kOne || terms.compute_limit.ppm > Fraction::kOne) {
    return Fail("bad_fraction",
                "a compute request or limit above 1" + where + " is more than a GPU");
  }
  if (terms.compute_limit.ppm == 0) {
    return Fail("bad_fraction", "a compute limit of 0" + where + " would never let the share run");
  }
  if (terms.compute_limit < terms.compute_request) {
    return Fail("limit_below_request",
                "the compute limit" + where + ", " + FormatFraction(terms.compute_limit) +
                    ", is below the request, " + FormatFraction(terms.compute_request) +
                    "; raise --compute-limit or lower --compute");
  }
  if (terms.weight < 1 || terms.weight > api::kMaxWeight) {
    return Fail("bad_weight",
                "the weight" + where + " is not from 1 to " + std::to_string(api::kMaxWeight));
  }
  if (terms.priority < api::kMinPriority || terms.priority > api::kMaxPriority) {
    return Fail("bad_priority", "the priority" + where + ", " + std::to_string(terms.priority) +
                                    ", is not from " + std::to_string(api::kMinPriority) + " to " +
                                    std::to_string(api::kMaxPriority));
  }
  if (terms.yield_within_ns < api::kMinYieldWithinNs ||
      terms.yield_within_ns > api::kMaxYieldWithinNs) {
    return Fail("bad_yield_within", "the time to yield within" + where + " is not from " +
                                        FormatDuration(api::kMinYieldWithinNs) + " to " +
                                        FormatDuration(api::kMaxYieldWithinNs));
  }
  return {};
}

Status CheckGang(api::Gang gang, size_t gpus) {
  if (gang != api::Gang::kAlways || gpus > 1) return {};
  return Fail(
      "gang_of_one",
      "the share is to run on all its GPUs at the same time (gang always), but has one; ask "
      "for several with --gpus or --gpu when it is made, or leave --gang out");
}

std::string Where(const api::DeviceStatus& device) { return " on " + Describe(device); }

// Nobody else is where a share has the whole device, and the other way round.
Status CheckAlone(const api::ShareSpec& spec, const api::DeviceStatus& device) {
  if (!device.exclusive.empty()) {
    return Fail("device_exclusive", Describe(device) + " is all of share '" + device.exclusive +
                                        "' (--mode exclusive), so no other share may be there; "
                                        "choose another GPU, or end that share");
  }
  if (!spec.exclusive || device.shares == 0) return {};
  return Fail("device_shared", "a share of the whole of " + Describe(device) +
                                   " needs it alone (--mode exclusive), but " +
                                   std::to_string(device.shares) +
                                   (device.shares == 1 ? " share is" : " shares are") +
                                   " there; choose another GPU, or end what is there");
}

// All of a device is all of it: what else is asked for would be kept by nobody.
Status CheckExclusive(const api::ShareSpec& spec) {
  const api::ShareSpec none;
  const bool says_more =
      spec.memory || spec.memory_request || !spec.on.empty() ||
      spec.compute_request != none.compute_request || spec.compute_limit != none.compute_limit ||
      spec.weight != none.weight || spec.priority != none.priority ||
      spec.yield_within_ns != none.yield_within_ns || spec.on_full != none.on_full ||
      spec.gang != none.gang || spec.guaranteed || !spec.share_memory_with.empty() ||
      !spec.allow_users.Nobody() || spec.any_container;
  if (says_more) {
    return Fail(
        "exclusive_terms",
        "a share with --mode exclusive is whole GPUs with the plain driver, in which nothing "
        "keeps a limit on memory, time or users; leave those options out");
  }
  if (!spec.token) {
    return Fail("exclusive_terms",
                "a share with --mode exclusive is for containers; make it with `prorata create`");
  }
  return {};
}

api::ShareTerms WholeOf(const api::DeviceStatus& device, const api::ShareTerms& common) {
  api::ShareTerms terms = common;
  terms.memory_bytes = terms.memory_request_bytes = device.total_bytes;
  terms.compute_request = terms.compute_limit = Fraction::One();
  return terms;
}

Status CheckLine(const api::DeviceStatus& device) {
  if (device.kept_for.empty()) return {};
  return Fail("others_wait", Describe(device) + " has room for it, but " + device.kept_for +
                                 " stands in front of it in line and would wait longer");
}

Status CheckRequest(Fraction request, const api::DeviceStatus& device) {
  if (request.ppm <= RequestLeft(device)) return {};
  return Fail("request_exceeded",
              "the share requests " + FormatFraction(request) + " of " + Describe(device) +
                  ", but only " + FormatFraction({RequestLeft(device)}) +
                  " is left: the requests of " + OtherShares(device.shares) + " there add up to " +
                  FormatFraction(device.promised_request) +
                  "; ask for less, or for less request and a higher --compute-limit");
}

}  // namespace

bool MayPass(const Error& refusal) {
  return refusal.code == "memory_exceeded" || refusal.code == "request_exceeded" ||
         refusal.code == "too_many_shares" || refusal.code == "others_wait" ||
         refusal.code == "device_exclusive" || refusal.code == "device_shared";
}

api::DeviceStatus Emptied(api::DeviceStatus device) {
  device.foreign_bytes = device.promised_bytes = device.limit_bytes = device.borrowed_bytes = 0;
  device.promised_request = {};
  device.shares = 0;
  device.kept_for.clear();
  device.exclusive.clear();
  return device;
}

Result<ValidShare> ValidateShare(const api::ShareSpec& spec,
                                 std::span<const api::DeviceStatus> devices,
                                 std::span<const std::string> names) {
  for (const std::string& other : spec.share_memory_with) {
    if (auto ok = api::ValidateShareName(other); !ok) return std::unexpected(ok.error());
  }
  if (spec.name) {
    if (auto ok = api::ValidateShareName(*spec.name); !ok) return std::unexpected(ok.error());
    if (std::find(names.begin(), names.end(), *spec.name) != names.end()) {
      return Fail("name_in_use", "a share named '" + *spec.name +
                                     "' exists already; choose another name, or end that share "
                                     "(`prorata rm`)");
    }
  }
  if (names.size() >= api::kMaxShares) {
    return Fail("too_many_shares", "the agent holds " + std::to_string(names.size()) +
                                       " shares, the most that it can; end one first");
  }
  const api::ShareTerms common{0, spec.compute_request, spec.compute_limit,  spec.weight,
                               0, spec.priority,        spec.yield_within_ns};
  if (auto ok = CheckTerms(common, ""); !ok) return std::unexpected(ok.error());
  if (auto ok = spec.exclusive ? CheckExclusive(spec) : Status{}; !ok) {
    return std::unexpected(ok.error());
  }
  bool requests = spec.memory_request.has_value();
  for (const api::TermsOnGpu& on : spec.on) requests |= on.memory_request.has_value();
  if (spec.guaranteed && requests) {
    return Fail("guaranteed_and_request",
                "the share asks for all of its memory limit to be guaranteed (--guaranteed), and "
                "for another amount (--memory-request); leave one of them out");
  }
  auto chosen = ChooseDevices(spec, devices, [&](const api::DeviceStatus& device) {
    Status ok = CheckAlone(spec, device);
    if (ok && spec.exclusive) return CheckLine(device);
    if (ok) ok = CheckMemory(NewMemory(spec, {}, device), device);
    if (ok) ok = CheckRequest(spec.compute_request, device);
    return ok ? CheckLine(device) : ok;
  });
  if (!chosen) return std::unexpected(chosen.error());
  if (auto ok = CheckGang(spec.gang, chosen->size()); !ok) return std::unexpected(ok.error());
  auto on = MatchTerms(spec.on, *chosen, devices);
  if (!on) return std::unexpected(on.error());
  ValidShare valid;
  for (size_t i = 0; i < chosen->size(); ++i) {
    const api::DeviceStatus& device = devices[(*chosen)[i]];
    const api::TermsOnGpu& own = (*on)[i];
    const MemoryTerms memory = NewMemory(spec, own, device);
    api::ShareTerms terms = Changed(common, own);
    terms.memory_bytes = memory.limit_bytes;
    terms.memory_request_bytes = memory.request_bytes;
    Status ok = CheckAlone(spec, device);
    if (spec.exclusive) {
      if (ok) ok = CheckLine(device);
      if (!ok) return std::unexpected(ok.error());
      valid.devices.push_back({(*chosen)[i], WholeOf(device, common)});
      continue;
    }
    if (ok) ok = CheckTerms(terms, Where(device));
    if (ok) ok = CheckMemory(memory, device);
    if (ok) ok = CheckRequest(terms.compute_request, device);
    if (ok) ok = CheckLine(device);
    if (!ok) return std::unexpected(ok.error());
    valid.devices.push_back({(*chosen)[i], terms});
  }
  return valid;
}

bool MayBeOf(const api::ShareSpec& spec, std::span<const api::DeviceStatus> devices,
             std::span<const api::ShareTerms> terms) {
  std::vector<api::DeviceStatus> empty;
  for (const api::DeviceStatus& device : devices) empty.push_back(Emptied(device));
  const auto valid = ValidateShare(spec, empty, {});
  if (!valid || valid->devices.size() != terms.size()) return false;
  for (size_t i = 0; i < terms.size(); ++i) {
    const auto& [device, asked] = valid->devices[i];
    if (!spec.gpus.empty() && device != i) return false;
    api::ShareTerms now = terms[device];
    if (!spec.memory) {  // all that was free
      now.memory_bytes = asked.memory_bytes;
      now.memory_request_bytes = asked.memory_request_bytes;
    }
    if (now != asked) return false;
  }
  return true;
}

namespace {

// What a share whose memory on a device is `now` comes to have.
MemoryTerms ChangedMemory(const MemoryAsked& asked, const api::ShareTerms& now,
                          const api::DeviceStatus& device) {
  const bool all = now.memory_request_bytes == now.memory_bytes;
  MemoryTerms memory;
  memory.limit_bytes = asked.limit_bytes.value_or(now.memory_bytes);
  memory.request_bytes =
      asked.request_bytes.value_or(all ? memory.limit_bytes : now.memory_request_bytes);
  memory.by_ratio = !asked.request_bytes && memory.request_bytes == 0 && device.overcommit > 1;
  return memory;
}

// One device's part of a change.
Result<api::ShareTerms> ChangeOn(const api::ShareChange& change, const api::TermsOnGpu& own,
                                 const api::ShareTerms& now, const api::DeviceStatus& device) {
  api::ShareTerms terms = Changed(Changed(now, change), own);
  const MemoryTerms memory = ChangedMemory(AskedOn(change, own, device), now, device);
  terms.memory_bytes = memory.limit_bytes;
  terms.memory_request_bytes = memory.request_bytes;
  if (auto ok = CheckTerms(terms, Where(device)); !ok) return std::unexpected(ok.error());
  // As for a new share on the device without this one. Less than before is always to be had, also
  // where programs outside prorata took what was promised.
  api::DeviceStatus others = device;
  others.promised_bytes -= std::min(others.promised_bytes, now.memory_request_bytes);
  others.limit_bytes -= std::min(others.limit_bytes, now.memory_bytes);
  // A part of it may be this share's own: policy::MemoryAdmission knows.
  others.borrowed_bytes = 0;
  others.promised_request.ppm -= std::min(others.promised_request.ppm, now.compute_request.ppm);
  others.shares -= std::min(others.shares, 1u);
  if (auto ok = CheckMemory(memory, others, {now.memory_bytes, now.memory_request_bytes}); !ok) {
    return std::unexpected(ok.error());
  }
  if (now.compute_request < terms.compute_request) {
    if (auto ok = CheckRequest(terms.compute_request, others); !ok) {
      return std::unexpected(ok.error());
    }
  }
  return terms;
}

}  // namespace

Result<std::vector<api::ShareTerms>> ValidateChange(const api::ShareChange& change,
                                                    std::span<const api::ShareTerms> now,
                                                    std::span<const api::DeviceStatus> devices) {
  if (auto ok = CheckGang(change.gang.value_or(api::Gang::kAuto), devices.size()); !ok) {
    return std::unexpected(ok.error());
  }
  std::vector<size_t> own(devices.size());
  for (size_t i = 0; i < own.size(); ++i) own[i] = i;
  auto on = MatchTerms(change.on, own, devices);
  if (!on) return std::unexpected(on.error());
  std::vector<api::ShareTerms> all;
  for (size_t i = 0; i < devices.size(); ++i) {
    auto terms = ChangeOn(change, (*on)[i], now[i], devices[i]);
    if (!terms) return std::unexpected(terms.error());
    all.push_back(*terms);
  }
  return all;
}

}  // namespace prorata::agent
