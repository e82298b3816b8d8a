#include "api/trace.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "api/messages.h"

namespace prorata::api {

template <>
struct Names<TraceKind> {
  static constexpr std::pair<TraceKind, std::string_view> kAll[] = {
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
};

template <>
struct Names<TraceState> {
  static constexpr std::pair<TraceState, std::string_view> kAll[] = {
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
};

template <>
struct Names<TraceMode> {
  static constexpr std::pair<TraceMode, std::string_view> kAll[] = {
      {TraceMode::kIdle, "idle"},
      {TraceMode::kFree, "free"},
      {TraceMode::kScheduled, "scheduled"},
      {TraceMode::kCoRunSet, "co_run_set"},
  };
};

namespace {

bool IsOfShare(const TraceEntry& entry) {
  return entry.kind == TraceKind::kState || entry.kind == TraceKind::kKeyframe;
}
bool IsOfMode(const TraceEntry& entry) { return entry.kind == TraceKind::kMode; }
bool IsOfTime(const TraceEntry& entry) {
  return entry.kind == TraceKind::kAudit || entry.kind == TraceKind::kLate;
}
bool IsEvent(const TraceEntry& entry) { return entry.kind == TraceKind::kEvent; }

// Microseconds in the ring; what does not fit there comes from no agent of ours.
struct UsAsNs : Codec<int64_t> {
  static json Write(int64_t us) { return us * 1'000; }
  template <typename Number>
  static Status Read(const json& value, const Place& place, Number& us) {
    int64_t ns = 0;
    const Status ok = Codec<int64_t>::Read(value, place, ns);
    us = static_cast<Number>(std::clamp<int64_t>(ns / 1'000, std::numeric_limits<Number>::min(),
                                                 std::numeric_limits<Number>::max()));
    return ok;
  }
};

// A list of them, each with its lane.
struct Lanes : ListOf<Codec<TraceShare>> {
  static json Write(const std::map<uint32_t, TraceShare>& shares) {
    json list = json::array();
    for (auto [lane, share] : shares) {
      share.lane = lane;
      list.push_back(Codec<TraceShare>::Write(share));
    }
    return list;
  }
  static Status Read(const json& value, const Place& place,
                     std::map<uint32_t, TraceShare>& shares) {
    std::vector<TraceShare> list;
    const Status ok = ListOf::Read(value, place, list);
    for (TraceShare& share : list) shares[share.lane] = share;
    return ok;
  }
};

// clang-format off
constexpr Field kShareFields[] = {
    Required<&TraceShare::lane>("share", "its number in the entries", kId),
    Required<&TraceShare::name>("name", "its name"),
    Required<&TraceShare::lag_known>("lag_known", "the reader may use it, and sees its lag"),
};

constexpr Field kEntry[] = {
    Required<&TraceEntry::time_ns>("time_ns", "when, by CLOCK_MONOTONIC of the agent", kNs),
    Required<&TraceEntry::kind, NameAs<TraceKind, true>>("kind", "what it is about"),
    Optional<&TraceEntry::lane>("share", "a number of `shares`. Absent: it is about the GPU", kId),
    Required<&TraceEntry::state, NameAs<TraceState, true>>("state",
        "of `state`: the share's state from now on; of `keyframe`: the state that goes on")
        .When<IsOfShare>(),
    Required<&TraceEntry::value_ns>("charged_ns",
        "of a `state` or `keyframe`: GPU time charged since the share was added", kNs)
        .When<IsOfShare>(),
    Defaulted<&TraceEntry::lag_us, UsAsNs>("lag_ns",
        "likewise: entitled minus charged GPU time, if the reader may use the share", kNs)
        .When<IsOfShare>(),
    Optional<&TraceEntry::gang>("gang", "likewise: of a gang").When<IsOfShare>(),
    Optional<&TraceEntry::held_us, UsAsNs>("held_ns",
        "likewise: for how long a limit keeps the share from running still", kNs).When<IsOfShare>(),
    Required<&TraceEntry::mode, NameAs<TraceMode, true>>("mode",
        "of a `mode`: how the GPU is shared from now on").When<IsOfMode>(),
    Required<&TraceEntry::value_ns>("by_ns",
        "of an `audit`: charged more (or less) by NVML's figures; of a `late`: how much later than "
        "it was to the agent's loop came", kNs).When<IsOfTime>(),
    Required<&TraceEntry::event, NameAs<EventKind, true>>("event",
        "of an `event`: its name").When<IsEvent>(),
};

constexpr Field kTraceFields[] = {
    Required<&TraceReply::now_ns>("now_ns", "when it was made, by the clock of the entries", kNs),
    Required<&TraceReply::now_unix_ns>("now_unix_ns", "and by the time of day", kUnixNs),
    Required<&TraceReply::since_ns>("since_ns", "all from then on is kept", kNs),
    Required<&TraceReply::since_start>("since_start",
        "that is when the agent started; else what was before is forgotten"),
    Required<&TraceReply::shares, Lanes>("shares", "those in the entries"),
    Required<&TraceReply::entries>("entries", "at most 128, in order"),
    Required<&TraceReply::lost>("lost",
        "entries after `after` that were overwritten before they were asked for", kCount),
    Required<&TraceReply::next>("next", "what to give as `after` to go on", kId),
    Required<&TraceReply::last>("last", "the last entry there is", kId),
};

}  // namespace

template <> constinit const Table TableOf<TraceShare>::kTable = {
    "share of a trace", "A share on the GPU, from when it was added to when it ended.", kShareFields};
template <> constinit const Table TableOf<TraceEntry>::kTable = {
    "trace entry", "What happened on the GPU.", kEntry};
template <> constinit const Table TableOf<TraceReply>::kTable = {
    "trace", "A page of what a GPU did.", kTraceFields};
// clang-format on

std::string NameOf(TraceState state) { return std::string(NameIn(state)); }
std::string NameOf(TraceMode mode) { return std::string(NameIn(mode)); }

json ToJson(const TraceReply& reply) {
  json object = WriteMessage(TableOf<TraceReply>::kTable, &reply);
  for (json& entry : object["entries"]) {
    const auto share = reply.shares.find(entry.value("share", 0U));
    if (share != reply.shares.end() && !share->second.lag_known) entry.erase("lag_ns");
  }
  return object;
}

Result<TraceReply> TraceFromJson(const json& object) { return ReadReply<TraceReply>(object); }

}  // namespace prorata::api
