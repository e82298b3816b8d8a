#include <ctime>

#include "api/on_full.h"
#include "base/bytes.h"
#include "base/duration.h"
#include "cli/container_commands.h"
#include "cli/text/tables.h"

namespace prorata::cli {
namespace {

using Row = std::vector<std::string>;

std::string Date(int64_t unix_s) {
  const std::time_t seconds = unix_s;
  std::tm local{};
  ::localtime_r(&seconds, &local);
  char text[64];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local);
  return text;
}

void AddDevice(const api::ShareDevice& device, std::vector<Row>* rows) {
  rows->push_back({"GPU " + std::to_string(device.index), device.uuid});
  rows->push_back({"  memory request", FormatBytes(device.memory_request_bytes)});
  rows->push_back({"  memory limit", FormatBytes(device.memory_limit_bytes)});
  rows->push_back({"  memory used", FormatBytes(device.used_bytes) + ", of it " +
                                        FormatBytes(device.overhead_bytes) +
                                        " that no allocation asked for"});
  rows->push_back({"  refusals", std::to_string(device.refusals)});
  rows->push_back({"  compute request", FormatPercent(device.compute_request)});
  rows->push_back({"  compute limit", FormatPercent(device.compute_limit)});
  rows->push_back({"  weight", std::to_string(device.weight)});
  rows->push_back({"  priority", std::to_string(device.priority)});
  rows->push_back({"  yield within", FormatDuration(device.yield_within_ns)});
  rows->push_back(
      {"  GPU time", PercentText(device.achieved) + ", entitled " + EntitledText(device)});
}

std::string Names(const std::vector<std::string>& shares) {
  std::string names;
  for (const std::string& share : shares) names += (names.empty() ? "" : ", ") + share;
  return names.empty() ? "no other share" : names;
}

// "python, on GPU 0, 512 MiB, by /usr/local/cuda/compat/libcuda.so.1: no limit of the share holds
// for it"
std::string Outside(const api::OutsideStatus& process) {
  return (process.command.empty() ? "" : process.command + ", ") + "on GPU " +
         std::to_string(process.gpu) +
         (process.used_bytes ? ", " + FormatBytes(*process.used_bytes) : "") + ", by " +
         (process.libraries.empty() ? "no libcuda that is seen" : process.libraries) +
         ": no limit of the share holds for it";
}

}  // namespace

std::string InspectText(const api::ShareStatus& share, bool is_device) {
  std::vector<Row> rows = {
      {"share", share.name + (share.ended ? " (ending)" : "")},
      {"device", is_device ? "prorata.dev/share=" + share.name : "none for containers"},
      {"mode", share.exclusive ? "exclusive: whole GPUs, with the plain driver" : "shared"},
      {"kept by", FormatKeptBy(share.kept_by)},
      {"owner", "user " + std::to_string(share.owner_uid)},
      {"created", Date(share.created_unix_s)},
      {"folder", share.directory},
      {"allowed users", FormatAllowedUsers(share.allow_users).empty()
                            ? "none but its owner and root"
                            : FormatAllowedUsers(share.allow_users)},
      {"exports memory to", Names(share.share_memory_with)},
      {"containers", share.any_container ? "several at once" : "one after another"},
      {"on full", FormatOnFull(share.on_full)},
      {"gang", FormatGang(share.gang)},
  };
  if (share.container) {
    rows.push_back({"container", share.container->name + " (" + share.container->engine + " " +
                                     share.container->id.substr(0, 12) + ")"});
  }
  for (const api::ShareDevice& device : share.devices) {
    if (share.exclusive) {
      rows.push_back({"GPU " + std::to_string(device.index), device.uuid});
    } else {
      AddDevice(device, &rows);
    }
  }
  for (const api::MemberStatus& member : share.members) {
    rows.push_back(
        {"process " + std::to_string(member.pid),
         (member.command.empty() ? "" : member.command + ", ") + FormatBytes(member.used_bytes)});
  }
  for (const api::OutsideStatus& process : share.outside) {
    rows.push_back({"outside " + std::to_string(process.pid), Outside(process)});
  }
  return FormatRows(rows);
}

}  // namespace prorata::cli
