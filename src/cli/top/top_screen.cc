#include "cli/top/top_screen.h"

#include <algorithm>
#include <utility>

#include "cli/text/tables.h"
#include "cli/top/top_bars.h"

namespace prorata::cli {
namespace {

using api::DeviceStatus;
using api::ShareDevice;

constexpr size_t kGap = 2;  // between columns
constexpr size_t kWhyMin = 8;
constexpr size_t kTroubleLinesMax = 3;
constexpr size_t kFooterFrom = 6;   // windows of so many lines have a footer
constexpr size_t kSpacesFrom = 12;  // and of so many, empty lines

// A column of the table. `wanted` is as wide as it gets; it is there from `least` on.
struct Column {
  enum Id : uint8_t {
    kName,
    kGpu,
    kBar,
    kTime,
    kEntitled,
    kLimit,
    kMemoryBar,
    kMemory,
    kWaited,
    kMembers,
    kWhy
  };
  Id id;
  const char* title;
  size_t least;
  size_t wanted;
  size_t columns = 0;  // as wide as it is; 0: left out
};

std::string Text(Column::Id id, const TopRow& row) {
  const ShareDevice& on = *row.on;
  switch (id) {
    case Column::kName:
      return Printable(NameText(*row.share));
    case Column::kGpu:
      return std::to_string(on.index);
    case Column::kTime:
      return PercentText(on.achieved);
    case Column::kEntitled:
      return EntitledText(on);
    case Column::kLimit:
      return PercentText(on.compute_limit.value());
    case Column::kMemory:
      return MemoryText(on.used_bytes, on.memory_limit_bytes);
    case Column::kWaited:
      return PercentText(on.waiting_part + on.at_limit_part);
    case Column::kMembers:
      return std::to_string(row.share->members.size());
    case Column::kWhy:
      return WhyWords(on);
    case Column::kBar:
    case Column::kMemoryBar:
      break;
  }
  return "";
}

bool IsNumber(Column::Id id) {
  switch (id) {
    case Column::kName:
    case Column::kBar:
    case Column::kMemoryBar:
    case Column::kMemory:
    case Column::kWhy:
      return false;
    default:
      return true;
  }
}

size_t Widest(Column::Id id, const char* title, const std::vector<TopRow>& rows) {
  size_t widest = ColumnsOf(std::string(title));
  for (const TopRow& row : rows) widest = std::max(widest, Text(id, row).size());
  return widest;
}

// What fits into `width`. Room is given by importance: first each column what it needs at least, in
// the order of `importance`, then what it would like, in the order of `growth`.
std::vector<Column> ChooseColumns(const std::vector<TopRow>& rows, bool several_gpus,
                                  size_t width) {
  const auto whole = [&rows](Column::Id id, const char* title) {
    const size_t widest = Widest(id, title, rows);
    return Column{id, title, widest, widest};
  };
  const size_t name = Widest(Column::kName, "NAME", rows);
  const size_t why = Widest(Column::kWhy, "WHY", rows);
  std::vector<Column> columns = {
      {Column::kName, "NAME", std::min<size_t>(name, 10), name},
      whole(Column::kGpu, "GPU"),
      {Column::kBar, "GPU TIME", 12, 42},
      whole(Column::kTime, "TIME"),
      whole(Column::kEntitled, "ENTITLED"),
      whole(Column::kLimit, "LIMIT"),
      {Column::kMemoryBar, "", 10, 18},
      whole(Column::kMemory, "MEMORY"),
      whole(Column::kWaited, "WAITED"),
      whole(Column::kMembers, "MEMBERS"),
      {Column::kWhy, "WHY", std::min<size_t>(why, 22), why},
  };
  using enum Column::Id;
  std::vector<Column::Id> importance = {kName,  kTime, kWhy,       kBar,    kMemory, kEntitled,
                                        kLimit, kGpu,  kMemoryBar, kWaited, kMembers};
  if (several_gpus) {
    std::erase(importance, kGpu);
    importance.insert(importance.begin() + 2, kGpu);
  }
  size_t left = width;
  for (const Column::Id id : importance) {
    Column& column = columns[id];
    const size_t gap = left == width ? 0 : kGap;
    // Half of a reason says more than a whole limit: it is cut before anything takes its place.
    if (id == kWhy && left > gap) {
      column.least = std::clamp(left - gap, std::min(column.least, kWhyMin), column.least);
    }
    if (column.least + gap > left) {
      if (left == width) column.columns = std::exchange(left, 0);  // the first is there in any case
      continue;
    }
    column.columns = column.least;
    left -= column.least + gap;
  }
  for (const Column::Id id : {kName, kWhy, kBar, kMemoryBar}) {
    Column& column = columns[id];
    if (column.columns == 0) continue;
    const size_t more = std::min(left, column.wanted - std::min(column.wanted, column.columns));
    column.columns += more;
    left -= more;
  }
  return columns;
}

Style StyleOf(const ShareDevice& on) {
  if (on.throttle_reasons.empty()) return Style::kGood;
  switch (on.throttle_reasons.front()) {
    case ThrottleReason::kDoesNotAnswer:
    case ThrottleReason::kNonPreemptible:
    case ThrottleReason::kWaitsForMemory:
    case ThrottleReason::kOverMemoryLimit:
      return Style::kBad;
    case ThrottleReason::kAtLimit:
    case ThrottleReason::kWaitsForOthers:
      return Style::kWarn;
    case ThrottleReason::kNoProgram:
    case ThrottleReason::kIdle:
      break;
  }
  return Style::kDim;
}

double PartOf(uint64_t used, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(used) / static_cast<double>(whole);
}

void Add(Line* line, Line more) {
  for (Span& span : more) line->push_back(std::move(span));
}

Line RowLine(const std::vector<Column>& columns, const TopRow& row, bool utf8) {
  const ShareDevice& on = *row.on;
  const bool over = on.used_bytes > on.memory_limit_bytes;
  Line line;
  for (const Column& column : columns) {
    if (column.columns == 0) continue;
    if (!line.empty()) line.push_back({std::string(kGap, ' ')});
    if (column.id == Column::kBar) {
      Add(&line, Bar({on.achieved, on.active ? on.entitled : -1, on.compute_limit.value()},
                     column.columns, Style::kGood, utf8));
    } else if (column.id == Column::kMemoryBar) {
      const bool borrows = on.memory_request_bytes < on.memory_limit_bytes;
      const double request = PartOf(on.memory_request_bytes, on.memory_limit_bytes);
      Add(&line, Bar({PartOf(on.used_bytes, on.memory_limit_bytes), borrows ? request : -1},
                     column.columns, over ? Style::kBad : Style::kGood, utf8));
    } else {
      const std::string text = Text(column.id, row);
      Style style = Style::kPlain;
      if (column.id == Column::kWhy) style = StyleOf(on);
      if (column.id == Column::kMemory && over) style = Style::kBad;
      const bool last = column.id == Column::kWhy;
      line.push_back(
          {IsNumber(column.id) ? FitRight(text, column.columns) : Fit(text, column.columns, !last),
           style});
    }
  }
  return line;
}

bool SortsBy(TopSort sort, Column::Id id) {
  switch (sort) {
    case TopSort::kTime:
      return id == Column::kTime;
    case TopSort::kEntitled:
      return id == Column::kEntitled;
    case TopSort::kMemory:
      return id == Column::kMemory;
    case TopSort::kWaiting:
      return id == Column::kWaited;
    case TopSort::kName:
      return id == Column::kName;
    case TopSort::kGpu:
      return id == Column::kGpu;
  }
  return false;
}

Line HeaderLine(const std::vector<Column>& columns, TopSort sort, size_t width) {
  Line line;
  for (const Column& column : columns) {
    if (column.columns == 0) continue;
    if (!line.empty()) line.push_back({std::string(kGap, ' '), Style::kHeader});
    line.push_back({IsNumber(column.id) ? FitRight(column.title, column.columns)
                                        : Fit(column.title, column.columns, true),
                    SortsBy(sort, column.id) ? Style::kSorted : Style::kHeader});
  }
  const size_t used = ColumnsOf(line);
  if (used < width) line.push_back({std::string(width - used, ' '), Style::kHeader});
  return line;
}

Line DeviceLine(const DeviceStatus& device, size_t width, bool utf8) {
  const std::string label = "GPU " + std::to_string(device.index);
  const std::string busy = FitRight(PercentText(device.busy), 6);
  const std::string memory = MemoryText(device.used_bytes, device.total_bytes);
  const std::string name = Printable(device.name);
  // From the most that can be said to the least.
  const size_t fixed = label.size() + 1 + busy.size();
  const size_t with_memory = fixed + kGap + 7 + memory.size();  // "memory "
  Line line = {{label, Style::kBold}, {" "}};
  if (width < fixed) return {{Fit(label + " " + busy, width, false)}};
  size_t left = width - fixed;
  const bool shows_memory = width >= with_memory;
  if (shows_memory) left = width - with_memory;
  const size_t bar = left >= 12 ? std::min<size_t>(left - 1, 32) : 0;
  if (bar > 0) {
    Add(&line, Bar({device.busy}, bar, Style::kGood, utf8));
    line.push_back({" "});
    left -= bar + 1;
  }
  line.push_back({busy});
  if (shows_memory) {
    line.push_back({"  memory "});
    const size_t memory_bar = left >= 11 ? std::min<size_t>(left - 1, 22) : 0;
    if (memory_bar > 0) {
      Add(&line,
          Bar({PartOf(device.used_bytes, device.total_bytes)}, memory_bar, Style::kGood, utf8));
      line.push_back({" "});
      left -= memory_bar + 1;
    }
    line.push_back({memory});
  }
  if (left >= kGap + 4 && !name.empty()) {
    line.push_back({"  " + Fit(name, left - kGap, false), Style::kDim});
  }
  return line;
}

std::string Count(size_t count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

Line TitleLine(const TopScene& scene, size_t width) {
  std::string left = "prorata top";
  if (!scene.time.empty()) {
    left += "  " + Count(scene.snapshot.shares.size(), "share") + ", " +
            Count(scene.snapshot.devices.size(), "GPU");
  }
  const std::string right = std::string("by ") + NameOf(scene.view.sort) +
                            (scene.view.reversed ? " reversed" : "") + ", every " + scene.interval +
                            (scene.time.empty() ? "" : "  " + scene.time);
  if (left.size() + kGap + right.size() > width) return {{Fit(left, width, false), Style::kBold}};
  return {{left, Style::kBold},
          {std::string(width - left.size() - right.size(), ' ')},
          {right, Style::kDim}};
}

// Broken between words where there are some.
std::vector<Line> Wrap(const std::string& text, size_t width, size_t lines_max, Style style) {
  std::vector<Line> lines;
  std::string rest = Printable(text);
  while (!rest.empty() && lines.size() < lines_max) {
    if (rest.size() <= width || lines.size() + 1 == lines_max) {
      lines.push_back({{Fit(rest, width, false), style}});
      break;
    }
    size_t at = rest.rfind(' ', width);
    if (at == std::string::npos || at == 0) at = width;
    lines.push_back({{rest.substr(0, at), style}});
    rest.erase(0, rest[at] == ' ' ? at + 1 : at);
  }
  return lines;
}

constexpr const char* kHelp[] = {
    "q, Ctrl-C        quit",
    "t e m w n g      sort by GPU time, entitled, memory, waited, name, GPU",
    "s                sort by the next of these        r  the other way round",
    "up down j k      scroll; page up, page down, home, end",
    "space            ask the agent now                h, ?  this help",
    "",
    "TIME      the part of the last second in which the share had the GPU; in the bar",
    "          the line is what it is entitled to, and beyond its limit is shaded",
    "ENTITLED  the part that it is due now, among the shares that want some; -: none",
    "LIMIT     the most of the GPU's time that it may take",
    "WAITED    the part in which its launches were held back",
    "WHY       runs                        nothing slows it",
    "          at its limit 60%            its own limit held it back for so long",
    "          waits for other shares 40%  they had the GPU for so long",
    "          idle 90%                    the program itself asked for nothing",
    "          suspended for memory        an allocation waits until the GPU has room",
    "          cannot be preempted         what it runs does not end when others need the GPU",
    "          over its memory limit       it holds more than it may, and gets no more",
    "          no program runs             the share has no processes",
};

Screen HelpScreen(size_t width, size_t height) {
  Screen screen;
  screen.lines.push_back({{Fit("prorata top: any key goes back", width, false), Style::kBold}});
  for (const char* text : kHelp) screen.lines.push_back({{Fit(text, width, false)}});
  if (screen.lines.size() > height) screen.lines.resize(height);
  return screen;
}

Line FooterLine(const Screen& screen, size_t width) {
  std::string left = "q quit  s sort  r reverse  ? help";
  std::string right;
  if (screen.page < screen.rows) {
    right = std::to_string(screen.scroll + 1) + "-" + std::to_string(screen.scroll + screen.page) +
            " of " + std::to_string(screen.rows);
  }
  if (right.size() >= width) return {{Fit(right, width, false), Style::kDim}};
  left = Fit(left, width - right.size() - (right.empty() ? 0 : 1), false);
  return {{left + std::string(width - left.size() - right.size(), ' ') + right, Style::kDim}};
}

void AddDevices(const TopScene& scene, size_t width, size_t lines_max, Screen* screen) {
  const auto& devices = scene.snapshot.devices;
  size_t shown = devices.size();
  if (shown > lines_max) shown = lines_max > 1 ? lines_max - 1 : 0;
  for (size_t i = 0; i < shown; ++i) {
    screen->lines.push_back(DeviceLine(devices[i], width, scene.utf8));
  }
  if (shown < devices.size() && lines_max > 0) {
    const std::string more = (shown > 0 ? "and " : "") +
                             Count(devices.size() - shown, shown > 0 ? "more GPU" : "GPU") +
                             "; a taller window shows them";
    screen->lines.push_back({{Fit(more, width, false), Style::kDim}});
  }
}

}  // namespace

Screen LayOut(const TopScene& scene, int width_signed, int height_signed) {
  if (width_signed <= 0 || height_signed <= 0) return {};
  const auto width = static_cast<size_t>(width_signed);
  const auto height = static_cast<size_t>(height_signed);
  if (scene.view.help) return HelpScreen(width, height);

  Screen screen;
  const std::vector<TopRow> rows = RowsOf(scene.snapshot, scene.view);
  screen.rows = rows.size();
  screen.lines.push_back(TitleLine(scene, width));
  if (!scene.trouble.empty()) {
    if (height == 1) screen.lines.clear();
    const size_t most = std::min(kTroubleLinesMax, std::max<size_t>(1, height / 3));
    for (Line& line : Wrap(scene.trouble, width, most, Style::kBad)) {
      screen.lines.push_back(std::move(line));
    }
  }
  const bool footer = height >= kFooterFrom;
  const bool spaces = height >= kSpacesFrom;
  const size_t fixed = screen.lines.size() + (footer ? 1 : 0);
  if (height >= fixed + 3) AddDevices(scene, width, (height - fixed) / 3, &screen);
  if (spaces) screen.lines.push_back({});

  if (!scene.time.empty() && screen.lines.size() + (footer ? 1 : 0) < height) {
    const auto columns = ChooseColumns(rows, scene.snapshot.devices.size() > 1, width);
    screen.lines.push_back(HeaderLine(columns, scene.view.sort, width));
    screen.page = std::min(rows.size(), height - screen.lines.size() - (footer ? 1 : 0));
    screen.scroll = std::min(scene.view.scroll, rows.size() - screen.page);
    for (size_t i = 0; i < screen.page; ++i) {
      screen.lines.push_back(RowLine(columns, rows[screen.scroll + i], scene.utf8));
    }
  }
  if (footer) {
    screen.lines.resize(height - 1);
    screen.lines.push_back(FooterLine(screen, width));
  }
  return screen;
}

}  // namespace prorata::cli
