#pragma once

// The table of the agent's shares: who has an id, a name, a device, and the member that a process
// is. It makes and ends nothing by itself. Not thread-safe: the agent's loop.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/share/share.h"
#include "base/result.h"

namespace prorata::agent {

class Shares {
 public:
  struct OnDevice {
    Share* share;
    uint32_t index;  // of the device in the share
  };

  // Under an id that no share had before.
  Share& Add(ShareConfig config, LimitsMapping limits);
  void Remove(uint64_t id);

  bool empty() const { return shares_.empty(); }
  // Null: there is none.
  Share* Find(uint64_t id) const;
  Share* FindByName(const std::string& name) const;
  // The member of a slot, if it still is the one that it was: for answers that came later.
  Member* FindMember(uint64_t share_id, uint32_t slot, const ProcessId& process) const;

  // In the order in which they were added; as of now, whatever is added or removed meanwhile.
  std::vector<Share*> All() const;
  std::vector<OnDevice> On(size_t device) const;
  std::vector<std::string> Names() const;
  // For a share that nobody gave a name.
  std::string FreeName() const;

 private:
  std::map<uint64_t, std::unique_ptr<Share>> shares_;
  uint64_t next_id_ = 1;
};

// There is none of that name: "no_share".
std::unexpected<Error> NoShare(const std::string& name);

}  // namespace prorata::agent
