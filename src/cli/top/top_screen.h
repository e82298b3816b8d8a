#pragma once

// The screen of `prorata top` as lines of styled text: a pure function of what is shown and of the
// window's size, so that every size can be tested without a terminal. terminal.h draws it.
//
//   prorata top  2 shares, 1 GPU                       by time, every 1s  12:03:04
//   GPU 0 [██████████████▌     ]  73%  memory [████▌    ] 7.02 GiB / 16 GiB  Simulated GPU
//
//   NAME   [entitled | in the bar      ]   TIME  ENTITLED   LIMIT  MEMORY ...   WHY
//   train  [██████████████│█           ]  59.9%     60.0%  100.0%  ...          waits for other
//   shares 38% serve  [████████▌      │░░░░░░░░░░░]  ...
//
// Columns that do not fit are left out, the least important first; no line is wider than the window
// and there are no more of them than it has.

#include <cstddef>
#include <string>
#include <vector>

#include "cli/top/top_view.h"

namespace prorata::cli {

enum class Style : uint8_t { kPlain, kBold, kDim, kHeader, kSorted, kGood, kWarn, kBad };

struct Span {
  std::string text;
  Style style = Style::kPlain;
};
using Line = std::vector<Span>;

// So many columns `text` takes: it holds ASCII and the glyphs of this file.
size_t ColumnsOf(const std::string& text);
size_t ColumnsOf(const Line& line);

struct TopScene {
  TopSnapshot snapshot;
  TopView view;
  std::string interval;  // "1s"
  std::string time;      // of the snapshot, "12:03:04"; "": there is none yet
  std::string trouble;   // what is wrong with the agent; "": nothing
  bool utf8 = false;     // what is not ASCII can be shown
};

struct Screen {
  std::vector<Line> lines;
  size_t rows = 0;    // there are, in all
  size_t page = 0;    // of which so many are shown
  size_t scroll = 0;  // from this one on
};

Screen LayOut(const TopScene& scene, int width, int height);

}  // namespace prorata::cli
