// Pods that are placed together: all of a group or none.

#include <algorithm>
#include <functional>

#include "kubernetes/extender/account.h"

namespace prorata::kubernetes {

size_t Account::CountBound(const std::string& group) const {
  return std::ranges::count_if(
      pods_, [&](const auto& pod) { return pod.second.group == group && !pod.second.until; });
}

// What it has, if that is among the nodes that were asked about.
Account::Filtered Account::PlaceOf(const std::string& uid,
                                   std::span<const std::string> nodes) const {
  Filtered filtered;
  const auto own = pods_.find(uid);
  if (own == pods_.end()) return filtered;
  const auto at = std::ranges::find(nodes, own->second.node);
  if (at == nodes.end()) return filtered;
  filtered.fits.push_back({static_cast<size_t>(at - nodes.begin()), 0});
  filtered.best = 0;
  return filtered;
}

std::string Account::PlaceGroup(const PodGroup& group, std::span<const std::string> nodes,
                                Time now) {
  const auto& waiting = waiting_[group.name];
  const size_t there = CountBound(group.name) + waiting.size();
  if (there < group.size) {
    return "pods of the group '" + group.name + "' are placed together, and " +
           std::to_string(there) + " of " + std::to_string(group.size) + " are there";
  }
  using Member = std::pair<const std::string, std::vector<ContainerRequest>>;
  std::vector<const Member*> order;
  for (const Member& member : waiting) {
    if (!pods_.contains(member.first)) order.push_back(&member);
  }
  const auto size = [](const Member* member) {
    uint64_t percent = 0, units = 0;
    for (const ContainerRequest& one : member->second) {
      percent += uint64_t{one.gpu_count} * one.compute_percent;
      units += one.gpu_count * one.memory_units;
    }
    return std::pair(percent, units);
  };
  std::ranges::stable_sort(order, std::greater(), size);
  for (size_t i = 0; i < order.size(); ++i) {
    if (Filter(order[i]->first, order[i]->second, nodes, now).best) continue;
    for (size_t placed = 0; placed < i; ++placed) RemovePlace(order[placed]->first);
    return "of the group '" + group.name + "' " + std::to_string(i) + " of " +
           std::to_string(order.size()) + " pods fit now, and they are placed together";
  }
  for (const Member* member : order) {
    Pod& pod = pods_.at(member->first);
    pod.group = group.name;
    pod.until = now + kGroupAssumedFor;
  }
  return "";
}

Account::Filtered Account::FilterGroup(const std::string& uid, const PodGroup& group,
                                       std::span<const ContainerRequest> requests,
                                       std::span<const std::string> nodes, Time now) {
  Expire(now);
  SetWaiting(uid, requests, group.name);
  Build();
  auto found = PlaceOf(uid, nodes);
  if (!found.fits.empty()) return found;
  // It has a place where it may not be, for another reason than GPUs.
  if (const auto own = pods_.find(uid); own != pods_.end() && own->second.until) RemovePlace(uid);
  std::string waits = PlaceGroup(group, nodes, now);
  if (waits.empty()) return PlaceOf(uid, nodes);
  Filtered filtered;
  filtered.group_waits = std::move(waits);
  return filtered;
}

}  // namespace prorata::kubernetes
