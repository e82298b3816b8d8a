#pragma once

#include <string>

#include "cli/top/top_screen.h"

namespace prorata::cli {

// What a bar shows, as parts of its length.
struct BarFigures {
  double value = 0;
  double mark = -1;  // a line here; negative: none
  double limit = 1;  // what lies beyond cannot be reached
};

// `columns` wide with its brackets, at least 3; filled in `style`.
Line Bar(const BarFigures& figures, size_t columns, Style style, bool utf8);

// What fits into `columns`, the last of them telling that there was more; padded to them if `pad`.
std::string Fit(const std::string& text, size_t columns, bool pad);
std::string FitRight(const std::string& text, size_t columns);  // padded on the left

// Nothing but printable ASCII: names that a driver or another user chose must not reach a terminal.
std::string Printable(const std::string& text);

}  // namespace prorata::cli
