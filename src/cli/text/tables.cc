#include "cli/text/tables.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "agent/config/overcommit.h"
#include "base/bytes.h"
#include "base/clock.h"

namespace prorata::cli {
namespace {

using Row = std::vector<std::string>;

constexpr size_t kMembersShown = 8;
constexpr std::ptrdiff_t kAfterPromised = 4;  // a place in the table of GPUs

}  // namespace

std::string FormatRows(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths(rows.front().size());
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      text += row[i];
      if (i + 1 < row.size()) text.append(widths[i] - row[i].size() + 2, ' ');
    }
    text += '\n';
  }
  return text;
}

std::string PercentText(double part) {
  if (!std::isfinite(part) || part < 0 || part > 9.99) return "?";
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.1f%%", 100 * part);
  return buffer;
}

std::string EntitledText(const api::ShareDevice& device) {
  return device.active ? PercentText(device.entitled) : "-";
}

namespace {

// "1 GiB / 4 GiB (512 MiB)": used, limit, and what of the used no allocation asked for; "~": that
// is estimated. "request 2 GiB": so much of the limit is guaranteed, not all. After `prorata
// update`, or by overhead alone, the use may be above the limit: then nothing more is given. Far
// above it by what prorata did not give: "BYPASS?". "waits 12 s": an allocation waits for memory of
// the device since so long.
std::string Memory(const api::ShareDevice& device) {
  return FormatBytes(device.used_bytes) + " / " + FormatBytes(device.memory_limit_bytes) + " (" +
         (device.figures_missing ? "~" : "") + FormatBytes(device.overhead_bytes) + ")" +
         (device.memory_request_bytes < device.memory_limit_bytes
              ? " request " + FormatBytes(device.memory_request_bytes)
              : "") +
         (device.used_bytes > device.memory_limit_bytes ? " over" : "") +
         (device.bypass_suspected ? " BYPASS?" : "") +
         (device.memory_waits > 0
              ? " waits " + std::to_string(device.memory_waiting_ns / kNsPerS) + " s"
              : "");
}

// "12 GiB", "8 GiB (limits 24 GiB)": the requests, and where they are less the limits;
// "0 B (limits 20 GiB, up to 1.5x)": of shares that are guaranteed nothing, so many times the GPU.
std::string Promised(const api::DeviceStatus& device) {
  std::string more;
  if (device.limit_bytes > device.promised_bytes) {
    more = "limits " + FormatBytes(device.limit_bytes);
  }
  if (device.overcommit > 1) {
    more += (more.empty() ? "" : ", ") + std::string("up to ") +
            agent::FormatRatio(device.overcommit) + "x";
  }
  return FormatBytes(device.promised_bytes) + (more.empty() ? "" : " (" + more + ")");
}

// "25%-100%", and what else is not as with everybody: "25%-100% priority 10 gang".
std::string Compute(const api::ShareStatus& share, const api::ShareDevice& device) {
  return FormatPercent(device.compute_request) + "-" + FormatPercent(device.compute_limit) +
         (device.priority != 0 ? " priority " + std::to_string(device.priority) : "") +
         (share.runs_as_gang ? " gang" : "");
}

std::string Members(const api::ShareStatus& share) {
  std::string text;
  for (size_t i = 0; i < share.members.size() && i < kMembersShown; ++i) {
    text += (i > 0 ? "," : "") + std::to_string(share.members[i].pid);
  }
  if (share.members.size() > kMembersShown) {
    text += "+" + std::to_string(share.members.size() - kMembersShown);
  }
  // Programs of its container that it does not hold: `prorata inspect` says which.
  if (!share.outside.empty()) {
    text += (text.empty() ? "" : " ") + std::string("(") + std::to_string(share.outside.size()) +
            " OUTSIDE)";
  }
  return text.empty() ? "-" : text;
}

// The words of `nvidia-smi topo --matrix`.
std::string LinkWord(const DeviceLink& link) {
  switch (link.kind) {
    case LinkClass::kSelf:
      return "-";
    case LinkClass::kNvlink:
      return link.nvlinks > 0 ? "NV" + std::to_string(link.nvlinks) : "NV";
    case LinkClass::kInternal:
      return "PSB";
    case LinkClass::kSingle:
      return "PIX";
    case LinkClass::kMultiple:
      return "PXB";
    case LinkClass::kHostBridge:
      return "PHB";
    case LinkClass::kNode:
      return "NODE";
    case LinkClass::kSystem:
      return "SYS";
    case LinkClass::kUnknown:
      break;
  }
  return "?";
}

// How the GPUs reach each other; nothing where there is one.
std::string LinkTable(const std::vector<api::DeviceStatus>& devices) {
  if (devices.size() < 2) return "";
  std::vector<Row> rows = {{"LINKS"}};
  for (const api::DeviceStatus& device : devices) {
    rows.front().push_back("GPU " + std::to_string(device.index));
    Row& row = rows.emplace_back();
    row.push_back("GPU " + std::to_string(device.index));
    for (const DeviceLink& link : device.links) row.push_back(LinkWord(link));
    row.resize(devices.size() + 1, "?");
  }
  return "\n" + FormatRows(rows);
}

// A line for each mark of the table that needs one.
std::string Notes(const std::vector<api::ShareStatus>& shares) {
  std::string notes;
  for (const api::ShareStatus& share : shares) {
    for (const api::ShareDevice& device : share.devices) {
      const std::string where = "share '" + share.name + "' on GPU " + std::to_string(device.index);
      if (device.bypass_suspected) {
        notes += "BYPASS?: " + where + " holds " + FormatBytes(device.used_bytes) +
                 ", far above its limit of " + FormatBytes(device.memory_limit_bytes) +
                 ": a program of it takes memory past prorata; `prorata events --all` says which\n";
      }
      if (device.figures_missing) {
        notes += "~: " + where +
                 ": the device gives no figures per process; the overhead is estimated from its "
                 "total\n";
      }
    }
  }
  return notes;
}

}  // namespace

