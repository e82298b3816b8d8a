#pragma once

// The audit of memory: what NVML shows of members against what they are charged for, every second.
// What is found beyond is charged to the share (policy/memory/audit.h says when it is believed); a
// share far above its limit is reported.
//
// Not thread-safe: the agent's loop.

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "agent/runtime/devices.h"
#include "agent/share/events.h"
#include "agent/share/shares.h"
#include "policy/memory/audit.h"

namespace prorata::agent {

class MemoryAudit {
 public:
  // All must outlive it.
  MemoryAudit(boost::asio::io_context& loop, const Shares& shares, Devices& devices,
              Events& events);

  // From now on, every second.
  void Start() { Poll(); }

  // Polls a device between two audits, for somebody who would be refused memory for what the
  // last one found. `then` is called when NVML has answered; maybe at once.
  void Recheck(size_t device, std::function<void()> then) { Audit(device, true, std::move(then)); }

  // While nobody is charged for anything on a device of shares: remembers what is in use there,
  // which is nobody's.
  void LearnIdle(size_t device);

 private:
  struct Audited;
  struct OnDevice {
    policy::DeviceBaseline baseline;
    uint32_t missing_polls = 0;  // in a row without some member's figure
    bool under_way = false;      // NVML has been asked
  };
  void Poll();
  void Audit(size_t device, bool recheck, std::function<void()> then);
  std::vector<Audited> MembersOn(size_t device) const;
  void AuditMembers(size_t device, bool recheck, const std::vector<Audited>& members,
                    const Devices::Reading<Devices::ByProcess>& reading);
  void AuditWhole(size_t device, bool missing, bool recheck);
  void SetMissing(size_t device, bool missing);
  void OnTotal(size_t device, bool recheck, uint64_t share_id, uint64_t before,
               const Devices::Reading<driver::NvmlMemory>& reading);
  void JudgeShares(size_t device);
  void JudgeShare(Share& share, uint32_t index);

  const Shares& shares_;
  Devices& devices_;
  Events& events_;
  std::vector<OnDevice> on_;
  boost::asio::steady_timer timer_;
};

}  // namespace prorata::agent
