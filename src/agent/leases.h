#pragma once

// Turns on the devices: policy::TimeSharing decides, this reads and writes the words it decides by.
//
// What a share is doing is read from its members' usage memory whenever something happens (a
// message, a deadline, the tick): messages say that there is something to see, and a lost or false
// one costs at most a deadline. Only `idle` and `drained` need the sequence of the lease word, for
// they are true of one lease only.

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "agent/share.h"
#include "policy/time_sharing.h"
#include "protocol/control.h"

namespace prorata::agent {

class Leases {
 public:
  Leases(boost::asio::io_context& loop, size_t devices);

  void Add(Share& share);
  void Remove(Share& share);

  // Something changed on this device (Wanted, a death, a join): look at it again.
  void Touch(size_t device);
  void TouchAll(const Share& share);
  void Idle(Share& share, Member& member, uint32_t index, uint32_t sequence);
  void Drained(Share& share, Member& member, uint32_t index, uint32_t sequence);

  // Each tenth of a second: remembers the device times for `achieved`, and looks at every device,
  // in case a message was lost.
  void Tick();
  void Describe(Share& share, uint32_t index, protocol::ShareDevice& out);

 private:
  struct Sample {
    int64_t when_ns = 0;
    std::map<uint64_t, uint64_t> device_time_ns;  // by share id
  };
  struct Device {
    explicit Device(boost::asio::io_context& loop) : timer(loop) {}
    policy::TimeSharing sharing;
    boost::asio::steady_timer timer;
    std::map<uint64_t, Share*> shares;
    std::deque<Sample> samples;
  };

  void TellWhatIsSeen(Device& device, size_t number, int64_t now_ns);
  void Apply(Device& device, size_t number, const policy::TimeSharing::Lease& lease);
  void Arm(Device& device, size_t number, int64_t next_ns, int64_t now_ns);

  std::vector<std::unique_ptr<Device>> devices_;
};

}  // namespace prorata::agent
