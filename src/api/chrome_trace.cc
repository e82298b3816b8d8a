#include "api/chrome_trace.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace prorata::api {
namespace {

using nlohmann::json;

// Keyframes are a tenth of a second apart; where the distance is larger, the share did nothing.
constexpr int64_t kKeyframeNs = 100'000'000;
constexpr int64_t kKeyframeMissingNs = 250'000'000;
constexpr uint32_t kDeviceTrack = 1;

double Ms(int64_t ns) { return static_cast<double>(ns) / 1e6; }

struct Words {
  const char* name;
  const char* category;
};

Words WordsOf(TraceState state) {
  switch (state) {
    case TraceState::kIdle:
      return {"idle", "idle"};
    case TraceState::kHolds:
      return {"lease open, idle", "idle"};
    case TraceState::kRuns:
      return {"runs", "runs"};
    case TraceState::kRunsFreely:
      return {"runs freely", "runs"};
    case TraceState::kCoRuns:
      return {"co-runs", "runs"};
    case TraceState::kDrains:
      return {"drains", "drains"};
    case TraceState::kStalled:
      return {"stalled", "stalled"};
    case TraceState::kBlocked:
      return {"blocked", "stalled"};
    case TraceState::kWaitsOthers:
      return {"waits: other shares", "waits"};
    case TraceState::kWaitsLimit:
      return {"waits: at its limit", "waits"};
    case TraceState::kWaitsPriority:
      return {"waits: higher priority", "waits"};
    case TraceState::kWaitsDrain:
      return {"waits: a drain", "waits"};
    case TraceState::kWaitsGang:
      return {"waits: its other GPUs", "waits"};
    case TraceState::kWaitsPause:
      return {"waits: a pause of those it owes", "waits"};
  }
  return {"unknown", "unknown"};
}

bool HoldsLease(TraceState state) {
  return state == TraceState::kHolds || state == TraceState::kRuns ||
         state == TraceState::kRunsFreely || state == TraceState::kCoRuns;
}

const char* WordOf(TraceMode mode) {
  switch (mode) {
    case TraceMode::kIdle:
      return "idle";
    case TraceMode::kFree:
      return "free";
    case TraceMode::kScheduled:
      return "scheduled";
    case TraceMode::kCoRunSet:
      return "co-run set";
  }
  return "unknown";
}

// One device's events, appended to a text.
class Writer {
 public:
  Writer(const TracedDevice& device, int64_t origin_ns, std::string& out)
      : device_(device), origin_ns_(origin_ns), pid_(device.index + 1), out_(out) {}

  void Write() {
    for (const TraceEntry& entry : device_.trace.entries) {
      if (entry.time_ns <= device_.trace.now_ns) Take(entry);
    }
    for (auto& [number, lane] : lanes_) EndSlice(number, lane, device_.trace.now_ns, nullptr);
    EndMode(device_.trace.now_ns);
    WriteNames();
  }

 private:
  struct Lane {
    std::string name;
    bool shown = false;
    std::optional<TraceEntry> begun;  // the slice that goes on
    bool whole = true;                // it was seen to begin
    std::optional<TraceEntry> keyframe;
  };

  int64_t Us(int64_t time_ns) const {
    return (std::max(time_ns, device_.begins_ns) - origin_ns_) / 1'000;
  }
  bool Within(int64_t time_ns) const { return time_ns >= device_.begins_ns; }

  void Append(json event) {
    event["pid"] = pid_;
    out_ += event.dump(-1, ' ', false, json::error_handler_t::replace);
    out_ += ",\n";
  }
  void Slice(uint32_t track, Words words, int64_t from_ns, int64_t to_ns, json args) {
    if (!Within(to_ns) || Us(to_ns) == Us(from_ns)) return;
    Append({{"ph", "X"},
            {"name", words.name},
            {"cat", words.category},
            {"tid", track},
            {"ts", Us(from_ns)},
            {"dur", Us(to_ns) - Us(from_ns)},
            {"args", std::move(args)}});
  }
  void Instant(uint32_t track, const std::string& name, int64_t time_ns, json args) {
    if (!Within(time_ns)) return;
    Append({{"ph", "i"},
            {"s", "t"},
            {"name", name},
            {"cat", "event"},
            {"tid", track},
            {"ts", Us(time_ns)},
            {"args", std::move(args)}});
  }
  void Counter(const std::string& name, const char* unit, int64_t time_ns, double value) {
    if (!Within(time_ns)) return;
    Append({{"ph", "C"},
            {"name", name + ", " + unit},
            {"tid", kDeviceTrack},
            {"ts", Us(time_ns)},
            {"args", {{unit, value}}}});
  }

