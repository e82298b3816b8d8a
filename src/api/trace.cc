#include "api/trace.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

namespace prorata::api {
namespace {

using nlohmann::json;

constexpr std::pair<TraceKind, std::string_view> kKinds[] = {
    {TraceKind::kState, "state"},
    {TraceKind::kKeyframe, "keyframe"},
    {TraceKind::kMode, "mode"},
    {TraceKind::kAudit, "audit"},
    {TraceKind::kLate, "late"},
    {TraceKind::kOutage, "outage"},
    {TraceKind::kShareBegun, "share_begun"},
    {TraceKind::kShareEnded, "share_ended"},
    {TraceKind::kEvent, "event"},
};

constexpr std::pair<TraceState, std::string_view> kStates[] = {
    {TraceState::kIdle, "idle"},
    {TraceState::kHolds, "holds"},
    {TraceState::kRuns, "runs"},
    {TraceState::kRunsFreely, "runs_freely"},
    {TraceState::kCoRuns, "co_runs"},
    {TraceState::kDrains, "drains"},
    {TraceState::kStalled, "stalled"},
    {TraceState::kBlocked, "blocked"},
    {TraceState::kWaitsOthers, "waits_others"},
    {TraceState::kWaitsLimit, "waits_limit"},
    {TraceState::kWaitsPriority, "waits_priority"},
    {TraceState::kWaitsDrain, "waits_drain"},
    {TraceState::kWaitsGang, "waits_gang"},
    {TraceState::kWaitsPause, "waits_pause"},
};

constexpr std::pair<TraceMode, std::string_view> kModes[] = {
    {TraceMode::kIdle, "idle"},
    {TraceMode::kFree, "free"},
    {TraceMode::kScheduled, "scheduled"},
    {TraceMode::kCoRunSet, "co_run_set"},
};

template <typename Table, typename Value>
std::string NameIn(const Table& table, Value value) {
  for (const auto& [known, name] : table) {
    if (known == value) return std::string(name);
  }
  return "unknown";
}

template <typename Table, typename Value>
bool ReadName(const Table& table, const json& object, const char* field, Value& value) {
  const std::string& text = object.at(field).get_ref<const std::string&>();
  for (const auto& [known, name] : table) {
    if (name != text) continue;
    value = known;
    return true;
  }
  return false;
}

bool IsOfShare(TraceKind kind) { return kind == TraceKind::kState || kind == TraceKind::kKeyframe; }

json ToJson(const TraceEntry& entry, bool lag_known) {
  json object = {{"time_ns", entry.time_ns}, {"kind", NameIn(kKinds, entry.kind)}};
  if (entry.lane != 0) object["share"] = entry.lane;
  if (IsOfShare(entry.kind)) {
    object["state"] = NameOf(entry.state);
    object["charged_ns"] = entry.value_ns;
    if (lag_known) object["lag_ns"] = int64_t{entry.lag_us} * 1'000;
    if (entry.gang) object["gang"] = true;
    if (entry.held_us != 0) object["held_ns"] = int64_t{entry.held_us} * 1'000;
  }
  if (entry.kind == TraceKind::kMode) object["mode"] = NameOf(entry.mode);
  if (entry.kind == TraceKind::kAudit || entry.kind == TraceKind::kLate) {
    object["by_ns"] = entry.value_ns;
  }
  if (entry.kind == TraceKind::kEvent) object["event"] = NameOf(entry.event);
  return object;
}

// What does not fit the ring's own fields comes from no agent of ours.
template <typename Number>
Number Bounded(const json& object, const char* field) {
  const int64_t us = object.value(field, int64_t{0}) / 1'000;
  return static_cast<Number>(std::clamp<int64_t>(us, std::numeric_limits<Number>::min(),
                                                 std::numeric_limits<Number>::max()));
}

bool ReadEntry(const json& object, TraceEntry& entry) {
  object.at("time_ns").get_to(entry.time_ns);
  if (!ReadName(kKinds, object, "kind", entry.kind)) return false;
  entry.lane = object.value("share", 0U);
  if (IsOfShare(entry.kind)) {
    if (!ReadName(kStates, object, "state", entry.state)) return false;
    object.at("charged_ns").get_to(entry.value_ns);
    entry.lag_us = Bounded<int32_t>(object, "lag_ns");
    entry.held_us = Bounded<uint32_t>(object, "held_ns");
    entry.gang = object.value("gang", false);
  }
  if (entry.kind == TraceKind::kMode) return ReadName(kModes, object, "mode", entry.mode);
  if (entry.kind == TraceKind::kAudit || entry.kind == TraceKind::kLate) {
    object.at("by_ns").get_to(entry.value_ns);
  }
  if (entry.kind != TraceKind::kEvent) return true;
  const auto event = EventKindOf(object.at("event").get_ref<const std::string&>());
  if (event) entry.event = *event;
  return event.has_value();
}

}  // namespace

std::string NameOf(TraceState state) { return NameIn(kStates, state); }

std::string NameOf(TraceMode mode) { return NameIn(kModes, mode); }

json ToJson(const TraceReply& reply) {
  json shares = json::array();
  for (const auto& [lane, share] : reply.shares) {
    shares.push_back({{"share", lane}, {"name", share.name}, {"lag_known", share.lag_known}});
  }
  json entries = json::array();
  for (const TraceEntry& entry : reply.entries) {
    const auto share = reply.shares.find(entry.lane);
    entries.push_back(ToJson(entry, share == reply.shares.end() || share->second.lag_known));
  }
  return {{"now_ns", reply.now_ns},      {"now_unix_ns", reply.now_unix_ns},
          {"since_ns", reply.since_ns},  {"since_start", reply.since_start},
          {"shares", std::move(shares)}, {"entries", std::move(entries)},
          {"lost", reply.lost},          {"next", reply.next},
          {"last", reply.last}};
}

Result<TraceReply> TraceFromJson(const json& object) {
  const auto unreadable = [](const std::string& why) {
    return Fail("agent_reply", "the agent's trace cannot be read (" + why +
                                   "); are agent and prorata of the same version?");
  };
  if (!object.is_object()) return unreadable("not an object");
  try {
    TraceReply reply;
    object.at("now_ns").get_to(reply.now_ns);
    object.at("now_unix_ns").get_to(reply.now_unix_ns);
    object.at("since_ns").get_to(reply.since_ns);
    object.at("since_start").get_to(reply.since_start);
    object.at("lost").get_to(reply.lost);
    object.at("next").get_to(reply.next);
    object.at("last").get_to(reply.last);
    for (const json& share : object.at("shares")) {
      reply.shares[share.at("share").get<uint32_t>()] = {share.at("name").get<std::string>(),
                                                         share.at("lag_known").get<bool>()};
    }
    for (const json& one : object.at("entries")) {
      TraceEntry& entry = reply.entries.emplace_back(TraceEntry{});
      if (!ReadEntry(one, entry)) return unreadable("an entry that is not known: " + one.dump());
    }
    return reply;
  } catch (const json::exception& error) {
    return unreadable(error.what());
  }
}

}  // namespace prorata::api
