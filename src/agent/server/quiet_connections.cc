#include "agent/server/quiet_connections.h"

#include <algorithm>

namespace prorata::agent {

void QuietConnections::Add(uint64_t id, uid_t user, const std::shared_ptr<Connection>& connection) {
  Remove(id);
  // Makes room first, so that the newcomer is never the one to go.
  std::optional<uid_t> crowd;
  if (const auto own = of_user_.find(user); own != of_user_.end() && own->second >= kMaxOfUser) {
    crowd = user;
  } else if (by_age_.size() >= kMost) {
    const auto most = std::max_element(
        of_user_.begin(), of_user_.end(),
        [](const auto& one, const auto& other) { return one.second < other.second; });
    crowd = most->first;
  }
  if (crowd) {
    if (const auto longest = LongestQuiet(*crowd)) longest->Close();
  }
  const uint64_t age = next_++;
  by_age_[age] = {id, user, connection};
  ages_[id] = age;
  ++of_user_[user];
}

void QuietConnections::Remove(uint64_t id) {
  const auto age = ages_.find(id);
  if (age == ages_.end()) return;
  const auto quiet = by_age_.find(age->second);
  if (const auto own = of_user_.find(quiet->second.user); --own->second == 0) of_user_.erase(own);
  by_age_.erase(quiet);
  ages_.erase(age);
}

std::shared_ptr<Connection> QuietConnections::LongestQuiet(uid_t user) const {
  for (const auto& [age, quiet] : by_age_) {
    if (quiet.user != user) continue;
    auto connection = quiet.connection.lock();
    if (connection != nullptr && !connection->closed() && !connection->HasBytesWaiting()) {
      return connection;
    }
  }
  return nullptr;
}

}  // namespace prorata::agent