  // A name that was used again is another share: "train (2)".
  Lane& LaneOf(uint32_t number) {
    Lane& lane = lanes_[number];
    if (!lane.name.empty()) return lane;
    const auto share = device_.trace.shares.find(number);
    const std::string name = share == device_.trace.shares.end() ? "share" : share->second.name;
    const int uses = ++names_[name];
    lane.name = uses == 1 ? name : name + " (" + std::to_string(uses) + ")";
    return lane;
  }
  bool LagKnown(uint32_t number) const {
    const auto share = device_.trace.shares.find(number);
    return share != device_.trace.shares.end() && share->second.lag_known;
  }
  static uint32_t TrackOf(uint32_t lane) { return kDeviceTrack + lane; }

  void Take(const TraceEntry& entry) {
    if (entry.kind == TraceKind::kMode) return TakeMode(entry);
    if (entry.lane == 0) return TakeOfDevice(entry);
    Lane& lane = LaneOf(entry.lane);
    lane.shown = lane.shown || Within(entry.time_ns);
    const uint32_t track = TrackOf(entry.lane);
    switch (entry.kind) {
      case TraceKind::kState:
        return TakeState(entry, lane);
      case TraceKind::kKeyframe:
        if (!lane.begun || lane.begun->state != entry.state) TakeState(entry, lane);
        return TakeKeyframe(entry, lane);
      case TraceKind::kAudit:
        return Instant(track, "audit", entry.time_ns, {{"charged_more_ms", Ms(entry.value_ns)}});
      case TraceKind::kShareBegun:
        return Instant(track, "share begins", entry.time_ns, json::object());
      case TraceKind::kShareEnded:
        EndSlice(entry.lane, lane, entry.time_ns, nullptr);
        return Instant(track, "share ends", entry.time_ns, json::object());
      case TraceKind::kEvent:
        return Instant(track, NameOf(entry.event), entry.time_ns, json::object());
      default:
        return;
    }
  }

  void TakeOfDevice(const TraceEntry& entry) {
    if (entry.kind == TraceKind::kLate) {
      Instant(kDeviceTrack, "agent late", entry.time_ns, {{"by_ms", Ms(entry.value_ns)}});
    } else if (entry.kind == TraceKind::kOutage) {
      Instant(kDeviceTrack, "agent was unavailable: leases begin anew", entry.time_ns,
              json::object());
    } else if (entry.kind == TraceKind::kEvent) {
      Instant(kDeviceTrack, NameOf(entry.event), entry.time_ns, json::object());
    }
  }

  void TakeMode(const TraceEntry& entry) {
    if (mode_ && mode_->mode == entry.mode) return;
    EndMode(entry.time_ns);
    mode_ = entry;
  }
  void EndMode(int64_t time_ns) {
    if (!mode_ || mode_->mode == TraceMode::kIdle) return;
    Slice(kDeviceTrack, {WordOf(mode_->mode), "device"}, mode_->time_ns, time_ns, json::object());
  }

  void TakeState(const TraceEntry& entry, Lane& lane) {
    const TraceState before = lane.begun ? lane.begun->state : TraceState::kIdle;
    const uint32_t track = TrackOf(entry.lane);
    EndSlice(entry.lane, lane, entry.time_ns, &entry);
    lane.begun = entry;
    lane.whole = entry.kind == TraceKind::kState;
    if (LagKnown(entry.lane)) {
      Counter("lag of " + lane.name, "ms", entry.time_ns, entry.lag_us / 1e3);
    }
    if (HoldsLease(before) && !HoldsLease(entry.state) && entry.state != TraceState::kIdle) {
      const bool limit = entry.held_us > 0 || entry.state == TraceState::kWaitsLimit;
      Instant(track, "revoked", entry.time_ns, {{"why", limit ? "its limit" : "others are due"}});
    }
    if (before == TraceState::kBlocked && entry.state != TraceState::kBlocked) {
      Instant(track, "released", entry.time_ns, json::object());
    }
  }

