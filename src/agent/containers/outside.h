#pragma once

// Processes that use a share's device from the share's container without being members of it: the
// image's own driver, the driver's file by its path, a program that the client library is not in.
// Once a second NVML's list of each device that has shares for containers is compared with the
// members; what is left is looked at on a thread of its own (outside_process.h), and reported where
// two looks in a row show it (policy/memory/outside_watch.h).
//
// A look that does not come back (a process whose memory map cannot be read) ends the looking, and
// nothing else. The agent's loop.

#include <boost/asio/io_context.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/containers/outside_process.h"
#include "agent/runtime/devices.h"
#include "agent/runtime/worker.h"
#include "policy/memory/outside_watch.h"

namespace prorata::agent {

class Outside {
 public:
  struct SharePlace {
    uint64_t id = 0;
    std::string folder;
    std::optional<ContainerGroup> container;  // whose it is now
    std::vector<size_t> devices;
  };
  struct Found {
    OutsideProcess process;
    size_t device = 0;
    std::optional<uint64_t> used_bytes;  // there, by NVML
  };

  Outside(boost::asio::io_context& loop, Devices& devices);

  // The shares for containers, as they are when the devices have answered.
  std::function<std::vector<SharePlace>()> shares;
  // Whether a process is a member of any share, one that has departed too.
  std::function<bool(pid_t pid)> is_member;
  // One is outside of this share from now on.
  std::function<void(uint64_t share_id, const Found& found)> on_found;

  // One look, unless the one before is under way.
  void Poll();
  // Those of a share that were reported and are there still.
  std::vector<Found> Of(uint64_t share_id) const;

 private:
  struct Usage {
    size_t device = 0;
    std::optional<uint64_t> used_bytes;
  };
  using Listed = std::multimap<pid_t, Usage>;
  struct Seen {
    std::vector<OutsideProcess> processes;
    std::map<uint64_t, FolderOfDevice> folders;  // of shares
  };

  void Inspect(const std::shared_ptr<Listed>& listed);
  void Judge(const Listed& listed, const Seen& seen, const std::vector<SharePlace>& places);

  Devices& devices_;
  Worker worker_;
  bool under_way_ = false;
  std::map<uint64_t, policy::OutsideWatch> watches_;  // by share
  std::map<uint64_t, std::vector<Found>> found_;      // of the last look
};

}  // namespace prorata::agent
