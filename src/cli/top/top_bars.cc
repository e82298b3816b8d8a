#include "cli/top/top_bars.h"

#include <algorithm>
#include <cmath>

namespace prorata::cli {
namespace {

constexpr size_t kEighths = 8;
// A cell that is filled to so many eighths from the left.
constexpr const char* kCells[kEighths + 1] = {" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"};

double Part(double part) { return std::isfinite(part) ? std::clamp(part, 0.0, 1.0) : 0; }

std::string Cell(double filled, bool utf8) {
  if (!utf8) return filled >= 0.5 ? "#" : " ";
  return kCells[static_cast<size_t>(std::lround(filled * kEighths))];
}

void Append(Line* line, const std::string& text, Style style) {
  if (!line->empty() && line->back().style == style) {
    line->back().text += text;
  } else {
    line->push_back({text, style});
  }
}

}  // namespace

size_t ColumnsOf(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;  // a character's first byte
  }));
}

size_t ColumnsOf(const Line& line) {
  size_t columns = 0;
  for (const Span& span : line) columns += ColumnsOf(span.text);
  return columns;
}

Line Bar(const BarFigures& figures, size_t columns, Style style, bool utf8) {
  const size_t inside = columns < 3 ? 1 : columns - 2;
  const auto length = static_cast<double>(inside);
  const double filled = Part(figures.value) * length;
  const auto limit = static_cast<size_t>(std::ceil(Part(figures.limit) * length));
  const size_t mark = figures.mark < 0
                          ? inside
                          : std::min(inside - 1, static_cast<size_t>(Part(figures.mark) * length));
  Line line = {{"[", Style::kDim}};
  for (size_t i = 0; i < inside; ++i) {
    const double here = std::clamp(filled - static_cast<double>(i), 0.0, 1.0);
    if (i == mark) {
      Append(&line, utf8 ? "│" : "|", Style::kBold);
    } else if (i >= limit && here <= 0) {
      Append(&line, utf8 ? "░" : ".", Style::kDim);
    } else {
      Append(&line, Cell(here, utf8), style);
    }
  }
  Append(&line, "]", Style::kDim);
  return line;
}

std::string Fit(const std::string& text, size_t columns, bool pad) {
  if (text.size() > columns) {
    return columns == 0 ? "" : text.substr(0, columns - 1) + "~";
  }
  return pad ? text + std::string(columns - text.size(), ' ') : text;
}

std::string FitRight(const std::string& text, size_t columns) {
  if (text.size() > columns) return Fit(text, columns, false);
  return std::string(columns - text.size(), ' ') + text;
}

std::string Printable(const std::string& text) {
  std::string clean;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte & 0xC0) == 0x80) continue;  // the rest of a character that is a '?' already
    clean += byte >= 0x20 && byte < 0x7F ? c : '?';
  }
  return clean;
}

}  // namespace prorata::cli
