#pragma once

// What `prorata top` shows, before it becomes lines: the rows in their order, what a key does, and
// the forms for who reads it with a program. Pure: no clock, terminal or socket.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "api/control.h"

namespace prorata::cli {

// What an agent said, at about one moment.
struct TopSnapshot {
  std::vector<api::ShareStatus> shares;
  std::vector<api::DeviceStatus> devices;
};

enum class TopSort : uint8_t { kTime, kEntitled, kMemory, kWaiting, kName, kGpu };
inline constexpr TopSort kTopSorts[] = {TopSort::kTime,    TopSort::kEntitled, TopSort::kMemory,
                                        TopSort::kWaiting, TopSort::kName,     TopSort::kGpu};
// "time", "entitled", "memory", "waiting", "name", "gpu": the words of --sort.
const char* NameOf(TopSort sort);
std::optional<TopSort> SortOf(const std::string& name);

// What the person chose.
struct TopView {
  TopSort sort = TopSort::kTime;
  bool reversed = false;
  size_t scroll = 0;  // rows above the first that is shown
  bool help = false;
};

// A share on one of its devices; points into the snapshot.
struct TopRow {
  const api::ShareStatus* share = nullptr;
  const api::ShareDevice* on = nullptr;
};

// By TopView: the largest first, names and GPUs from the first on; equals by name and GPU, so that
// rows do not change places without a reason.
std::vector<TopRow> RowsOf(const TopSnapshot& snapshot, const TopView& view);

// Keys that are no characters.
enum TopKey : int {
  kTopKeyUp = 1000,
  kTopKeyDown,
  kTopKeyPageUp,
  kTopKeyPageDown,
  kTopKeyHome,
  kTopKeyEnd,
};
enum class KeyEffect : uint8_t { kNone, kRedraw, kRefresh, kQuit };
// `rows` there are, of which `page` fit.
KeyEffect PressKey(int key, size_t rows, size_t page, TopView* view);

// "waits for its turn 49%; over its memory limit"; "runs" where nothing slows it.
std::string WhyWords(const api::ShareDevice& on);
// "12.5%"; also for what is not a part at all (an agent's answer is not trusted).
std::string PercentText(double part);
std::string NameText(const api::ShareStatus& share);             // "train", "train (ending)"
std::string MemoryText(uint64_t used_bytes, uint64_t of_bytes);  // "1 GiB / 4 GiB"

// A table as those of tables.h, each line with `time`: one line a device (NAME "-"), then the rows.
std::string TopTable(const TopSnapshot& snapshot, const TopView& view, const std::string& time);
// One line: an object with the time and what the agent said, rows' order and all.
std::string TopJson(const TopSnapshot& snapshot, const TopView& view, int64_t time_unix_ms);

}  // namespace prorata::cli
