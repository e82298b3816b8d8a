#include "cli/top/top_view.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/bytes.h"
#include "base/clock.h"
#include "cli/text/tables.h"

namespace prorata::cli {
namespace {

using api::DeviceStatus;
using api::ShareDevice;

double HeldBack(const ShareDevice& on) { return on.waiting_part + on.at_limit_part; }

// What rows are compared by where larger comes first.
double Weight(const ShareDevice& on, TopSort sort) {
  switch (sort) {
    case TopSort::kTime:
      return on.achieved;
    case TopSort::kEntitled:
      return on.entitled;
    case TopSort::kMemory:
      return static_cast<double>(on.used_bytes);
    case TopSort::kWaiting:
      return HeldBack(on);
    case TopSort::kName:
    case TopSort::kGpu:
      break;
  }
  return 0;
}

// Does `a` come before `b`, by what is sorted by? Equal: neither before the other.
bool Before(const TopRow& a, const TopRow& b, TopSort sort) {
  if (sort == TopSort::kName) return a.share->name < b.share->name;
  if (sort == TopSort::kGpu) return a.on->index < b.on->index;
  return Weight(*a.on, sort) > Weight(*b.on, sort);
}

std::string WholePercent(double part) {
  return std::to_string(std::lround(100 * std::clamp(part, 0.0, 1.0))) + "%";
}

std::string WordsOf(ThrottleReason reason, const ShareDevice& on) {
  switch (reason) {
    case ThrottleReason::kNoProgram:
      return "no program runs";
    case ThrottleReason::kDoesNotAnswer:
      return "does not answer: stopped?";
    case ThrottleReason::kNonPreemptible:
      return on.persistent_kernels > 0 ? "cannot be preempted: a persistent kernel"
                                       : "cannot be preempted: its kernels do not end";
    case ThrottleReason::kWaitsForMemory:
      return "suspended for memory " + std::to_string(on.memory_waiting_ns / kNsPerS) + " s";
    case ThrottleReason::kAtLimit:
      // Without a limit of its own it can only be the GPU's elastic ceiling that held it back.
      return (on.compute_limit < Fraction::One() ? "at its limit " : "at the elastic ceiling ") +
             WholePercent(on.at_limit_part);
    case ThrottleReason::kWaitsForOthers:
      return "waits for other shares " + WholePercent(on.waiting_part);
    case ThrottleReason::kIdle:
      return "idle " + WholePercent(1 - on.achieved - HeldBack(on));
    case ThrottleReason::kOverMemoryLimit:
      return "over its memory limit";
  }
  return "?";
}

void MoveSort(TopView* view) {
  const size_t count = std::size(kTopSorts);
  for (size_t i = 0; i < count; ++i) {
    if (kTopSorts[i] != view->sort) continue;
    view->sort = kTopSorts[(i + 1) % count];
    return;
  }
}

std::optional<TopSort> SortOfKey(int key) {
  switch (key) {
    case 't':
      return TopSort::kTime;
    case 'e':
      return TopSort::kEntitled;
    case 'm':
      return TopSort::kMemory;
    case 'w':
      return TopSort::kWaiting;
    case 'n':
      return TopSort::kName;
    case 'g':
      return TopSort::kGpu;
    default:
      return std::nullopt;
  }
}

// Moves what is shown by `step` rows, as far as there are some.
KeyEffect Scroll(int64_t step, size_t rows, size_t page, TopView* view) {
  const auto most = static_cast<int64_t>(rows > page ? rows - page : 0);
  view->scroll =
      static_cast<size_t>(std::clamp<int64_t>(static_cast<int64_t>(view->scroll) + step, 0, most));
  return KeyEffect::kRedraw;
}

}  // namespace

const char* NameOf(TopSort sort) {
  switch (sort) {
    case TopSort::kTime:
      return "time";
    case TopSort::kEntitled:
      return "entitled";
    case TopSort::kMemory:
      return "memory";
    case TopSort::kWaiting:
      return "waiting";
    case TopSort::kName:
      return "name";
    case TopSort::kGpu:
      return "gpu";
  }
  return "?";
}

std::optional<TopSort> SortOf(const std::string& name) {
  for (const TopSort sort : kTopSorts) {
    if (name == NameOf(sort)) return sort;
  }
  return std::nullopt;
}

std::vector<TopRow> RowsOf(const TopSnapshot& snapshot, const TopView& view) {
  std::vector<TopRow> rows;
  for (const api::ShareStatus& share : snapshot.shares) {
    for (const ShareDevice& on : share.devices) rows.push_back({&share, &on});
  }
  std::sort(rows.begin(), rows.end(), [](const TopRow& a, const TopRow& b) {
    return std::tie(a.share->name, a.on->index) < std::tie(b.share->name, b.on->index);
  });
  std::stable_sort(rows.begin(), rows.end(), [&view](const TopRow& a, const TopRow& b) {
    return view.reversed ? Before(b, a, view.sort) : Before(a, b, view.sort);
  });
  return rows;
}

KeyEffect PressKey(int key, size_t rows, size_t page, TopView* view) {
  if (view->help && key != 'q') {  // any key leaves the help
    view->help = false;
    return KeyEffect::kRedraw;
  }
  if (const auto sort = SortOfKey(key)) {
    view->sort = *sort;
    return KeyEffect::kRedraw;
  }
  const auto all = static_cast<int64_t>(rows);
  const auto screenful = static_cast<int64_t>(std::max<size_t>(page, 1));
  switch (key) {
    case 'q':
    case 'Q':
      return KeyEffect::kQuit;
    case 's':
      MoveSort(view);
      return KeyEffect::kRedraw;
    case 'r':
      view->reversed = !view->reversed;
      return KeyEffect::kRedraw;
    case '?':
    case 'h':
      view->help = true;
      return KeyEffect::kRedraw;
    case ' ':
      return KeyEffect::kRefresh;
    case 'k':
    case kTopKeyUp:
      return Scroll(-1, rows, page, view);
    case 'j':
    case kTopKeyDown:
      return Scroll(1, rows, page, view);
    case kTopKeyPageUp:
      return Scroll(-screenful, rows, page, view);
    case kTopKeyPageDown:
      return Scroll(screenful, rows, page, view);
    case kTopKeyHome:
      return Scroll(-all, rows, page, view);
    case kTopKeyEnd:
      return Scroll(all, rows, page, view);
    default:
      return KeyEffect::kNone;
  }
}

std::string WhyWords(const ShareDevice& on) {
  std::string words;
  for (const ThrottleReason reason : on.throttle_reasons) {
    words += (words.empty() ? "" : "; ") + WordsOf(reason, on);
  }
  return words.empty() ? "runs" : words;
}

std::string NameText(const api::ShareStatus& share) {
  return share.name + (share.ended ? " (ending)" : "");
}

std::string MemoryText(uint64_t used_bytes, uint64_t of_bytes) {
  return FormatBytes(used_bytes) + " / " + FormatBytes(of_bytes);
}

std::string TopTable(const TopSnapshot& snapshot, const TopView& view, const std::string& time) {
  std::vector<std::vector<std::string>> rows = {{"TIME", "NAME", "GPU", "GPU TIME", "ENTITLED",
                                                 "LIMIT", "WAITED", "AT LIMIT", "MEMORY", "WHY"}};
  for (const DeviceStatus& device : snapshot.devices) {
    rows.push_back({time, "-", std::to_string(device.index), PercentText(device.busy), "-", "-",
                    "-", "-", MemoryText(device.used_bytes, device.total_bytes), "-"});
  }
  for (const TopRow& row : RowsOf(snapshot, view)) {
    const ShareDevice& on = *row.on;
    rows.push_back({time, NameText(*row.share), std::to_string(on.index), PercentText(on.achieved),
                    EntitledText(on), PercentText(on.compute_limit.value()),
                    PercentText(on.waiting_part), PercentText(on.at_limit_part),
                    MemoryText(on.used_bytes, on.memory_limit_bytes), WhyWords(on)});
  }
  return FormatRows(rows);
}

std::string TopJson(const TopSnapshot& snapshot, const TopView& view, int64_t time_unix_ms) {
  // Shares are whole in what the agent says; they are in the order of their first rows.
  std::vector<const api::ShareStatus*> order;
  for (const TopRow& row : RowsOf(snapshot, view)) {
    if (std::find(order.begin(), order.end(), row.share) == order.end()) order.push_back(row.share);
  }
  nlohmann::json object = {{"time_unix_ms", time_unix_ms},
                           {"devices", nlohmann::json::array()},
                           {"shares", nlohmann::json::array()}};
  for (const DeviceStatus& device : snapshot.devices) object["devices"].push_back(ToJson(device));
  for (const auto* share : order) object["shares"].push_back(ToJson(*share));
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace prorata::cli