std::string ShareTable(const std::vector<api::ShareStatus>& shares) {
  std::vector<Row> rows = {{"NAME", "GPU", "MEMORY", "COMPUTE", "GPU TIME", "ENTITLED", "MEMBERS"}};
  const bool containers = std::any_of(
      shares.begin(), shares.end(), [](const auto& share) { return share.container.has_value(); });
  if (containers) rows.front().push_back("CONTAINER");
  for (const api::ShareStatus& share : shares) {
    for (const api::ShareDevice& device : share.devices) {
      const std::string name = share.name + (share.ended ? " (ending)" : "");
      if (share.exclusive) {
        rows.push_back({name, std::to_string(device.index), "exclusive", "all", "-", "-", "-"});
      } else {
        rows.push_back({name, std::to_string(device.index), Memory(device), Compute(share, device),
                        PercentText(device.achieved), EntitledText(device), Members(share)});
      }
      if (containers) rows.back().push_back(share.container ? share.container->name : "-");
    }
  }
  return FormatRows(rows) + Notes(shares);
}

std::string WaitingTable(const std::vector<api::WaitingShare>& line) {
  std::vector<Row> rows = {
      {"PLACE", "NAME", "GPU", "MEMORY", "COMPUTE", "WAITED", "PROCESS", "WAITS FOR"}};
  for (const api::WaitingShare& waiting : line) {
    std::string gpus;
    for (const std::string& gpu : waiting.gpus) gpus += (gpus.empty() ? "" : ",") + gpu;
    if (gpus.empty())
      gpus = "any" + (waiting.gpu_count > 1 ? " " + std::to_string(waiting.gpu_count) : "");
    rows.push_back({std::to_string(waiting.place), waiting.name.empty() ? "-" : waiting.name, gpus,
                    waiting.exclusive      ? "all"
                    : waiting.memory_bytes ? FormatBytes(*waiting.memory_bytes)
                                           : "-",
                    waiting.exclusive ? "all" : FormatPercent(waiting.compute_request),
                    std::to_string(waiting.waited_ms / 1000) + " s", std::to_string(waiting.pid),
                    waiting.why});
  }
  return FormatRows(rows);
}

std::string DeviceTable(const std::vector<api::DeviceStatus>& devices) {
  const bool lends = std::ranges::any_of(
      devices, [](const auto& device) { return device.limit_bytes > device.promised_bytes; });
  std::vector<Row> rows = {{"GPU", "NAME", "MEMORY", "PROMISED", "OTHERS", "COMPUTE PROMISED",
                            "GPU TIME", "TIME OF OTHERS", "SHARES", "UUID"}};
  if (lends) rows.front().insert(rows.front().begin() + kAfterPromised, "BORROWED");
  for (const api::DeviceStatus& device : devices) {
    rows.push_back({std::to_string(device.index), device.name,
                    FormatBytes(device.used_bytes) + " / " + FormatBytes(device.total_bytes),
                    Promised(device), FormatBytes(device.foreign_bytes),
                    FormatPercent(device.promised_request), PercentText(device.busy),
                    device.others ? PercentText(*device.others) : "-",
                    std::to_string(device.shares), device.uuid});
    if (lends) {
      rows.back().insert(rows.back().begin() + kAfterPromised, FormatBytes(device.borrowed_bytes));
    }
  }
  // One NVML serves all devices.
  int64_t unresponsive_ms = 0;
  for (const auto& device : devices)
    unresponsive_ms = std::max(unresponsive_ms, device.driver_unresponsive_ms);
  std::string note;
  if (unresponsive_ms > 0) {
    note = "The driver (NVML) has not answered for " + std::to_string(unresponsive_ms / 1000) +
           " s: the figures of MEMORY and OTHERS are as old. See the kernel's log (dmesg) for its "
           "errors.\n";
  }
  return FormatRows(rows) + LinkTable(devices) + note;
}

}  // namespace prorata::cli
