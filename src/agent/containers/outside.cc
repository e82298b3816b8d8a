#include "agent/containers/outside.h"

#include <algorithm>
#include <set>

namespace prorata::agent {
namespace {

constexpr size_t kMaxInspected = 256;

policy::OutsideWatch::Process ProcessKey(const OutsideProcess& process) {
  return {process.process.pid, process.process.start_ticks};
}

}  // namespace

Outside::Outside(boost::asio::io_context& loop, Devices& devices)
    : devices_(devices), worker_(loop, 1) {}

void Outside::Poll() {
  if (under_way_ || devices_.UnansweredNs() > 0) return;
  std::set<size_t> wanted;
  for (const SharePlace& share : shares())
    wanted.insert(share.devices.begin(), share.devices.end());
  if (wanted.empty()) {
    watches_.clear();
    found_.clear();
    return;
  }
  under_way_ = true;
  auto listed = std::make_shared<Listed>();
  auto left = std::make_shared<size_t>(wanted.size());
  for (const size_t device : wanted) {
    devices_.ReadProcesses(
        device, [this, device, listed, left](const Devices::Reading<Devices::ByProcess>& reading) {
          if (reading.value) {
            for (const auto& [pid, bytes] : *reading.value) listed->insert({pid, {device, bytes}});
          }
          if (--*left == 0) Inspect(listed);
        });
  }
}

void Outside::Inspect(const std::shared_ptr<Listed>& listed) {
  std::erase_if(*listed, [this](const auto& entry) { return is_member(entry.first); });
  auto places = std::make_shared<std::vector<SharePlace>>(shares());
  auto seen = std::make_shared<Seen>();
  if (listed->empty()) {
    under_way_ = false;
    return Judge(*listed, *seen, *places);
  }
  std::set<pid_t> pids;
  for (const auto& [pid, usage] : *listed) {
    if (pids.size() < kMaxInspected) pids.insert(pid);
  }
  const auto work = [pids = std::move(pids), places, seen] {
    for (const pid_t pid : pids) {
      if (auto process = InspectOutside(pid)) seen->processes.push_back(std::move(*process));
    }
    if (seen->processes.empty()) return;
    for (const SharePlace& place : *places) {
      if (auto folder = IdentifyFolder(place.folder)) seen->folders[place.id] = std::move(*folder);
    }
  };
  under_way_ = worker_.Run(work, [this, listed, places, seen] {
    under_way_ = false;
    // One that has joined meanwhile was only about to.
    std::erase_if(seen->processes,
                  [this](const auto& process) { return is_member(process.process.pid); });
    Judge(*listed, *seen, *places);
  });
}

void Outside::Judge(const Listed& listed, const Seen& seen, const std::vector<SharePlace>& places) {
  std::map<uint64_t, policy::OutsideWatch> watches;
  found_.clear();
  for (const SharePlace& place : places) {
    std::vector<Found>& found = found_[place.id];
    std::set<policy::OutsideWatch::Process> keys;
    const auto folder = seen.folders.find(place.id);
    for (const OutsideProcess& process : seen.processes) {
      // By its cgroup, or, where none of its programs has joined yet, by what it was given.
      const bool in_its_container =
          place.container == process.group ||
          (folder != seen.folders.end() && process.share == folder->second);
      if (!in_its_container) continue;
      const auto [from, to] = listed.equal_range(process.process.pid);
      for (auto usage = from; usage != to; ++usage) {
        const auto& [device, used_bytes] = usage->second;
        if (std::find(place.devices.begin(), place.devices.end(), device) == place.devices.end()) {
          continue;
        }
        if (keys.insert(ProcessKey(process)).second) found.push_back({process, device, used_bytes});
      }
    }
    policy::OutsideWatch& watch = watches[place.id] = std::move(watches_[place.id]);
    for (const auto& begun : watch.Poll(keys)) {
      for (const Found& one : found) {
        if (ProcessKey(one.process) == begun) on_found(place.id, one);
      }
    }
  }
  watches_ = std::move(watches);
}

std::vector<Outside::Found> Outside::Of(uint64_t share_id) const {
  std::vector<Found> reported;
  const auto watch = watches_.find(share_id);
  const auto found = found_.find(share_id);
  if (watch == watches_.end() || found == found_.end()) return reported;
  for (const Found& one : found->second) {
    if (watch->second.reported().contains(ProcessKey(one.process))) reported.push_back(one);
  }
  return reported;
}

}  // namespace prorata::agent