  // `next`: what begins then, which knows how much was charged until then; null: nothing.
  void EndSlice(uint32_t number, Lane& lane, int64_t time_ns, const TraceEntry* next) {
    if (!lane.begun) return;
    const TraceEntry begun = *std::exchange(lane.begun, std::nullopt);
    if (begun.state == TraceState::kIdle) return;
    json args = json::object();
    const bool whole = lane.whole && Within(begun.time_ns);
    if (whole && next != nullptr) args["charged_ms"] = Ms(next->value_ns - begun.value_ns);
    if (whole && LagKnown(number)) args["lag_begin_ms"] = begun.lag_us / 1e3;
    if (LagKnown(number) && next != nullptr) args["lag_end_ms"] = next->lag_us / 1e3;
    if (begun.gang) args["gang"] = true;
    if (begun.held_us > 0) {
      args["limit_holds_until_us"] = Us(begun.time_ns + int64_t{begun.held_us} * 1'000);
    }
    Slice(TrackOf(number), WordsOf(begun.state), begun.time_ns, time_ns, std::move(args));
  }

  void TakeKeyframe(const TraceEntry& entry, Lane& lane) {
    if (LagKnown(entry.lane)) {
      Counter("lag of " + lane.name, "ms", entry.time_ns, entry.lag_us / 1e3);
    }
    const auto before = std::exchange(lane.keyframe, entry);
    if (!before || entry.time_ns <= before->time_ns || !Within(entry.time_ns)) return;
    int64_t since_ns = before->time_ns;
    if (entry.time_ns - since_ns > kKeyframeMissingNs) {
      Counter("GPU time of " + lane.name, "%", std::max(since_ns, device_.begins_ns), 0);
      since_ns = entry.time_ns - kKeyframeNs;
    }
    const auto charged_ns = static_cast<double>(entry.value_ns - before->value_ns);
    Counter("GPU time of " + lane.name, "%", std::max(since_ns, device_.begins_ns),
            100 * charged_ns / static_cast<double>(entry.time_ns - since_ns));
  }

  void WriteNames() {
    const auto name = [this](const char* what, uint32_t track, json args) {
      Append({{"ph", "M"}, {"name", what}, {"tid", track}, {"args", std::move(args)}});
    };
    const std::string title =
        "GPU " + std::to_string(device_.index) + ": " + device_.name + " (" + device_.uuid + ")";
    name("process_name", 0, {{"name", title}});
    name("process_sort_index", 0, {{"sort_index", device_.index}});
    name("thread_name", kDeviceTrack, {{"name", "how it is shared"}});
    name("thread_sort_index", kDeviceTrack, {{"sort_index", 0}});
    for (const auto& [number, lane] : lanes_) {
      if (!lane.shown) continue;
      name("thread_name", TrackOf(number), {{"name", lane.name}});
      name("thread_sort_index", TrackOf(number), {{"sort_index", number}});
    }
  }

  const TracedDevice& device_;
  const int64_t origin_ns_;
  const uint32_t pid_;
  std::string& out_;
  std::map<uint32_t, Lane> lanes_;
  std::map<std::string, int> names_;
  std::optional<TraceEntry> mode_;
};

}  // namespace

std::string ChromeTrace(std::span<const TracedDevice> devices, const std::string& maker) {
  int64_t origin_ns = devices.empty() ? 0 : devices.front().begins_ns;
  for (const TracedDevice& device : devices) origin_ns = std::min(origin_ns, device.begins_ns);
  json about = {{"made_by", maker}, {"start_monotonic_ns", origin_ns}};
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  for (const TracedDevice& device : devices) {
    const TraceReply& trace = device.trace;
    about["start_unix_ns"] = trace.now_unix_ns - (trace.now_ns - origin_ns);
    about["gpu " + std::to_string(device.index)] = {
        {"uuid", device.uuid},
        {"begins_us", (device.begins_ns - origin_ns) / 1'000},
        {"ends_us", (trace.now_ns - origin_ns) / 1'000},
        {"recorded_since_us", (trace.since_ns - origin_ns) / 1'000},
        {"entries_lost", trace.lost}};
    Writer(device, origin_ns, out).Write();
  }
  if (out.ends_with(",\n")) out.resize(out.size() - 2);
  return out + "\n],\"otherData\":" + about.dump() + "}\n";
}

}  // namespace prorata::api
