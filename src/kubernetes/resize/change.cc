#include "kubernetes/resize/change.h"

#include <vector>

#include "base/bytes.h"
#include "base/duration.h"

namespace prorata::kubernetes {
namespace {

Fraction PercentToFraction(uint32_t percent) { return {percent * (Fraction::kOne / 100)}; }

// What the share is to have on one device.
api::ShareTerms TermsOn(const api::ShareSpec& spec, const api::ShareDevice& device) {
  api::ShareTerms terms;
  terms.memory_bytes = spec.memory.value_or(device.memory_limit_bytes).bytes;
  terms.memory_request_bytes = spec.memory_request.value_or(device.memory_request_bytes).bytes;
  terms.compute_request = spec.compute_request;
  terms.compute_limit = spec.compute_limit;
  terms.weight = spec.weight;
  terms.priority = spec.priority;
  terms.yield_within_ns = spec.yield_within_ns;
  for (const api::TermsOnGpu& on : spec.on) {
    if (on.gpu != device.uuid) continue;
    if (on.memory) terms.memory_bytes = on.memory->bytes;
    if (on.memory_request) terms.memory_request_bytes = on.memory_request->bytes;
    terms.compute_request = on.compute_request.value_or(terms.compute_request);
  }
  return terms;
}

template <typename Value>
void SetIfOther(const Value& wanted, const Value& now, std::optional<Value>* change) {
  if (wanted != now) *change = wanted;
}

// `Change`: api::ShareChange or api::TermsOnGpu. True: something differs.
template <typename Change>
bool SetTermsOf(const api::ShareTerms& wanted, const api::ShareDevice& now, Change* change) {
  // Both or neither: a request alone may be above the limit of before.
  if (wanted.memory_bytes != now.memory_limit_bytes ||
      wanted.memory_request_bytes != now.memory_request_bytes) {
    change->memory = wanted.memory_bytes;
    change->memory_request = wanted.memory_request_bytes;
  }
  SetIfOther(wanted.compute_request, now.compute_request, &change->compute_request);
  SetIfOther(wanted.compute_limit, now.compute_limit, &change->compute_limit);
  SetIfOther(wanted.weight, now.weight, &change->weight);
  SetIfOther(wanted.priority, now.priority, &change->priority);
  SetIfOther(wanted.yield_within_ns, now.yield_within_ns, &change->yield_within_ns);
  return change->memory || change->compute_request || change->compute_limit || change->weight ||
         change->priority || change->yield_within_ns;
}

Status CheckUse(const api::ShareTerms& wanted, const api::ShareDevice& now) {
  if (wanted.memory_bytes >= now.memory_limit_bytes || wanted.memory_bytes >= now.used_bytes) {
    return {};
  }
  return Fail("below_use", "its programs hold " + FormatBytes(now.used_bytes) + " of GPU " +
                               std::to_string(now.index) + ", more than the " +
                               FormatBytes(wanted.memory_bytes) +
                               " asked for; it shrinks once they have freed enough");
}

// Lists what differs.
struct Differences {
  std::string text = {};

  void Add(const std::string& name, const std::string& before, const std::string& after) {
    if (before == after) return;
    text += (text.empty() ? "" : ", ") + name + " " + before + " to " + after;
  }
};

void AddDevice(const api::ShareDevice& before, const api::ShareDevice& after, Differences* list) {
  list->Add("memory", FormatBytes(before.memory_limit_bytes),
            FormatBytes(after.memory_limit_bytes));
  list->Add("compute", FormatPercent(before.compute_request), FormatPercent(after.compute_request));
  list->Add("compute limit", FormatPercent(before.compute_limit),
            FormatPercent(after.compute_limit));
  list->Add("weight", std::to_string(before.weight), std::to_string(after.weight));
  list->Add("priority", std::to_string(before.priority), std::to_string(after.priority));
  list->Add("yield within", FormatDuration(before.yield_within_ns),
            FormatDuration(after.yield_within_ns));
}

}  // namespace

api::ShareSpec WishedShare(api::ShareSpec of_claim, const ShareWish& wish) {
  api::ShareSpec share = std::move(of_claim);
  if (wish.memory_bytes) {
    share.memory = share.memory_request = api::MemorySize(*wish.memory_bytes);
  }
  if (wish.compute_percent) share.compute_request = PercentToFraction(*wish.compute_percent);
  for (api::TermsOnGpu& on : share.on) {
    if (wish.memory_bytes) on.memory = on.memory_request = share.memory;
    if (wish.compute_percent) on.compute_request = share.compute_request;
  }
  if (wish.compute_limit_percent) {
    share.compute_limit = PercentToFraction(*wish.compute_limit_percent);
  }
  share.weight = wish.weight.value_or(share.weight);
  share.priority = wish.priority.value_or(share.priority);
  share.yield_within_ns = wish.yield_within_ns.value_or(share.yield_within_ns);
  share.on_full = wish.on_full.value_or(share.on_full);
  share.gang = wish.gang.value_or(share.gang);
  return share;
}

Result<api::ShareChange> ChangeTo(const api::ShareSpec& wanted, const api::ShareStatus& now) {
  api::ShareChange change;
  for (const api::ShareDevice& device : now.devices) {
    const api::ShareTerms terms = TermsOn(wanted, device);
    if (auto ok = CheckUse(terms, device); !ok) return std::unexpected(ok.error());
    if (now.devices.size() == 1) {
      SetTermsOf(terms, device, &change);
      continue;
    }
    api::TermsOnGpu on{.gpu = device.uuid};
    if (SetTermsOf(terms, device, &on)) change.on.push_back(std::move(on));
  }
  SetIfOther(wanted.on_full, now.on_full, &change.on_full);
  SetIfOther(wanted.gang, now.gang, &change.gang);
  return change;
}

std::string DescribeChange(const api::ShareStatus& before, const api::ShareStatus& after) {
  Differences list;
  for (size_t i = 0; i < before.devices.size() && i < after.devices.size(); ++i) {
    // Those of several GPUs differ in the same way but in rare cases: the first says it.
    if (list.text.empty()) AddDevice(before.devices[i], after.devices[i], &list);
  }
  list.Add("on full", FormatOnFull(before.on_full), FormatOnFull(after.on_full));
  list.Add("gang", FormatGang(before.gang), FormatGang(after.gang));
  return list.text;
}

}  // namespace prorata::kubernetes
