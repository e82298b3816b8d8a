#pragma once

// What dead members held comes back when the device shows their memory gone, and not before: the
// driver frees it some time after the process is no more. While any memory is awaited, by the dead
// or by a request (MemoryRequests), the devices are asked each ten milliseconds.
//
// Not thread-safe: the agent's loop.

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "agent/memory/memory_requests.h"
#include "agent/memory/sharing.h"
#include "agent/runtime/devices.h"
#include "agent/share/shares.h"

namespace prorata::agent {

class Reaper {
 public:
  // All must outlive it.
  Reaper(boost::asio::io_context& loop, const Shares& shares, Devices& devices,
         MemoryRequests& memory, const Sharing& sharing)
      : loop_(loop),
        shares_(shares),
        devices_(devices),
        memory_(memory),
        sharing_(sharing),
        reading_(devices.count()),
        timer_(loop) {}

  // A member of this share is no more: all that it held has come back. The share may be taken away.
  std::function<void(uint64_t share_id)> on_gone;

  // Somebody died, or waits for memory: polls the devices soon, and goes on while it is so.
  void ReapSoon();

 private:
  struct Awaited;
  void Reap();
  void ReapDevice(size_t device);
  std::vector<Awaited> AwaitedOn(size_t device) const;
  void OnFigures(size_t device, const std::vector<Awaited>& awaited,
                 const Devices::Reading<Devices::ByProcess>& reading);
  // Whether a dead member's memory is gone from the device.
  bool IsGone(const Awaited& dead, Member& member, uint32_t index, size_t device,
              const Devices::Reading<Devices::ByProcess>& reading);
  bool InheritsRest(Member& departed, uint32_t index, size_t device, std::optional<uint64_t> found,
                    uint64_t own);

  boost::asio::io_context& loop_;
  const Shares& shares_;
  Devices& devices_;
  MemoryRequests& memory_;
  const Sharing& sharing_;
  std::vector<bool> reading_;  // by device: NVML has been asked
  bool armed_ = false;
  boost::asio::steady_timer timer_;
};

}  // namespace prorata::agent
