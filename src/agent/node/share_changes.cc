#include "agent/node/share_changes.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "agent/share/share_events.h"
#include "agent/share/validate_share.h"
#include "base/bytes.h"

namespace prorata::agent {
namespace {

// What a share has from its line of a file is changed there.
Status MayChange(const Share& share, const api::ShareChange& change) {
  const std::string* file = share.config().life.file();
  if (file == nullptr) return {};
  bool in_line =
      change.memory || change.memory_request || change.compute_request || change.compute_limit;
  for (const api::TermsOnGpu& on : change.on) {
    in_line |= on.memory || on.memory_request || on.compute_request || on.compute_limit;
  }
  in_line |= change.allow_users.has_value();
  if (!in_line) return {};
  return Fail("resource_config", "the memory, request, limit and users of share '" +
                                     share.config().name + "' are those of its line in '" + *file +
                                     "'; change that");
}

}  // namespace

void ShareChanges::Update(const std::string& name, const api::ShareChange& change, OnShare then) {
  updates_.push_back({name, change, std::move(then)});
  if (updates_.size() == 1) UpdateFirst();
}

void ShareChanges::UpdateFirst() {
  devices_.Refresh([this] {
    const Change& update = updates_.front();
    const Share* before = shares_.FindByName(update.name);
    const State former = before != nullptr ? StateOf(*before) : State{};
    auto changed = UpdateNow(update.name, update.change);
    if (!changed) return Answer(std::unexpected(changed.error()));
    const auto on_saved = [this, id = (*changed)->id(), former,
                           updated = StateOf(**changed)](const Status& saved) {
      Share* share = shares_.Find(id);
      if (share == nullptr) return Answer(Fail("share_ended", "the share has ended"));
      if (!saved) return Answer(std::unexpected(Undo(*share, former, updated, saved.error())));
      // Only now: what it gave up is not another's yet where this has to be undone.
      on_changed();
      Answer(share);
    };
    state_.Save(on_saved);
  });
}

void ShareChanges::Answer(Result<Share*> share) {
  const OnShare then = std::move(updates_.front().then);
  updates_.pop_front();
  if (!updates_.empty()) UpdateFirst();
  then(std::move(share));
}

ShareChanges::State ShareChanges::StateOf(const Share& share) {
  const ShareConfig& config = share.config();
  return {share.Terms(), config.on_full, config.gang, config.allow_users};
}

Error ShareChanges::Undo(Share& share, const State& former, const State& updated,
                         const Error& why) {
  const std::string name = "share '" + share.config().name + "'";
  api::ShareChange rest;
  rest.on_full = former.on_full;
  rest.gang = former.gang;
  rest.allow_users = former.allow_users;
  // Its line in a file may have changed meanwhile, and what that says holds.
  const Status undone = StateOf(share) == updated ? Apply(share, former.terms, rest)
                                                  : Fail("changed", "they were changed again");
  // What is being written may be the change.
  state_.SaveSoon();
  if (undone) return NotSaved(why, name + " has its former terms");
  return NotSaved(why, name +
                           " keeps the new terms until the agent is started again, for the "
                           "former cannot be had any more: " +
                           undone.error().message);
}

Result<Share*> ShareChanges::UpdateNow(const std::string& name, const api::ShareChange& change) {
  Share* share = shares_.FindByName(name);
  if (share == nullptr || share->ended()) return NoShare(name);
  if (share->config().exclusive) {
    return Fail("exclusive",
                "share '" + name +
                    "' is whole GPUs with the plain driver (--mode exclusive), in which "
                    "nothing keeps a limit on memory, time or users; end it and make a "
                    "shared one with `prorata create`");
  }
  if (auto ok = MayChange(*share, change); !ok) return std::unexpected(ok.error());
  memory_.Gather();
  const std::vector<api::DeviceStatus> devices = descriptions_.OfDevices();
  const std::vector<api::ShareTerms> now = share->Terms();
  std::vector<api::DeviceStatus> own;
  for (const DeviceOfShare& on : share->config().devices) own.push_back(devices[on.device]);
  // All devices are judged before the first is touched.
  const auto valid = ValidateChange(change, now, own);
  if (!valid) return std::unexpected(valid.error());
  if (auto ok = Apply(*share, *valid, change); !ok) return std::unexpected(ok.error());
  return share;
}

Status ShareChanges::Apply(Share& share, const std::vector<api::ShareTerms>& terms,
                           const api::ShareChange& also) {
  const std::vector<api::ShareTerms> now = share.Terms();
  const api::OnFull on_full = also.on_full.value_or(share.config().on_full);
  if (auto ok = memory_.SetTerms(share, terms, on_full); !ok) return ok;
  SetOnFull(share, on_full);
  if (also.gang) SetGang(share, *also.gang);
  if (also.allow_users) SetUsers(share, *also.allow_users);
  if (memory_.anybody_waits()) reaper_.ReapSoon();
  for (uint32_t i = 0; i < share.device_count(); ++i) {
    // A change of its other GPUs, or of none.
    const bool other = share.device_count() > 1 || also.on_full || also.gang || also.allow_users;
    if (terms[i] != now[i] || !other) SetTerms(share, i, terms[i]);
  }
  return {};
}

void ShareChanges::SetTerms(Share& share, uint32_t index, const api::ShareTerms& terms) {
  events_.Add(ChangedEvent(share, index, terms));
  share.SetTerms(index, terms);
  leases_.SetTerms(share, index);
  spdlog::info(
      "share '{}' changed: {} of GPU {}, memory request {}, compute request {}, limit {}, weight "
      "{}, priority "
      "{}",
      share.config().name, FormatBytes(terms.memory_bytes), share.config().devices[index].device,
      FormatBytes(terms.memory_request_bytes), FormatFraction(terms.compute_request),
      FormatFraction(terms.compute_limit), terms.weight, terms.priority);
}

void ShareChanges::SetOnFull(Share& share, api::OnFull on_full) {
  const api::OnFull before = share.config().on_full;
  if (on_full == before) return;
  api::Event event = EventOf(api::EventKind::kShareChanged, share);
  event.detail = "on-full " + FormatOnFull(before) + " to " + FormatOnFull(on_full);
  events_.Add(std::move(event));
  share.SetOnFull(on_full);
}

void ShareChanges::SetGang(Share& share, api::Gang gang) {
  const api::Gang before = share.config().gang;
  if (gang == before) return;
  api::Event event = EventOf(api::EventKind::kShareChanged, share);
  event.detail = "gang " + FormatGang(before) + " to " + FormatGang(gang);
  spdlog::info("share '{}' changed: {}", share.config().name, event.detail);
  events_.Add(std::move(event));
  share.SetGang(gang);
  leases_.SetGang(share);
}

// Who runs on it stays: a process that joined is a member until it ends.
void ShareChanges::SetUsers(Share& share, api::AllowedUsers users) {
  if (users == share.config().allow_users) return;
  const auto text = [](const api::AllowedUsers& allowed) {
    return allowed.Nobody() ? std::string("none") : FormatAllowedUsers(allowed);
  };
  api::Event event = EventOf(api::EventKind::kShareChanged, share);
  event.detail = "allow-users " + text(share.config().allow_users) + " to " + text(users);
  spdlog::info("share '{}' changed: {}", share.config().name, event.detail);
  events_.Add(std::move(event));
  share.SetAllowedUsers(std::move(users));
}

}  // namespace prorata::agent
