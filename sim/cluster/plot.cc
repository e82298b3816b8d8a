#include <algorithm>
#include <array>
#include <cstdio>

#include "sim/cluster/simulate.h"

namespace prorata::sim::cluster {
namespace {

constexpr std::array<const char*, 10> kColours = {"#999999", "#b8860b", "#8c6bb1", "#5e9ca0",
                                                  "#3b5ba5", "#c1440e", "#e08a6d", "#777755",
                                                  "#c05ba5", "#0b6e4f"};

// A name in double quotes of gnuplot.
std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

std::string DataOf(const PolicyRuns& runs, size_t number, int most) {
  std::string text = "$p" + std::to_string(number) + " << EOD\n";
  for (int load = 1; load <= most; ++load) {
    char line[128];
    std::snprintf(line, sizeof(line), "%d %.4f %.4f %.2f\n", load, runs.Unallocated(load),
                  runs.Fragmentation(load), runs.Waiting(load));
    text += line;
  }
  return text + "EOD\n";
}

std::string Panel(const Study& study, const char* title, int column, bool key,
                  const std::string& range) {
  std::string text = "set title '" + std::string(title) + "'\nset yrange [" + range + "]\n" +
                     (key ? "set key at graph 0.02,0.98 left top Left reverse\n" : "unset key\n") +
                     "plot ";
  for (size_t i = 0; i < study.policies.size(); ++i) {
    const auto kind = PolicyOf(study.policies[i].policy);
    const bool ours = kind && IsProrata(*kind);
    text += (i == 0 ? "" : ", ") + std::string("$p") + std::to_string(i) +
            " using 1:" + std::to_string(column) + " with lines lw " + (ours ? "3" : "1.5") +
            " lc rgb '" + kColours[static_cast<size_t>(*kind) % kColours.size()] + "' title '" +
            study.policies[i].policy + "'";
  }
  return text + "\n";
}

std::string Script(const Study& study, const std::string& path, bool svg) {
  double most = 1;
  for (const PolicyRuns& runs : study.policies) {
    for (const RunResult& run : runs.runs) most = std::max(most, run.points.back().load_percent);
  }
  std::string text =
      svg ? "set terminal svg size 1200,380 font 'sans-serif,12' background '#ffffff'\n"
          : "set terminal pngcairo size 1200,380 font 'sans,10'\n";
  text += "set output " + Quoted(path) + "\nset encoding utf8\n";
  for (size_t i = 0; i < study.policies.size(); ++i) {
    text += DataOf(study.policies[i], i, static_cast<int>(most));
  }
  const bool times = study.arrivals == Arrivals::kTimes;
  text +=
      "set multiplot layout 1,3\nset grid ytics lc rgb '#dddddd'\nset border 3\n"
      "set tics nomirror\nset xlabel 'GPU asked for so far, % of all'\n";
  if (!times && most > 100)
    text += "set xrange [70:" + std::to_string(static_cast<int>(most)) + "]\n";
  text +=
      Panel(study, "Unallocated GPU, % of all", 2, false, times || most <= 100 ? "0:100" : "0:30");
  text += Panel(study, "Fragmented, % of what is unallocated", 3, false, "0:100");
  text += Panel(study, times ? "Shares that wait" : "Shares that did not fit", 4, true, "0:*");
  return text + "unset multiplot\n";
}

}  // namespace

Status WritePlot(const Study& study, const std::string& path) {
  const bool svg = path.ends_with(".svg");
  if (!svg && !path.ends_with(".png")) {
    return Fail("usage", "--plot: '" + path + "' ends in neither .svg nor .png");
  }
  FILE* gnuplot =
      popen("gnuplot", "w");  // it inherits standard error, and says there what is wrong
  if (gnuplot == nullptr) return Fail("no_gnuplot", "gnuplot cannot be started");
  const std::string script = Script(study, path, svg);
  std::fwrite(script.data(), 1, script.size(), gnuplot);
  if (pclose(gnuplot) != 0) {
    return Fail("no_gnuplot",
                path + ": gnuplot drew nothing; is it installed (package gnuplot-nox)?");
  }
  return {};
}

}  // namespace prorata::sim::cluster
