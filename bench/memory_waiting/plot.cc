#include "bench/memory_waiting/plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

namespace prorata::bench {
namespace {

constexpr double kWidth = 300, kHeight = 220, kLeft = 50, kTop = 40, kGap = 40;

struct Panel {
  const char* title;
  double Row::* value;
};
constexpr Panel kPanels[] = {{"makespan, s", &Row::makespan_s},
                             {"mean suspended, s", &Row::mean_suspended_s},
                             {"longest wait, s", &Row::longest_wait_s}};
constexpr const char* kColours[] = {"#0b6e4f", "#c1440e", "#3b5ba5", "#8c6bb1"};

std::string Text(double x, double y, const char* anchor, const std::string& text) {
  char line[256];
  std::snprintf(line, sizeof line, "<text x='%.1f' y='%.1f' text-anchor='%s'>%s</text>\n", x, y,
                anchor, text.c_str());
  return line;
}

// A round number of about a quarter of the range.
double Step(double most) {
  const double rough = most / 4;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) return factor * power;
  }
  return 10 * power;
}

std::string Draw(const Panel& panel, double left, const std::vector<Row>& rows,
                 int most_containers) {
  double most = 1;
  for (const Row& row : rows) most = std::max(most, row.*panel.value);
  const auto x = [&](double containers) { return left + kWidth * containers / most_containers; };
  const auto y = [&](double value) { return kTop + kHeight * (1 - value / most); };
  std::string out = Text(left, kTop - 12, "start", panel.title);
  char line[256];
  for (double value = 0; value <= most; value += Step(most)) {
    std::snprintf(line, sizeof line,
                  "<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' stroke='#ddd'/>\n", left, y(value),
                  left + kWidth, y(value));
    out += line;
    std::snprintf(line, sizeof line, "%.0f", value);
    out += Text(left - 6, y(value) + 4, "end", line);
  }
  for (int containers = 0; containers <= most_containers; containers += 8) {
    out += Text(x(containers), kTop + kHeight + 16, "middle", std::to_string(containers));
  }
  out += Text(left + kWidth / 2, kTop + kHeight + 34, "middle", "containers");
  std::map<std::string, std::string> lines;
  for (const Row& row : rows) {
    std::snprintf(line, sizeof line, "%.1f,%.1f ", x(row.containers), y(row.*panel.value));
    lines[row.policy] += line;
  }
  size_t colour = 0;
  for (const auto& [policy, points] : lines) {
    out += "<polyline fill='none' stroke-width='2' stroke='" +
           std::string(kColours[colour++ % std::size(kColours)]) + "' points='" + points + "'/>\n";
  }
  return out;
}

}  // namespace

std::string Plot(const std::vector<Row>& rows) {
  int most = 1;
  std::map<std::string, int> policies;  // in the order of Draw's lines
  for (const Row& row : rows) {
    most = std::max(most, row.containers);
    policies[row.policy] = 0;
  }
  const double width = 3 * (kWidth + kLeft + kGap), height = kTop + kHeight + 80;
  char head[256];
  std::snprintf(head, sizeof head,
                "<svg xmlns='http://www.w3.org/2000/svg' width='%.0f' height='%.0f' "
                "font-family='sans-serif' font-size='12'>\n<rect width='100%%' height='100%%' "
                "fill='white'/>\n",
                width, height);
  std::string out = head;
  for (size_t i = 0; i < std::size(kPanels); ++i) {
    out += Draw(kPanels[i], kLeft + static_cast<double>(i) * (kWidth + kLeft + kGap), rows, most);
  }
  size_t colour = 0;
  double x = kLeft;
  for (const auto& [policy, unused] : policies) {
    char line[200];
    std::snprintf(line, sizeof line, "<rect x='%.0f' y='%.0f' width='16' height='3' fill='%s'/>\n",
                  x, height - 16, kColours[colour++ % std::size(kColours)]);
    out += line + Text(x + 22, height - 10, "start", policy);
    x += 110;
  }
  return out + "</svg>\n";
}

}  // namespace prorata::bench
