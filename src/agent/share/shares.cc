#include "agent/share/shares.h"

#include <utility>

namespace prorata::agent {

Share& Shares::Add(ShareConfig config, LimitsMapping limits) {
  const uint64_t id = next_id_++;
  auto share = std::make_unique<Share>(id, std::move(config), std::move(limits));
  return *(shares_[id] = std::move(share));
}

void Shares::Remove(uint64_t id) { shares_.erase(id); }

Share* Shares::Find(uint64_t id) const {
  const auto found = shares_.find(id);
  return found == shares_.end() ? nullptr : found->second.get();
}

Share* Shares::FindByName(const std::string& name) const {
  for (const auto& [id, share] : shares_) {
    if (share->config().name == name) return share.get();
  }
  return nullptr;
}

Member* Shares::FindMember(uint64_t share_id, uint32_t slot, const ProcessId& process) const {
  const Share* share = Find(share_id);
  Member* member = share != nullptr ? share->FindMember(slot) : nullptr;
  return member != nullptr && member->process == process ? member : nullptr;
}

std::vector<Share*> Shares::All() const {
  std::vector<Share*> all;
  for (const auto& [id, share] : shares_) all.push_back(share.get());
  return all;
}

std::vector<Shares::OnDevice> Shares::On(size_t device) const {
  std::vector<OnDevice> on;
  for (const auto& [id, share] : shares_) {
    if (const auto index = share->IndexOf(device)) on.push_back({share.get(), *index});
  }
  return on;
}

std::vector<std::string> Shares::Names() const {
  std::vector<std::string> names;
  for (const auto& [id, share] : shares_) names.push_back(share->config().name);
  return names;
}

std::string Shares::FreeName() const {
  for (int number = 1;; ++number) {
    std::string name = "share-" + std::to_string(number);
    if (FindByName(name) == nullptr) return name;
  }
}

std::unexpected<Error> NoShare(const std::string& name) {
  return Fail("no_share", "there is no share named '" + name + "'; `prorata ps` lists them");
}

}  // namespace prorata::agent
